"""``synrepl tail`` over a real Redis."""

from __future__ import annotations

import json
from pathlib import Path

from synrepl.testing.redis import RedisTestServer
from tests.cli.cli_case import CliCase, free_port


class TailOverRedis(CliCase):
    def setUp(self) -> None:
        super().setUp()
        self.redis = RedisTestServer()
        self.addCleanup(self.redis.close)

    def worker(self, more: str = "", http: int | None = None) -> Path:
        """A worker's configuration, whose master listens nowhere."""
        path = self.directory / "worker.yaml"
        path.write_text(
            "server_name: example.com\ninstance_name: w\ncatch_up: http\ncatalogue: all\n"
            f"master: {{port: {free_port()}, http_url: 'http://127.0.0.1:{http or free_port()}'}}\n"
            f"redis: {{port: {self.redis.port}{more}}}\n"
            "streams: [{name: orders, columns: {order_id: text, amount: bigint, note: 'json?'}}]\n"
        )
        return path

    def publish(self, *lines: str, channel: str = "example.com") -> None:
        for line in lines:
            self.redis.command("PUBLISH", channel, line.encode())

    async def subscribed(self, channel: str) -> None:
        """Wait until a channel has a subscriber."""
        while not self.redis.command("PUBSUB", "NUMSUB", channel)[1]:
            await self.yield_to_processes()

    async def test_shows_rows_of_every_process(self) -> None:
        command = self.start(
            *("tail", "-c", self.worker(), "receipts", "typing", "--json"),
            *("--count", "3", "--commands"),
        )
        await self.subscribed("example.com")
        self.publish("POSITION receipts a 1 1", "POSITION typing b 7 7")
        self.publish('RDATA receipts a 2 ["r"]', "RDATA typing b batch [1]", "RDATA typing b 8 [2]")
        done = await command.done()
        rows = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual(
            [list(row.values()) for row in rows if "row" in row],
            [["receipts", "a", 2, ["r"]], ["typing", "b", 8, [1]], ["typing", "b", 8, [2]]],
        )
        self.assertEqual((done.code, done.err), (0, ""))

    async def test_subscribes_to_a_channel_per_stream(self) -> None:
        path = self.worker(", channel_per_stream: true")
        command = self.start("tail", "-c", path, "orders", "--count", "1")
        channel = "example.com/stream/orders"
        await self.subscribed(channel)
        self.publish("POSITION orders a 1 1", 'RDATA orders a 2 ["o",1,null]', channel=channel)
        done = await command.done()
        self.assertTrue(done.out.endswith('orders       a             2 ["o",1,null]\n'), done.out)

    async def test_fetches_missed_rows_over_http(self) -> None:
        master = await self.master(redis=f"{{port: {self.redis.port}}}")
        await master.append([["o1", 1, None]], [["o2", 2, None]])
        done = await self.run_command(
            *("tail", "-c", self.worker(http=master.http_port), "orders", "--json"),
            *("--from", "0", "--count", "2"),
        )
        tokens = [json.loads(line)["token"] for line in done.out.splitlines()]
        self.assertEqual((tokens, done.err), ([1, 2], ""))

    async def test_refuses_a_dialect_and_an_unreachable_redis(self) -> None:
        path = self.worker()
        done = await self.run_command("tail", "-c", path, "--dialect", "legacy")
        self.assertEqual(done.code, 2)
        self.assertIn("over Redis there is only one", done.err)
        self.redis.close()
        done = await self.run_command("tail", "-c", path)
        where = f"Redis at 127.0.0.1:{self.redis.port}, channel example.com"
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn(f"synrepl: error: cannot connect to {where}: ", done.err)
