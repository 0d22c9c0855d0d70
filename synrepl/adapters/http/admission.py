"""Admission control: which requests are answered now, which are queued, which are refused.

Only complete requests take a slot. A request that is still arriving costs a
connection and the bytes received so far.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from synrepl.adapters.http.limits import HttpLimits, TooBusy
from synrepl.core.clock import Clock, DelayedCall
from synrepl.core.errors import SynreplError


class ArrivingBody(Protocol):
    """A request whose body is being received.

    :ivar size: bytes received so far
    :ivar began: time at which its head was complete, in seconds
    """

    size: int
    began: float

    def refuse(self, error: SynreplError) -> None:
        """Answer with an error, discard the body, and call :meth:`Admission.body_released`."""


class UnreadConnection(Protocol):
    """A connection whose client does not read its answer."""

    def abort(self) -> None:
        """Abort the connection."""


class Admission:
    """Counts the requests of a listener and enforces its limits.

    :ivar active: number of requests being answered
    :ivar waiting: number of requests of routes that wait; they do not count as active
    :ivar buffered: bytes of request bodies in memory
    :ivar unread: bytes of answers that clients have not read
    """

    def __init__(self, clock: Clock, limits: HttpLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._queue: dict[Deferred[None], DelayedCall] = {}
        self._arriving: dict[ArrivingBody, None] = {}
        self._unread: dict[UnreadConnection, int] = {}
        self.active = 0
        self.waiting = 0
        self.buffered = 0
        self.unread = 0

    # -- answering ------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of complete requests in the queue."""
        return len(self._queue)

    def begin_waiting(self) -> None:
        """Take a slot for a route that waits; :meth:`end_waiting` returns it.

        :raises TooBusy: none is left
        """
        if self.waiting >= self._limits.max_waiting:
            raise TooBusy()
        self.waiting += 1

    def end_waiting(self) -> None:
        """Return the slot of a route that waits."""
        self.waiting -= 1

    async def enter(self) -> None:
        """Wait in the queue for a slot among the active requests; :meth:`leave` returns it.

        :raises TooBusy: the queue is full, or the wait took too long
        """
        if self.active < self._limits.max_requests:
            self.active += 1
            return
        if len(self._queue) >= self._limits.max_queued:
            raise TooBusy()
        turn: Deferred[None] = Deferred(self._dequeue)
        self._queue[turn] = self._clock.callLater(self._limits.queue_s, self._time_out, turn)
        await turn

    def leave(self) -> None:
        """Return a slot; the first request in the queue gets it."""
        turn = next(iter(self._queue), None)
        if turn is None:
            self.active -= 1
        else:
            self._dequeue(turn)
            turn.callback(None)

    def _dequeue(self, turn: Deferred[None]) -> None:
        timer = self._queue.pop(turn)
        if timer.active():
            timer.cancel()

    def _time_out(self, turn: Deferred[None]) -> None:
        self._dequeue(turn)
        turn.errback(TooBusy())

    # -- arriving -------------------------------------------------------------------------

    def body_received(self, request: ArrivingBody, count: int) -> None:
        """Count received bytes of a body; beyond the limit, the slowest requests are refused."""
        self._arriving[request] = None
        request.size += count
        self.buffered += count
        while self.buffered > self._limits.max_buffered and self._arriving:
            self._slowest().refuse(TooBusy())

    def body_complete(self, request: ArrivingBody) -> None:
        """The body is complete; its bytes count until :meth:`body_released`."""
        self._arriving.pop(request, None)

    def body_released(self, request: ArrivingBody) -> None:
        """The body is no longer in memory."""
        self._arriving.pop(request, None)
        self.buffered -= request.size
        request.size = 0

    def _slowest(self) -> ArrivingBody:
        now = self._clock.seconds()

        def pace(request: ArrivingBody) -> float:
            return request.size / max(now - request.began, 1e-3)

        return min(self._arriving, key=pace)

    # -- leaving ----------------------------------------------------------------------------

    def answer_unread(self, connection: UnreadConnection, count: int) -> None:
        """Count bytes that a client has not read; beyond the limit, other connections are aborted.

        The connection that has read nothing for longest is aborted first.
        """
        self._unread[connection] = self._unread.get(connection, 0) + count
        self.unread += count
        while self.unread > self._limits.max_unread:
            victim = next((each for each in self._unread if each is not connection), None)
            if victim is None:
                return
            self.answer_read(victim)
            victim.abort()

    def answer_read(self, connection: UnreadConnection) -> None:
        """The client has read everything, or has disconnected."""
        self.unread -= self._unread.pop(connection, 0)
