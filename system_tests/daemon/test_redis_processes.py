"""A master and workers as real processes, which hear each other over a real Redis."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from twisted.internet.threads import deferToThread

from synrepl.core.errors import ConfigError
from synrepl.daemon.config.config import load
from synrepl.testing.redis import RedisTestServer
from tests.daemon.writers_case import WritersCase


class RedisCase(WritersCase):
    """Processes over Redis, which wants a password, and one over TCP."""

    stream_writers = "{orders: [master, w1, w2], jobs: [w1]}"

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.redis = RedisTestServer("--requirepass", "sesame", password="sesame")
        self.addCleanup(self.redis.close)
        secret = self.directory / "redis.secret"
        secret.write_text("sesame\n")
        secret.chmod(0o600)
        self.over_redis = f"{{path: {self.redis.path}, password_path: {secret}}}"

    async def begin_three(self) -> None:
        """Start a master, ``w1`` and ``w2`` over Redis, and ``w3`` over TCP."""
        await self.start_on_redis("master", "w1", "w2")
        await self.begin("w3")

    async def start_on_redis(self, *names: str) -> None:
        """Start processes over Redis, and wait until they are ready."""
        for name in names:
            self.process(name, redis=self.over_redis)
            await self.until_ready(name)

    async def everybody_has(self, stream: str, writer: str, token: int) -> None:
        """Wait until all processes have a fact."""
        for name in ("master", "w1", "w2", "w3"):
            await self.wait(name, stream, writer, token)

    async def metrics(self, name: str) -> str:
        """What a scrape of a process gives."""
        url = f"http://127.0.0.1:{self.http[name]}/metrics"

        def ask() -> str:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())

        return str(await deferToThread(ask))

    async def until_not_ready(self, name: str, reason: str) -> None:
        """Wait until a process says that it is not ready, for this and no other reason."""

        async def says_so() -> bool:
            answer = await self.ask(name, "/ready")
            reasons = [] if isinstance(answer, dict) else answer[2]["reasons"]
            return len(reasons) == 1 and reason in reasons[0]

        await self.until(says_so)


class ProcessesOverRedis(RedisCase):
    """Two workers over Redis, and one over TCP."""

    async def test_each_process_announces_itself_and_the_master_the_others(self) -> None:
        await self.begin_three()
        for name in ("w1", "w2", "master"):
            (token,) = await self.append(name, "orders", [name, 1, None])
            await self.everybody_has("orders", name, token)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT synrepl.append('jobs', '[{\"job\": 2}]')")
            row = cursor.fetchone()
            assert row is not None
        connection.commit()
        await self.everybody_has("jobs", "sql", row[0])

    async def test_a_restart_of_redis_and_a_killed_writer_lose_nothing(self) -> None:
        await self.begin_three()
        (token,) = await self.append("w1", "orders", ["a", 1, None])
        await self.everybody_has("orders", "w1", token)
        self.redis.stop()
        (token,) = await self.append("w1", "orders", ["b", 1, None])  # w1 cannot announce it
        await self.processes["w1"].kill()
        self.redis.start()
        for name in ("master", "w2", "w3"):
            await self.wait(name, "orders", "w1", token)

    async def test_status_and_readiness_report_the_health_of_the_bus(self) -> None:
        await self.begin_three()
        (token,) = await self.append("w1", "orders", ["a", 1, None])
        await self.everybody_has("orders", "w1", token)
        for name in ("master", "w2"):
            bus = (await self.ask(name, "/status"))["bus"]
            commands = bus.pop("commands")
            self.assertGreaterEqual(set(commands), {"POSITION", "RDATA", "REPLICATE"})
            # A worker's own facts are for its follower, too.
            self.assertEqual(bus.pop("echoes") > 0, name == "master")
            self.assertEqual(
                bus,
                {
                    "where": str(self.redis.path),
                    "connected": True,
                    "fault": None,
                    "name_taken": False,
                    "connections": 1,
                    "bad": 0,
                    "cut_off": 0,
                },
            )
            shown = await self.run_command("status", "-c", self.directory / f"{name}.yaml")
            self.assertIn(f"bus on Redis at {self.redis.path} is connected\n", shown.out)
            self.assertIn("1 connections, ", shown.out)
            metrics = await self.metrics(name)
            self.assertIn("synrepl_bus_connected 1.0\n", metrics)
            self.assertIn('synrepl_bus_commands_heard_total{command="RDATA"} ', metrics)
        self.assertIsNone((await self.ask("w3", "/status"))["bus"])
        self.assertNotIn("synrepl_bus", await self.metrics("w3"))

        self.redis.stop()
        for name in ("master", "w2"):
            await self.until_not_ready(name, f"no bus on Redis at {self.redis.path}: ")
            bus = (await self.ask(name, "/status"))["bus"]
            self.assertFalse(bus["connected"])
            self.assertTrue(bus["fault"])
            shown = await self.run_command("status", "-c", self.directory / f"{name}.yaml")
            self.assertIn(f"bus on Redis at {self.redis.path} is not connected: ", shown.out)
            self.assertNotIn("sesame", shown.out + shown.err + json.dumps(bus))
            self.assertIn("synrepl_bus_connected 0.0\n", await self.metrics(name))
        self.redis.start()
        for name in ("master", "w2"):
            await self.until_ready(name)
            self.assertEqual((await self.ask(name, "/status"))["bus"]["connections"], 2)


class RedisWithAcl(RedisCase):
    """A user who may do no more than ``docs/operations.md`` says."""

    async def test_processes_receive_each_others_facts(self) -> None:
        channels = ("resetchannels", "&example.com", "&example.com/*")
        allowed = ("-@all", "+subscribe", "+publish", "+ping")
        done = self.redis.command("ACL", "SETUSER", "synrepl", "on", ">sesame", *channels, *allowed)
        self.assertEqual(done, b"OK")
        self.over_redis = f"{self.over_redis[:-1]}, username: synrepl}}"
        await self.start_on_redis("master", "w1")
        (token,) = await self.append("master", "orders", ["a", 1, None])
        await self.wait("w1", "orders", "master", token)


class DuplicateNames(RedisCase):
    """Two processes of one name on one bus."""

    async def test_refuses_a_second_follower_until_the_first_has_left(self) -> None:
        await self.start_on_redis("master", "w4")
        first, port = self.processes["w4"], self.http["w4"]
        second = self.process("w4", redis=self.over_redis)
        await self.until_not_ready("w4", "another process there has this one's name")
        await second.stderr_containing("another process is 'w4' there")
        await first.stderr_containing(
            "another process has come to the bus as 'w4', and is sent away"
        )
        self.http["w4"] = port
        await self.until_ready("w4")
        (token,) = await self.append("master", "orders", ["a", 1, None])
        await self.wait("w4", "orders", "master", token)

    async def test_a_name_is_free_once_its_process_has_left(self) -> None:
        await self.start_on_redis("master", "w4")
        first = self.processes["w4"]
        self.process("w4", redis=self.over_redis)
        await self.until_not_ready("w4", "another process there has this one's name")
        await first.kill()
        await self.until_ready("w4")

    async def test_a_second_writer_is_refused(self) -> None:
        await self.start_on_redis("master", "w1")
        done = await self.process("w1", redis=self.over_redis).done()
        self.assertEqual(done.code, 1)
        self.assertRegex(done.err, r"writer 'w1' of stream '\w+' is held by 'w1' \(process \d+ on ")


class RedisSettings(TestCase):
    """The ``redis`` section."""

    def refused(self, redis: str, more: str = "master: {port: 1, http_url: http://a}") -> str:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "worker.yaml"
            path.write_text(
                f"server_name: example.com\ninstance_name: w1\ncatch_up: http\n{more}\n"
                f"redis: {redis}\n"
            )
            with self.assertRaises(ConfigError) as caught:
                load([path])
        return str(caught.exception)

    def test_refuses_inconsistent_redis_settings(self) -> None:
        for redis, key in (
            ("{host: redis.example.com}", "redis.tls"),
            ("{host: redis.example.com, tls: maybe}", "redis.tls"),
            ("{username: synrepl}", "redis.password_path"),
            ("{ca_file: ca.pem}", "redis.ca_file"),
            ("{path: redis.sock, tls: true}", "redis.tls"),
            ("{database: -1}", "redis.database"),
            ("{sentinels: [{port: 1}]}", "redis.service"),
            ("{service: ours}", "redis.service"),
            ("{sentinels: [{host: a.example}], service: ours}", "redis.tls"),
            ("{sentinels: [{port: 1}], service: ours, path: a}", "redis.sentinels"),
        ):
            with self.subTest(redis):
                self.assertIn(key, self.refused(redis))

    def test_refuses_another_dialect_over_redis(self) -> None:
        more = "dialect: legacy\nmaster: {port: 1, http_url: http://a}"
        self.assertIn("only one", self.refused("{}", more))
