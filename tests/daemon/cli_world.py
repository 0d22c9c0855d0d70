"""For tests of sub-commands: a real master in this process, and the commands as real processes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

import synrepl
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.daemon.config import load_master
from synrepl.daemon.master import MasterProcess
from synrepl.storage.facts import FactTable
from synrepl.streams.definition import Stream
from synrepl.testing.postgres import fresh_database

REPOSITORY = Path(synrepl.__file__).parent.parent

ORDERS = "{order_id: text, amount: bigint, note: 'json?'}"

#: Below those that systems give to outgoing connections, and to who wants any port.
_PORTS = range(10_000, 32_000)

#: Test processes that run at a time begin far from one another: their numbers are close.
_port_numbers = count(os.getpid() * 13_597)


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Command(ProcessProtocol):
    """A sub-command that runs. Await lines of its output, or its end."""

    def __init__(self) -> None:
        self.out = self.err = b""
        self.code: int | None = None
        self._ends: list[Deferred[None]] = []
        self._waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def write(self, data: bytes) -> None:
        """Give it some input."""
        self._process().write(data)

    def end_of_input(self) -> None:
        """Close its stdin."""
        self._process().closeStdin()

    def close_output(self) -> None:
        """Read its stdout no more."""
        self._process().closeChildFD(1)

    def signal(self, name: str) -> None:
        """Send it a signal."""
        self._process().signalProcess(name)

    async def kill(self) -> None:
        """End it, if it still runs."""
        with suppress(ProcessExitedAlready):
            self._process().signalProcess("KILL")
        await self.done()

    async def lines(self, count: int) -> list[str]:
        """The first lines of its output, once there are so many."""

        def enough() -> list[str] | None:
            found = self.out.decode().split("\n")[:-1]
            return found[:count] if len(found) >= count else None

        found: list[str] = await self._until(enough)
        return found

    async def said(self, text: str) -> str:
        """Its stderr, once ``text`` is in it."""
        found: str = await self._until(
            lambda: self.err.decode() if text in self.err.decode() else None
        )
        return found

    async def done(self) -> Done:
        """Wait for its end."""
        if self.code is None:
            end: Deferred[None] = Deferred()
            self._ends.append(end)
            await end
        assert self.code is not None
        return Done(self.code, self.out.decode(), self.err.decode())

    def outReceived(self, data: bytes) -> None:
        """Keep it."""
        self.out += data
        self._look()

    def errReceived(self, data: bytes) -> None:
        """Keep it."""
        self.err += data
        self._look()

    def processEnded(self, reason: Failure) -> None:
        """It is over; what is still awaited will never come."""
        status: Any = reason.value
        code = 0 if isinstance(status, ProcessDone) else status.exitCode
        self.code = -status.signal if code is None else code
        waiting, self._waiting = self._waiting, []
        for _, deferred in waiting:
            deferred.errback(
                AssertionError(f"it ended with {self.code}: {self.out!r} {self.err!r}")
            )
        for end in self._ends:
            end.callback(None)

    async def _until(self, found: Callable[[], Any]) -> Any:
        value = found()
        if value is not None:
            return value
        deferred: Deferred[Any] = Deferred()
        self._waiting.append((found, deferred))
        return await deferred

    def _look(self) -> None:
        for entry in list(self._waiting):
            value = entry[0]()
            if value is not None:
                self._waiting.remove(entry)
                entry[1].callback(value)

    def _process(self) -> Any:
        return self.transport


class CliCase(TestCase):
    """A test with a directory, processes, and perhaps a master."""

    timeout = 400  # many processes in a row, each of which takes seconds to start when all is busy

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.directory.chmod(0o755)  # the embedded database may run as another user

    def start(self, *arguments: object) -> Command:
        """Start ``synrepl`` with these arguments; its stdin stays open."""
        command = Command()
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TZ": "UTC", "COLUMNS": "100"}
        any_reactor: Any = reactor
        any_reactor.spawnProcess(
            command,
            sys.executable,
            [sys.executable, "-m", "synrepl", *map(str, arguments)],
            env=environment,
            path=str(self.directory),
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(command.kill()))
        return command

    async def run_it(self, *arguments: object, stdin: bytes = b"") -> Done:
        """Run ``synrepl`` with these arguments to its end."""
        command = self.start(*arguments)
        command.write(stdin)
        command.end_of_input()
        return await command.done()

    async def turn(self) -> None:
        """Let other processes go on."""
        await TwistedScheduler(reactor).sleep(0.02)

    async def master(self, **settings: str) -> Master:
        """A running master with the stream ``orders``.

        :param settings: YAML by key; ``http_extra`` goes into ``http``
        """
        master = Master(self.directory / "master.yaml", await fresh_database(self), settings)
        self.addCleanup(lambda: Deferred.fromCoroutine(master.stop()))
        await master.start()
        return master


class Master:
    """A master in this process, at fixed ports, that can be stopped and started again."""

    def __init__(self, path: Path, dsn: str, settings: dict[str, str]) -> None:
        self.path = path
        self.port, self.http_port = free_port(), free_port()
        self.process: MasterProcess | None = None
        written = {
            "server_name": "example.com",
            "database": dsn,
            "catalogue": "[events, typing]",
            "streams": f"[{{name: orders, columns: {ORDERS}}}]",
            "listeners": f"[{{port: {self.port}}}]",
            "http": f"{{port: {self.http_port}, {settings.pop('http_extra', '')}}}",
            **settings,
        }
        path.write_text("".join(f"{key}: {value}\n" for key, value in written.items()))

    @property
    def address(self) -> str:
        """HOST:PORT of the listener for followers."""
        return f"127.0.0.1:{self.port}"

    @property
    def requests(self) -> int:
        """How many HTTP requests it has answered."""
        assert self.process is not None
        assert self.process.http.server is not None
        return sum(self.process.http.server.responses.values())

    async def start(self, at: int | None = None) -> None:
        """Start it.

        :param at: listen there for followers, for this once
        """
        assert self.process is None
        config = load_master([self.path])
        if at is not None:
            config = replace(config, listeners=(replace(config.listeners[0], port=at),))
        self.process = MasterProcess(reactor, config)
        await self.process.start()

    async def stop(self) -> None:
        """Stop it, if it runs."""
        process, self.process = self.process, None
        if process is not None:
            await process.stop()

    async def append(self, *facts: list[list[Any]]) -> list[int]:
        """Append facts to ``orders`` without a command; their tokens."""
        assert self.process is not None
        assert self.process.writer is not None
        stream: Stream = self.process.catalogue["orders"]
        (row,) = stream.kinds.values()
        made = [[row(*cells) for cells in rows] for rows in facts]
        written = await self.process.writer.append(stream, made)
        return list(written.tokens)

    async def stored(self) -> list[list[list[Any]]]:
        """The facts of ``orders``, each as its rows."""
        assert self.process is not None
        assert self.process.database.database is not None
        table = FactTable(self.process.catalogue["orders"])
        span = Range(0, MAX_TOKEN)
        page = await self.process.database.database.run(
            "stored", lambda txn: table.page(txn, span, None, 100_000)
        )
        return [[list(msgspec.structs.astuple(row)) for row in fact.rows] for fact in page.facts]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and nobody else is given."""
    while True:
        port = _PORTS[next(_port_numbers) % len(_PORTS)]
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
