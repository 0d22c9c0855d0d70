"""A TCP connection that carries a protocol session: its transport and its timer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from typing import Protocol as Interface

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.core.clock import DelayedCall, Scheduler
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.lines import LineChunk
from synrepl.wire.session import ProtocolSession

#: Seconds after which a closing connection is aborted if the peer does not read.
LINGER_S = 15.0


class Transport(Interface):
    """A TCP transport as a typing protocol; type checkers do not understand zope's interfaces."""

    def write(self, data: bytes) -> None: ...

    def getPeer(self) -> Any: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...

    def registerProducer(self, producer: object, streaming: bool) -> None: ...

    def unregisterProducer(self) -> None: ...

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def setTcpNoDelay(self, enabled: bool) -> None: ...

    def setTcpKeepAlive(self, enabled: bool) -> None: ...


@implementer(IPushProducer)
class LinePeer(LineOnlyReceiver):
    """One end of a replication connection.

    This is Twisted's line protocol over a protocol session, which enforces the limits in both
    directions. Only :meth:`dataReceived` is overridden: the session parses all lines of a read
    together, which costs a worker a ninth of the CPU of one call per line (ADR 6).

    Subclasses override :meth:`session_started`, :meth:`commands_received` and
    :meth:`session_ended`. While the transport is full, lines are queued in the
    session, which closes the connection when there are too many.
    """

    def __init__(self, scheduler: Scheduler, session: ProtocolSession) -> None:
        self.delimiter = b"\n"
        self.MAX_LENGTH = session.limits.line
        self.session = session
        self.scheduler = scheduler
        self._paused = False
        self._connected = False
        #: Reading is paused.
        self.is_reading_paused = False
        self._timer: DelayedCall | None = None
        self._linger: DelayedCall | None = None
        self._waiting: list[Deferred[None]] = []

    # -- for subclasses -----------------------------------------------------------------

    def session_started(self) -> None:
        """Called once the greeting is queued."""

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Called with the commands of one read."""

    def session_closing(self) -> None:
        """Called once when the session is closing: nothing more is read, and the last lines are sent."""

    def session_ended(self, reason: CloseReason) -> None:
        """Called once when the connection is lost."""

    # -- for subclasses and services to call ------------------------------------------------

    @property
    def address(self) -> str:
        """The peer's host and port."""
        peer = None if self.transport is None else self._transport().getPeer()
        host, port = getattr(peer, "host", None), getattr(peer, "port", None)
        return f"{host}:{port}" if host is not None else "?"

    @property
    def queued_lines(self) -> int:
        """Number of lines queued because the peer does not read."""
        return self.session.queued_lines

    @property
    def closing(self) -> bool:
        """Whether the session is closing: nothing more is read or sent."""
        return self.session.closing

    def send(self, command: Command) -> None:
        """Send a command; dropped if the session is closing."""
        self.session.send(command, self.scheduler.seconds())
        self._write()

    def send_chunk(self, chunk: LineChunk) -> None:
        """Send encoded lines."""
        self.session.send_chunk(chunk, self.scheduler.seconds())
        self._write()

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Close the connection, after an ERROR line if there is a text."""
        self.session.close(reason, text)
        self._write()

    def pause_reading(self) -> None:
        """Stop reading: TCP makes the peer wait, and its silence does not count as a timeout."""
        self.is_reading_paused = True
        self._transport().pauseProducing()

    def resume_reading(self) -> None:
        """Resume reading; the ping timeout restarts."""
        self.is_reading_paused = False
        if self._connected and not self.closing:
            self.session.not_reading(self.scheduler.seconds())
            self._transport().resumeProducing()

    async def room(self) -> bool:
        """Wait until the transport has room; False if the connection is closing or lost."""
        if self._paused and self._connected and not self.session.closing:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting
        return self._connected and not self.session.closing

    # -- LineOnlyReceiver -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Send the greeting, and start the timer."""
        self._connected = True
        transport = self._transport()
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        transport.registerProducer(self, True)
        self.session.start()
        self.session_started()
        self._write()
        self._arm()

    def dataReceived(self, data: bytes) -> None:
        """Parse all lines of a read."""
        commands = self.session.receive(data, self.scheduler.seconds())
        if commands:
            self.commands_received(commands)
        self._write()

    def lineReceived(self, line: bytes) -> None:
        """Parse one line."""
        self.dataReceived(line + self.delimiter)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Pass the line to the session, which refuses it."""
        self.dataReceived(line)

    def sendLine(self, line: bytes) -> None:
        """Send one encoded line."""
        self.send_chunk(LineChunk(line + self.delimiter, 1, len(line)))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End the session."""
        self._connected = False
        self.session.connection_lost()
        for timer in (self._timer, self._linger):
            if timer is not None and timer.active():
                timer.cancel()
        self._release()
        self.session_ended(self.session.closed_reason or CloseReason.PEER_CLOSED)

    # -- IPushProducer --------------------------------------------------------------------------

    def pauseProducing(self) -> None:
        """The transport is full."""
        self._paused = True

    def resumeProducing(self) -> None:
        """The transport has room."""
        self._paused = False
        self._write()
        if not self._paused:
            self._release()

    def stopProducing(self) -> None:
        """The transport is gone; connectionLost follows."""

    # -- implementation -----------------------------------------------------------------------

    def _transport(self) -> Transport:
        return cast(Transport, self.transport)

    def _write(self) -> None:
        if not self._connected:
            return
        if self.session.closing:
            self._end()
        elif not self._paused:
            data = self.session.data_to_send()
            if data:
                self._transport().write(data)

    def _end(self) -> None:
        """Write the remaining lines, ERROR last, and close; abort if the peer does not read them."""
        if self._linger is not None:
            return
        transport = self._transport()
        self._linger = self.scheduler.callLater(LINGER_S, self._abort)
        self.session_closing()
        transport.unregisterProducer()
        data = self.session.data_to_send()
        if data:
            transport.write(data)
        transport.loseConnection()
        self._release()

    def _abort(self) -> None:
        self._transport().abortConnection()

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.callback(None)

    def _arm(self) -> None:
        due = self.session.next_tick
        if due is not None:
            delay = max(0.0, due - self.scheduler.seconds())
            self._timer = self.scheduler.callLater(delay, self._tick)

    def _tick(self) -> None:
        now = self.scheduler.seconds()
        if self.is_reading_paused:
            self.session.not_reading(now)
        self.session.tick(now)
        self._write()
        self._arm()
