"""Test case for sub-commands: a real master in this process, the commands as real processes."""

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
from synrepl.adapters.caches import make_caches
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import MAX_TOKEN, Range
from synrepl.daemon.assemble import MasterServices
from synrepl.daemon.config.config import load_master
from synrepl.daemon.master import MasterProcess, RunningMaster
from synrepl.storage.postgres.facts import FactTable
from synrepl.streams.definition import Stream
from tests.cli.forked_process import ForkedProcess
from tests.storage.postgres import MIGRATED

REPOSITORY = Path(synrepl.__file__).parent.parent

ORDERS = "{order_id: text, amount: bigint, note: 'json?'}"

#: Below the ephemeral ports, which are given to outgoing connections and to listeners on port 0.
_PORTS = range(10_000, 32_000)

#: Sub-commands that always get a new process, because they start a JVM or many processes themselves.
NEW_PROCESS_COMMANDS = {"demo", "lake"}

#: Spreads out concurrent test processes, whose process IDs are close to one another.
_port_numbers = count(os.getpid() * 13_597)


class CommandResult(NamedTuple):
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


class Command(ProcessProtocol):
    """A running sub-command; await lines of its output, or its end."""

    def __init__(self) -> None:
        self.out = self.err = b""
        self.code: int | None = None
        self._ends: list[Deferred[None]] = []
        self._waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def write(self, data: bytes) -> None:
        """Write to its stdin."""
        self._process().write(data)

    def end_of_input(self) -> None:
        """Close its stdin."""
        self._process().closeStdin()

    def close_output(self) -> None:
        """Close its stdout, as a reader that goes away does."""
        self._process().closeChildFD(1)

    def signal(self, signal: str | int) -> None:
        """Send it a signal, by its number or its name without ``SIG``."""
        self._process().signalProcess(signal)

    async def kill(self) -> None:
        """Kill it, if it is running, and wait for its end."""
        with suppress(ProcessExitedAlready):
            self._process().signalProcess("KILL")
        await self.done()

    async def lines(self, count: int) -> list[str]:
        """Wait for ``count`` lines on stdout, and return them."""

        def first_lines() -> list[str] | None:
            found = self.out.decode().split("\n")[:-1]
            return found[:count] if len(found) >= count else None

        found: list[str] = await self._until(first_lines)
        return found

    async def stderr_containing(self, text: str) -> str:
        """Wait until stderr contains ``text``, and return all of stderr."""
        found: str = await self._until(
            lambda: self.err.decode() if text in self.err.decode() else None
        )
        return found

    async def done(self) -> CommandResult:
        """Wait for its end, and return the result."""
        if self.code is None:
            end: Deferred[None] = Deferred()
            self._ends.append(end)
            await end
        assert self.code is not None
        return CommandResult(self.code, self.out.decode(), self.err.decode())

    def outReceived(self, data: bytes) -> None:
        """Collect output, and wake up those who wait for it."""
        self.out += data
        self._look()

    def errReceived(self, data: bytes) -> None:
        """Collect output, and wake up those who wait for it."""
        self.err += data
        self._look()

    def processEnded(self, reason: Failure) -> None:
        """Record the exit code; fail those who wait for output."""
        status: Any = reason.value
        code = 0 if isinstance(status, ProcessDone) else status.exitCode
        self.code = -status.signal if code is None else code
        waiting, self._waiting = self._waiting, []
        for _, deferred in waiting:
            deferred.errback(
                AssertionError(f"the command ended with {self.code}: {self.out!r} {self.err!r}")
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
    """A test with a directory, commands and, on request, a master."""

    timeout = 400  # a test may start many processes, which take seconds each on a busy machine

    def setUp(self) -> None:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.directory.chmod(0o755)  # the embedded database may run as another user

    def environment(self) -> dict[str, str]:
        """The environment of commands."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "TZ": "UTC", "COLUMNS": "100"}

    def start(self, *arguments: object, in_new_process: bool = False) -> Command:
        """Start ``synrepl`` with these arguments; its stdin stays open.

        :param in_new_process: whether to start a new Python process, instead of forking one that has
            imported the modules
        """
        command = Command()
        any_reactor: Any = reactor
        words = [*map(str, arguments)]
        if in_new_process or words[0] in NEW_PROCESS_COMMANDS:
            any_reactor.spawnProcess(
                command,
                sys.executable,
                [sys.executable, "-m", "synrepl", *words],
                env=self.environment(),
                path=str(self.directory),
            )
        else:
            ForkedProcess(any_reactor, command, words, self.environment(), self.directory)
        self.addCleanup(lambda: Deferred.fromCoroutine(command.kill()))
        return command

    async def run_command(self, *arguments: object, stdin: bytes = b"") -> CommandResult:
        """Run ``synrepl`` with these arguments, and wait for its end."""
        command = self.start(*arguments)
        command.write(stdin)
        command.end_of_input()
        return await command.done()

    async def yield_to_processes(self) -> None:
        """Give other processes time to continue."""
        await TwistedScheduler(reactor).sleep(0.02)

    async def master(self, **settings: str) -> InProcessMaster:
        """Start a master with the stream ``orders``.

        :param settings: YAML by key; ``http_extra`` goes into ``http``
        """
        master = InProcessMaster(
            self.directory / "master.yaml", await MIGRATED.copy(self), settings
        )
        self.addCleanup(lambda: Deferred.fromCoroutine(master.stop()))
        await master.start()
        return master


class InProcessMaster:
    """A master in this process, on fixed ports, that can be stopped and restarted."""

    def __init__(self, path: Path, dsn: str, settings: dict[str, str]) -> None:
        self.path = path
        self.port, self.http_port = free_port(), free_port()
        self.processes: list[tuple[MasterProcess, RunningMaster]] = []
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
        """The number of HTTP requests answered."""
        assert self.running.http is not None
        return sum(self.running.http.server.responses.values())

    @property
    def running(self) -> RunningMaster:
        """The running master."""
        return self.processes[-1][1]

    @property
    def services(self) -> MasterServices:
        """Its services."""
        return self.running.services

    async def start(self, at: int | None = None) -> None:
        """Start the master.

        :param at: the port to listen on for followers, this time only; None for :attr:`port`
        """
        assert not self.processes
        config = load_master([self.path])
        if at is not None:
            config = replace(config, listeners=(replace(config.listeners[0], port=at),))
        await self.run(MasterProcess(reactor, config, make_caches()))

    async def run(self, process: MasterProcess) -> None:
        """Start a given process."""
        self.processes.append((process, await process.start()))

    async def stop(self) -> None:
        """Stop the master, if it is running."""
        while self.processes:
            process, _ = self.processes.pop()
            await process.stop()

    async def append(self, *facts: list[list[Any]]) -> list[int]:
        """Append facts to ``orders`` directly; return their tokens."""
        stream: Stream = self.services.catalogue["orders"]
        (row,) = stream.kinds.values()
        made = [[row(*cells) for cells in rows] for rows in facts]
        written = await self.services.writer.append(stream, made)
        return list(written.tokens)

    async def stored(self) -> list[list[list[Any]]]:
        """The facts of ``orders``, each as its rows."""
        table = FactTable(self.services.catalogue["orders"])
        span = Range(0, MAX_TOKEN)
        page = await self.running.database.database.run(
            "stored", lambda txn: table.page(txn, span, None, 100_000)
        )
        return [[list(msgspec.structs.astuple(row)) for row in fact.rows] for fact in page.facts]


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, and that no other caller gets."""
    while True:
        port = _PORTS[next(_port_numbers) % len(_PORTS)]
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
