"""In-memory connections between two Twisted protocols, at a chosen pace, which can be cut at any byte.

Each end of a :class:`Link` is a transport that behaves like Twisted's TCP transports:
written bytes wait until the other side reads them, a producer is paused when too many
wait, a side that does not read makes the other one wait, ``loseConnection`` first writes
what is left, ``abortConnection`` drops it.

Bytes move only when the given clock advances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IConsumer, IPushProducer, ITransport
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.core.clock import Clock, DelayedCall


class Pace(Protocol):
    """The speed at which bytes travel."""

    def delay(self) -> float:
        """Seconds until the next piece arrives."""

    def piece(self, waiting: int) -> int:
        """The size of that piece, out of ``waiting`` bytes; at least one."""


class EvenPace:
    """A constant pace.

    :param seconds: delay of each piece
    :param piece_bytes: maximum size of a piece
    """

    def __init__(self, seconds: float = 0.0, piece_bytes: int = 1 << 30) -> None:
        self._seconds = seconds
        self._piece_bytes = piece_bytes

    def delay(self) -> float:
        """The same for each piece."""
        return self._seconds

    def piece(self, waiting: int) -> int:
        """All waiting bytes, up to the limit."""
        return min(waiting, self._piece_bytes)


IMMEDIATE = EvenPace()


class LinkAddress:
    """The address of an end, for logs."""

    def __init__(self, host: str, port: int = 0) -> None:
        self.host = host
        self.port = port


@implementer(ITransport, IConsumer, IPushProducer)
class LinkEnd:
    """One end of a link: the transport of its protocol.

    :ivar sent: called with everything that the protocol writes, when it is written
    :ivar lost: called after the protocol's ``connectionLost``
    :param window: bytes in flight or in the receiver's buffer, which the sender does not notice
    :param full: bytes beyond these at which the protocol's producer is paused
    """

    def __init__(
        self, clock: Clock, protocol: TwistedProtocol, name: str, pace: Pace, window: int, full: int
    ) -> None:
        self.protocol = protocol
        self.name = name
        self.peer: LinkEnd = self
        self.sent: Callable[[bytes], object] | None = None
        self.lost: Callable[[Failure], object] | None = None
        self.open = False
        self.disconnecting = False
        self._clock = clock
        self._pace = pace
        self._window = window
        self._full = full
        self._pending = bytearray()
        self._arrival: DelayedCall | None = None
        self._producer: Any = None
        self._producer_paused = False
        self._reading = True
        self._stalled = False
        self._cut = False
        self._unheard: Exception | None = None
        self._abandoned = False

    @property
    def waiting(self) -> int:
        """Number of bytes written here that the other side has not read yet."""
        return len(self._pending)

    # -- ITransport --------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes; dropped if the connection is lost."""
        if not self.open or not data:
            return
        if self.sent is not None:
            self.sent(data)
        if self._cut:
            return
        self._pending += data
        if self._producer is not None and not self._producer_paused and self._is_full():
            self._producer_paused = True
            self._producer.pauseProducing()
        self._move()

    def writeSequence(self, data: Any) -> None:
        """Send several pieces of bytes."""
        self.write(b"".join(data))

    def loseConnection(self, reason: Failure | None = None) -> None:
        """Stop reading, and close once everything written is sent."""
        if self.open and not self.disconnecting:
            self.disconnecting = True
            self._reading = False
            self._clock.callLater(0, self._close_when_written)

    def abortConnection(self) -> None:
        """Close now; bytes in flight in either direction are lost."""
        if self.open:
            self._drop()
            self.peer._drop()
            self._clock.callLater(0, self._lose, ConnectionAborted())
            self._end_peer(ConnectionLost())

    def getPeer(self) -> Any:
        """The address of the other end."""
        return LinkAddress(self.peer.name)

    def getHost(self) -> Any:
        """The address of this end."""
        return LinkAddress(self.name)

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing: writes are never delayed."""

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Do nothing: there are no keepalives."""

    # -- IConsumer ----------------------------------------------------------------------

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Pause a producer while too many bytes wait; only push producers are supported."""
        assert streaming
        self._producer = producer
        self._producer_paused = False

    def unregisterProducer(self) -> None:
        """Forget the producer."""
        self._producer = None

    # -- IPushProducer: reading ------------------------------------------------------------

    def pauseProducing(self) -> None:
        """Stop reading, so that the other side has to wait."""
        self._reading = False

    def resumeProducing(self) -> None:
        """Resume reading."""
        if self.open and not self.disconnecting:
            self._reading = True
            self.peer._move()

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    # -- for the link ----------------------------------------------------------------------

    def make(self) -> None:
        """Tell the protocol that it is connected."""
        self.open = True
        self.protocol.makeConnection(self)

    def abandon(self) -> None:
        """Never call the protocol again: the process at this end is gone."""
        self._abandoned = True

    def stall(self, stalled: bool) -> None:
        """Hold back everything sent from here, or let it arrive again."""
        self._stalled = stalled
        if not stalled and self._unheard is not None:
            self._end_peer(self._unheard)
        self._move()

    def arrive(self, count: int) -> None:
        """Deliver the first ``count`` waiting bytes to the other side now."""
        data = bytes(self._pending[:count])
        del self._pending[:count]
        if data and self.peer.open and not self.peer._abandoned:
            self.peer.protocol.dataReceived(data)

    def _lose(self, reason: Exception) -> None:
        if not self.open:
            return
        self._drop()
        self._tell(reason)

    def _tell(self, reason: Exception) -> None:
        self.open = False
        if not self._abandoned:
            failure = Failure(reason)
            self.protocol.connectionLost(failure)
            if self.lost is not None:
                self.lost(failure)

    def _drop(self) -> None:
        self._cut = True
        self._pending.clear()
        if self._arrival is not None and self._arrival.active():
            self._arrival.cancel()
        self._arrival = None

    def _is_full(self) -> bool:
        return len(self._pending) > self._window + self._full

    def _move(self) -> None:
        ready = self._pending and not self._stalled and self.peer._reading
        if ready and self._arrival is None:
            self._arrival = self._clock.callLater(self._pace.delay(), self._arrived)

    def _arrived(self) -> None:
        self._arrival = None
        if self._stalled or self._cut or not self.peer._reading:
            return  # resuming calls _move()
        self.arrive(self._pace.piece(len(self._pending)))
        if self.disconnecting:
            self._close_when_written()
        elif self._producer_paused and len(self._pending) <= self._window:
            self._producer_paused = False
            if self._producer is not None and self.open and not self._abandoned:
                self._producer.resumeProducing()
        self._move()

    def _close_when_written(self) -> None:
        if self.open and len(self._pending) <= self._window:
            self._tell(ConnectionDone())
        if not self.open and not self._pending:
            self._end_peer(ConnectionDone())

    def _end_peer(self, reason: Exception) -> None:
        """Close the other side, once anything gets through to it."""
        if self._stalled:
            self._unheard = reason
        else:
            self._clock.callLater(self._pace.delay(), self.peer._lose, reason)


class Link:
    """A connection between two protocols.

    :param pace: pace of both directions
    :param window: bytes in flight that a sender does not notice
    :param full: bytes beyond these at which a producer is paused
    """

    def __init__(
        self,
        clock: Clock,
        client: TwistedProtocol,
        server: TwistedProtocol,
        *,
        names: tuple[str, str] = ("client", "server"),
        pace: Pace = IMMEDIATE,
        window: int = 64 * 1024,
        full: int = 64 * 1024,
    ) -> None:
        self._clock = clock
        self._pace = pace
        self.client = LinkEnd(clock, client, names[0], pace, window, full)
        self.server = LinkEnd(clock, server, names[1], pace, window, full)
        self.client.peer, self.server.peer = self.server, self.client

    @property
    def open(self) -> bool:
        """Whether at least one end considers the connection open."""
        return self.client.open or self.server.open

    def connect(self) -> None:
        """Connect both protocols, the server's first."""
        self.server.make()
        self.client.make()

    def cut(self, first: int = 0) -> None:
        """Cut the connection: both ends lose it, each after its delay.

        :param first: bytes in flight that still arrive, in each direction
        """
        for end in (self.client, self.server):
            if first and end.peer._reading:
                end.arrive(first)
        for end in (self.client, self.server):
            end._drop()
            self._clock.callLater(self._pace.delay(), end._lose, ConnectionLost())

    def silence(self, silent: bool = True) -> None:
        """Deliver nothing any more, without closing either end (half open); or deliver again."""
        for end in (self.client, self.server):
            end.stall(silent)

    def crash(self, end: LinkEnd, *, noticed: bool = True) -> None:
        """End the process at one end.

        :param noticed: its operating system closes the connection, so the other end notices;
            otherwise the whole machine is gone, and nothing arrives any more
        """
        end.abandon()
        end._drop()
        end.open = False
        if noticed:
            self._clock.callLater(self._pace.delay(), end.peer._lose, ConnectionLost())
        else:
            end.peer._drop()
