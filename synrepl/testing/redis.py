"""A real Redis for tests.

    class Talk(TestCase):
        def setUp(self):
            self.redis = RedisServer()
            self.addCleanup(self.redis.close)

See :mod:`synrepl.storage.launch.redis` for which one it is. It listens on a
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

#: Below those that systems give to outgoing connections.
_PORTS = range(10_000, 32_000)


class RedisTestServer(redis.RedisProcess):
    """One server, running from the start, in a folder of its own.

    :param settings: further settings, as on the command line: ``"--requirepass", "secret"``
    :param password: for :meth:`command`
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
        """End it, also when it hangs."""
        self.thaw()
        super().stop()

    def restart(self) -> None:
        """End it and start it again."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it hang: connections stay, and nothing is answered."""
        self._signal(SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(SIGCONT)

    def close(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def command(self, *arguments: str | bytes) -> object:
        """Have a command carried out, and wait; an error of the server is returned."""
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
    """A port that stays free while the server is away."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311
        with suppress(OSError):
            socket.create_server((HOST, port)).close()
            return port
