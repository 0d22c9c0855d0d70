"""Forged messages on an open Redis move no position, and are reported."""

from __future__ import annotations

import json
from typing import Any

from synrepl.testing.redis import RedisTestServer
from system_tests.daemon.shop_case import ShopCase

FAR = 1_000_000


class ForgedCase(ShopCase):
    """A master and workers over a Redis without a password."""

    timeout = 120

    stream_writers = "{orders: [master, w2]}"

    async def setUp(self) -> None:  # type: ignore[override]
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)
        await super().setUp()

    async def begin(self, name: str, **settings: str) -> Any:
        process = self.process(name, redis=f"{{path: {self.redis.path}}}", **settings)
        await self.until_ready(name)
        return process

    def forge(self, *lines: str) -> None:
        """Publish lines as anybody can."""
        for line in lines:
            self.redis.command("PUBLISH", "example.com", line)

    async def tokens(self, name: str) -> Any:
        """What a worker tells about tokens, once it has refused one."""

        async def refused() -> Any:
            tokens = (await self.ask(name, "/status"))["tokens"]
            return tokens if tokens["refused"] else None

        return await self.until(refused)


class Forged(ForgedCase):
    async def test_a_forged_position_moves_no_follower_and_is_reported(self) -> None:
        await self.begin("w1", handlers=f"[{self.mailer()}, {self.totals()}]")
        await self.wait("w1", "orders", "master", await self.order("o1"))
        self.forge(
            f"POSITION orders master 1 {FAR}", f'RDATA orders master {FAR} ["fake", 1, null]'
        )
        tokens = await self.tokens("w1")
        self.assertEqual(tokens["last_refused"]["given_out"], 1)
        await self.wait("w1", "orders", "master", await self.order("o2"))
        self.assertEqual(self.orders_of(), ["o1", "o2"])
        self.assertEqual(self.in_totals(), ["o1", "o2"])
        ready = await self.ask("w1", "/ready")
        self.assertEqual((ready["ready"], ready["reasons"]), (True, []))
        self.assertIn("tokens were refused that cannot have been given out", ready["warnings"][0])
        metrics = await self.text("w1", "/metrics")
        self.assertIn('synrepl_follower_refused_tokens_total{stream="orders"} 2.0', metrics)
        await self.processes["w1"].stderr_containing(
            "cannot have been given out, the last one was 1"
        )
        shown = await self.run_command("status", "-c", self.file("w1.yaml"))
        self.assertIn("tokens were refused", shown.out)

    async def test_a_worker_that_asks_the_master_over_http(self) -> None:
        url = f"http://127.0.0.1:{self.http['master']}"
        await self.begin("w1", catch_up="http", master=f"{{port: {self.port}, http_url: '{url}'}}")
        await self.wait("w1", "orders", "master", await self.order("o1"))
        self.forge(f"POSITION orders master 1 {FAR}")
        await self.tokens("w1")
        await self.wait("w1", "orders", "master", await self.order("o2"))
        await self.begin("w2")
        token = await self.order("o3", at="w2")
        await self.wait("w1", "orders", "w2", token)
        status = await self.ask("w1", "/status")
        self.assertEqual(status["tokens"]["refused"], {"orders": 1})

    async def test_a_follower_that_is_ahead_already_is_named_and_moved_back(self) -> None:
        worker = await self.begin("w1", handlers=f"[{self.mailer()}]", lease="2s")
        await self.wait("w1", "orders", "master", await self.order("o1", "o2"))
        await self.stop(worker, "TERM")
        # As an older version left it behind.
        for table in ("_followers", "_handler_positions"):
            self.sql(f"UPDATE synrepl.{table} SET position = {FAR} WHERE stream = 'orders'")
        await self.order("o3")
        worker = self.process("w1", handlers=f"[{self.mailer()}]", lease="2s")

        async def reason() -> str:
            answer = await self.ask("w1", "/ready")
            return "" if isinstance(answer, dict) else "; ".join(answer[2]["reasons"])

        async def is_ahead() -> bool:
            return "and only 3 has been given out" in await reason()

        await self.until(is_ahead)
        self.assertIn("synrepl_follower_ahead 2.0", await self.text("w1", "/metrics"))
        done = await self.run_command("doctor", "database", "-c", self.file("master.yaml"))
        self.assertEqual(done.code, 1)
        self.assertIn("error: follower-ahead (orders): follower w1", done.out)
        reset = ("followers", "reset", "w1", "orders", "-c", self.file("master.yaml"))
        done = await self.run_command(*reset, "--to", "2")
        self.assertEqual(done.code, 1)
        self.assertIn("follower 'w1' runs, and would put its positions back", done.err)
        await self.stop(worker, "TERM")
        self.sql("UPDATE synrepl._follower_leases SET seen_at = now() - interval '1 min'")
        done = await self.run_command(*reset, "--to", "2", "--json")
        moved = json.loads(done.out)["moved"]
        self.assertEqual(
            {(m["handler"], m["before"], m["after"]) for m in moved},
            {(None, FAR, 2), ("mail", FAR, 2)},
        )
        await self.begin("w1", handlers=f"[{self.mailer()}]")
        await self.wait("w1", "orders", "master", 3)
        self.assertEqual(self.orders_of(), ["o1", "o2", "o3"])


class Commands(ShopCase):
    """``synrepl followers``, on records that are made by hand."""

    async def test_they_are_listed_moved_back_and_removed(self) -> None:
        await self.order("o1", "o2", "o3")

        async def recorded() -> bool:
            return self.sql("SELECT position FROM synrepl._streams WHERE stream = 'orders'") == [
                (3,)
            ]

        await self.until(recorded)  # '--to now' means the recorded positions
        config = ("-c", self.file("master.yaml"))
        done = await self.run_command("followers", "list", *config)
        self.assertEqual((done.code, done.out), (0, "no named followers\n"))
        self.sql(
            "INSERT INTO synrepl._followers (follower, stream, writer, position)"
            " VALUES ('w1', 'orders', 'master', 2), ('w1', 'orders', '', 99)"
        )
        self.sql("INSERT INTO synrepl._follower_leases VALUES ('w1', NULL, now() + '1 h')")
        done = await self.run_command("followers", "list", *config, "--json")
        (line,) = json.loads(done.out)["followers"]
        self.assertEqual((line["name"], line["ahead"]), ("w1", 96))
        done = await self.run_command("followers", "reset", "w1", *config, "--to", "now")
        self.assertEqual(done.out, "orders of (all): from 99 back to 3\n")
        done = await self.run_command("followers", "reset", "w1", *config, "--to", "now")
        self.assertEqual(done.out, "nothing to move back\n")
        done = await self.run_command("followers", "reset", "w1", *config, "--to", "earliest")
        self.assertEqual(
            done.out.splitlines(),
            ["orders of (all): from 3 back to 0", "orders of master: from 2 back to 0"],
        )
        done = await self.run_command("followers", "list", *config)
        self.assertRegex(done.out, r"(?m)^w1 +3 +0 ")
        for arguments, message in (
            (("reset", "w2", "--to", "now"), "there is no follower 'w2' on record; "),
            (("reset", "w1", "caches", "--to", "0"), "'w1' on record in stream 'caches'; "),
            (("reset", "w1", "--to", "-3"), "'-3' is no place to go back to"),
            (("remove", "w2"), "there is no follower 'w2' on record; "),
        ):
            done = await self.run_command("followers", *arguments, *config)
            self.assertEqual(done.code, 1)
            self.assertIn(message, done.err)
        done = await self.run_command("followers", "remove", "w1", *config)
        self.assertEqual(done.out, "follower w1 is removed\n")
        done = await self.run_command("followers", "list", *config)
        self.assertEqual(done.out, "no named followers\n")
