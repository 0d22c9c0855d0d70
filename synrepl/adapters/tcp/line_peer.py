"""A TCP connection that carries a wire session: the socket, the timer, and nothing else."""

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

#: How long a peer that does not read may keep a connection that is closing, in seconds.
LINGER_S = 15.0


class Transport(Interface):
    """What is needed of a TCP transport; zope's interfaces say nothing to a type checker."""

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
    """One end of a connection.

    Twisted's line protocol over a wire session, which keeps to the limits in both directions. Only
    :meth:`dataReceived` is not Twisted's: the session takes all lines of a read together, and a
    worker then needs a ninth of the CPU that a call for each line costs (ADR 6).

    Subclasses say what happens in :meth:`session_started`,
    :meth:`commands_received` and :meth:`session_ended`. Lines wait in the
    session while the transport is full; the session gives up on a peer that
    leaves too many waiting.
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
        """The greeting is on its way."""

    def commands_received(self, commands: Sequence[Command]) -> None:
        """The peer said something."""

    def session_closing(self) -> None:
        """Nothing more is read, and the last lines are on their way; called once."""

    def session_ended(self, reason: CloseReason) -> None:
        """The connection is gone; called once."""

    # -- what subclasses and services call --------------------------------------------------

    @property
    def address(self) -> str:
        """Where the peer is."""
        peer = None if self.transport is None else self._transport().getPeer()
        host, port = getattr(peer, "host", None), getattr(peer, "port", None)
        return f"{host}:{port}" if host is not None else "?"

    @property
    def queued_lines(self) -> int:
        """Lines that wait because the peer does not read."""
        return self.session.queued_lines

    @property
    def closing(self) -> bool:
        """True once the session is closing: nothing more is read or sent."""
        return self.session.closing

    def send(self, command: Command) -> None:
        """Send a command; dropped when the session is closing."""
        self.session.send(command, self.scheduler.seconds())
        self._write()

    def send_chunk(self, chunk: LineChunk) -> None:
        """Send lines that are encoded already."""
        self.session.send_chunk(chunk, self.scheduler.seconds())
        self._write()

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Close the connection, after an ERROR line if there is a text."""
        self.session.close(reason, text)
        self._write()

    def pause_reading(self) -> None:
        """Read no more for now: TCP makes the peer wait, and its silence does not count."""
        self.is_reading_paused = True
        self._transport().pauseProducing()

    def resume_reading(self) -> None:
        """Read again; the peer has the usual time to be heard."""
        self.is_reading_paused = False
        if self._connected and not self.closing:
            self.session.not_reading(self.scheduler.seconds())
            self._transport().resumeProducing()

    async def room(self) -> bool:
        """Wait until the transport takes more; False when it never will."""
        if self._paused and self._connected and not self.session.closing:
            waiting: Deferred[None] = Deferred()
            self._waiting.append(waiting)
            await waiting
        return self._connected and not self.session.closing

    # -- LineOnlyReceiver -----------------------------------------------------------------------

    def connectionMade(self) -> None:
        """Greet."""
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
        """All lines of a read to commands."""
        commands = self.session.receive(data, self.scheduler.seconds())
        if commands:
            self.commands_received(commands)
        self._write()

    def lineReceived(self, line: bytes) -> None:
        """One line to a command."""
        self.dataReceived(line + self.delimiter)

    def lineLengthExceeded(self, line: bytes) -> None:
        """Have the session refuse the line."""
        self.dataReceived(line)

    def sendLine(self, line: bytes) -> None:
        """Send one encoded line."""
        self.send_chunk(LineChunk(line + self.delimiter, 1, len(line)))

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The end, whoever wanted it."""
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

    # -- how it is done -----------------------------------------------------------------------

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
        """Write what is left, the ERROR last, and close; cut a peer that will not read it."""
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
