"""A real Redis for tests.

    class Talk(TestCase):
        def setUp(self):
            self.redis = RedisServer()
            self.addCleanup(self.redis.close)

:mod:`synrepl.storage.launch.redis` says which executable is used. The server listens on a
unix socket and on a port of the loopback interface, keeps nothing on disk, takes
little memory, and does not outlive the process that started it.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from tempfile import mkdtemp
from typing import Any

import hiredis

from synrepl.storage.launch import redis
from synrepl.storage.launch.redis import HOST, IN_MEMORY, PATIENCE_S

#: Below the ephemeral ports that systems use for outgoing connections.
_PORTS = range(10_000, 32_000)


class RedisTestServer(redis.RedisProcess):
    """A server with a temporary directory, started by the constructor.

    :param settings: further settings, as on the command line: ``"--requirepass", "secret"``
    :param password: the password that :meth:`command` uses
    :param sentinel: run it as a Sentinel, with these lines in its configuration
    :ivar path: its unix socket
    """

    def __init__(
        self, *settings: str, password: str | None = None, sentinel: str | None = None
    ) -> None:
        folder = Path(mkdtemp(prefix="synrepl-redis-"))
        self.path = folder / "redis.sock"
        self._folder = folder
        self._password = password
        given = ("--unixsocket", str(self.path), *settings)
        if sentinel is None:
            super().__init__(folder, _free_port(), (*IN_MEMORY, *given))
        else:
            file = folder / "sentinel.conf"
            file.write_text(f"{sentinel}\n")
            super().__init__(folder, _free_port(), ("--sentinel", *given), file)
        self.start()

    def stop(self) -> None:
        """Stop the server, even if it is frozen."""
        self.thaw()
        super().stop()

    def restart(self) -> None:
        """Stop and start the server."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Suspend the server: connections stay open, and nothing is answered."""
        self._signal(SIGSTOP)

    def thaw(self) -> None:
        """Resume the server after :meth:`freeze`."""
        self._signal(SIGCONT)

    def close(self) -> None:
        """Stop the server, and remove its directory."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, *arguments: str | bytes) -> object:
        """Run a command, and wait for its reply; an error reply is returned."""
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(PATIENCE_S)
            link.connect(str(self.path))
            reader = hiredis.Reader()
            if self._password is not None:
                _ask(link, reader, ("AUTH", self._password))
            return _ask(link, reader, arguments)

    def _signal(self, number: int) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)


def _ask(link: socket.socket, reader: hiredis.Reader, arguments: Any) -> object:
    link.sendall(hiredis.pack_command(arguments))
    while (reply := reader.gets()) is False:
        data = link.recv(65536)
        if not data:
            raise ConnectionError("redis-server closed the connection")
        reader.feed(data)
    return reply


def _free_port() -> int:
    """A port that is likely to stay free while the server is stopped."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311
        with suppress(OSError):
            socket.create_server((HOST, port)).close()
            return port
