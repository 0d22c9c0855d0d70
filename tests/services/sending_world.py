"""Fixtures: a worker that sends commands, and fake connections of each dialect."""

from __future__ import annotations

from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.slices import Slices
from synrepl.services.sending.commands import Commands
from synrepl.services.sending.outgoing_commands import OutgoingCommands
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CURRENT, Dialect, Side
from synrepl.wire.session import ProtocolSession
from tests.services.world import RecordingLog, manual_clock

#: The time when a test begins, in seconds since the epoch.
NOW = 1_700_000_000.0


class FakeConnection:
    """A connection whose lines a test reads: a real session, or messages published on Redis.

    :ivar full: whether it accepts nothing at present
    :ivar closing: whether it will never accept anything again
    """

    def __init__(self, scheduler: TwistedScheduler, dialect: Dialect) -> None:
        self.full = self.closing = False
        self._scheduler = scheduler
        self._waiting: list[Any] = []
        self._published: list[str] = []
        self._session: ProtocolSession | None = None
        if dialect is not CURRENT:
            self._session = ProtocolSession(
                Side.CLIENT, server_name="x", dialect=dialect, now=scheduler.seconds()
            )
            self._session.start()
            self._session.data_to_send()

    def send(self, command: Command) -> None:
        """Encode and record the command."""
        if self._session is None:
            self._published.append(write_line(command, CURRENT).decode())
        else:
            self._session.send(command, self._scheduler.seconds())

    async def room(self) -> bool:
        """Wait for :meth:`free`."""
        if self.full and not self.closing:
            waiting = self._scheduler.promise()
            self._waiting.append(waiting)
            await waiting
        return not self.closing

    def free(self) -> None:
        """End the waits for room."""
        self.full = False
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            promise.callback(None)

    def lines(self) -> list[str]:
        """Return and forget the recorded lines."""
        if self._session is not None:
            return self._session.data_to_send().decode().splitlines()
        lines, self._published = self._published, []
        return lines


class CommandSender:
    """A worker that sends commands.

    :param clears_first: see :class:`.OutgoingCommands`
    """

    def __init__(self, dialect: Dialect, name: str = "w1", *, clears_first: bool = True) -> None:
        self.clock = manual_clock()
        self.clock.advance(NOW)
        self.scheduler = TwistedScheduler(self.clock)
        self.log = RecordingLog()
        self.dialect = dialect
        self.outgoing = OutgoingCommands(
            self.scheduler,
            Slices(self.scheduler),
            name,
            dialect,
            self.log,
            clears_first=clears_first,
        )
        self.commands = Commands(name, self.outgoing, self.scheduler.seconds, (dialect,))

    def connect(self) -> FakeConnection:
        """Make a connection."""
        connection = FakeConnection(self.scheduler, self.dialect)
        self.outgoing.connected(connection)
        self.settle()
        return connection

    def settle(self) -> None:
        """Send everything that can be sent."""
        for _ in range(20_000):
            if not self.clock.calls or self.clock.calls[0].getTime() > self.clock.seconds():
                return
            self.clock.advance(0)
