"""A connection of the HTTP listener.

``twisted.web`` parses the requests. Those that it accepts although another parser might
read them differently (two body lengths, a folded header) are refused here. After such a
refusal, no further input of the connection is processed.
"""

# mypy: disable-error-code="no-untyped-call"
# (the methods of twisted.web's channel have no types)

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Any, cast

from twisted.internet.interfaces import IAddress, IWriteDescriptor
from twisted.python.failure import Failure
from twisted.web import http

from synrepl.adapters.http.limits import BadRequest, RequestTooSlow, TooBusy, TooManyConnections
from synrepl.adapters.http.messages import answer_head
from synrepl.adapters.http.request import ArrivingRequest, RequestServer
from synrepl.core.clock import DelayedCall
from synrepl.core.errors import SynreplError

#: Maximum number of digits in a Content-Length.
_LONGEST_NUMBER = 18


class ChannelPhase(Enum):
    """State of a connection; each state except COMPLETE has a deadline."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    #: The request is complete and not yet answered.
    COMPLETE = "whole"
    #: The request was answered before it was complete, or the connection is being closed.
    CLOSING = "ending"


class HttpChannel(http.HTTPChannel):
    """One connection of the listener.

    :param remote_address: key of the client's address in the connection table
    :ivar local_address: the address that the client connected to
    """

    transport: Any
    requestFactory = ArrivingRequest  # type: ignore[assignment]
    timeOut = None  # HttpChannel has its own deadlines

    def __init__(self, server: RequestServer, remote_address: str) -> None:
        super().__init__()
        self.server = server
        self.remote_address = remote_address
        self.factory = server
        self.local_address = ""
        self._phase = ChannelPhase.IDLE
        self._deadline = inf
        self._timer: DelayedCall | None = None
        self._timer_at = inf
        self._refused = False

    def request_line(self) -> tuple[bytes, bytes, bytes]:
        """Method, URI and version of the request whose headers were just read."""
        return cast("tuple[bytes, bytes, bytes]", (self._command, self._path, self._version))

    # -- opening and closing ----------------------------------------------------------------

    def connectionMade(self) -> None:
        """Enter the connection table."""
        self._host: IAddress = self.transport.getHost()
        self._peer: IAddress = self.transport.getPeer()
        self.local_address = str(getattr(self._host, "host", ""))
        self.server.connections.enter(self, self.remote_address)
        super().connectionMade()
        self._begin(ChannelPhase.IDLE, self.server.limits.idle_s)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Leave the connection table."""
        self._begin(ChannelPhase.CLOSING, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.server.admission.answer_read(self)
        self.server.connections.left(self)
        super().connectionLost(reason)

    def getHost(self) -> IAddress:
        """The address that the client connected to, without asking the system at each request."""
        return self._host

    def getPeer(self) -> IAddress:
        """The address of the client; likewise."""
        return self._peer

    def close_when_answered(self) -> None:
        """Close once the current request is answered."""
        self.persistent = 0
        if not self.requests:
            self.loseConnection()

    def displace(self) -> None:
        """Close to make room for another connection: this one is idle, or its request incomplete."""
        if self._phase is ChannelPhase.HEAD:
            self._refuse(TooManyConnections())
        elif self._phase is ChannelPhase.BODY:
            self._under_way().refuse(TooManyConnections())
        if self._waitingForTransport:
            self.abort()
        else:
            self._close()

    def abort(self) -> None:
        """Abort the connection: the client does not read."""
        self.transport.abortConnection()

    # -- receiving ----------------------------------------------------------------------------

    def dataReceived(self, data: bytes) -> None:
        """Parse input. The deadline starts with the first byte of a request; later bytes do not extend it."""
        if self._refused:
            return
        if self._phase is ChannelPhase.IDLE:
            self._begin(ChannelPhase.HEAD, self.server.limits.head_s)
        super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        """Handle a line of the head; a folded header is refused."""
        if self._refused:
            return
        if line[:1] in (b" ", b"\t"):
            self._refuse(BadRequest(reason="a header goes on in the next line"))
            return
        super().lineReceived(line)

    def headerReceived(self, line: bytes) -> bool:
        """Check a header before Twisted interprets it."""
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and len(value.strip()) > _LONGEST_NUMBER:
            self._refuse(BadRequest(reason="its Content-Length is no such number"))
            return False
        return cast(bool, super().headerReceived(line))

    def allHeadersReceived(self) -> None:
        """Refuse a body whose length is ambiguous."""
        headers = self.requests[-1].requestHeaders
        coding = headers.getRawHeaders(b"Transfer-Encoding", [])
        if coding:
            if [value.lower() for value in coding] != [b"chunked"]:
                self._refuse(BadRequest(reason="only 'chunked' is known as a Transfer-Encoding"))
            elif headers.hasHeader(b"Content-Length"):
                self._refuse(BadRequest(reason="it has Transfer-Encoding and Content-Length"))
            elif self._version != b"HTTP/1.1":
                self._refuse(BadRequest(reason="HTTP/1.0 has no Transfer-Encoding"))
        if not self._refused:
            super().allHeadersReceived()

    def allContentReceived(self) -> None:
        """The request is complete."""
        if not self._refused:
            self._begin(ChannelPhase.COMPLETE, None)
            super().allContentReceived()

    def rawDataReceived(self, data: bytes) -> None:
        """Handle part of a body, or of the next request."""
        if not self._refused:
            super().rawDataReceived(data)

    def head_accepted(self) -> None:
        """The head of a request has been accepted."""
        self._begin(ChannelPhase.BODY, self.server.limits.body_s)

    # -- sending ------------------------------------------------------------------------------

    def active(self, always: bool = False) -> None:
        """Protect the connection from displacement while a complete request is being answered.

        :param always: even if ``max_busy`` connections are active already
        :raises TooBusy: ``max_busy`` connections are active already
        """
        connections = self.server.connections
        if not always and connections.busy >= self.server.limits.max_busy:
            raise TooBusy()
        connections.active(self)

    def answer_written(self, count: int) -> None:
        """Send an answer at once, not in the reactor's next turn; count bytes that the client does not read."""
        if self._waitingForTransport:
            self.server.admission.answer_unread(self, count)
        elif IWriteDescriptor.providedBy(self.transport):
            self.transport.doWrite()  # an error comes again when the reactor tries

    def resumeProducing(self) -> None:
        """The transport has sent everything that was written."""
        self.server.admission.answer_read(self)
        super().resumeProducing()

    def requestDone(self, request: http.Request) -> None:
        """Await the next request, or give the client time to read the last answer."""
        limits = self.server.limits
        self.server.connections.idle(self)
        self._begin(ChannelPhase.IDLE if self.persistent else ChannelPhase.CLOSING, limits.idle_s)
        super().requestDone(request)
        if self._phase is ChannelPhase.IDLE and (self.requests or self._buffer):
            self._begin(
                ChannelPhase.HEAD, limits.head_s
            )  # part of the next request is here already

    def answered_early(self) -> None:
        """The request was answered before it was complete; give the client time to read the answer."""
        self._begin(ChannelPhase.CLOSING, self.server.limits.idle_s)

    def _respondToBadRequestAndDisconnect(self) -> None:
        self._refuse(BadRequest(reason="its request line, a header or a chunk is malformed"))

    def _refuse(self, error: SynreplError) -> None:
        """Answer with an error and close; no further input is processed."""
        if self._refused:
            return
        self._refused = True
        if self._phase is ChannelPhase.CLOSING:  # already answered
            self._close()
            return
        answer = self.server.policy.error_answer(error, {})
        self.server.responses["-", answer.status] += 1
        head = answer_head(answer, self.server.policy.headers, version=b"HTTP/1.1", closes=True)
        self.transport.write(head + answer.body)
        self._close()

    def _close(self) -> None:
        """Close once what was written has gone out, or it has taken too long."""
        self._begin(ChannelPhase.CLOSING, self.server.limits.idle_s)
        self.server.connections.leaving(self)
        self.loseConnection()

    def _under_way(self) -> ArrivingRequest:
        return cast(ArrivingRequest, self.requests[-1])

    # -- deadlines ----------------------------------------------------------------------------

    def _begin(self, phase: ChannelPhase, seconds: float | None) -> None:
        """Begin a phase; it must end before ``seconds`` have passed.

        Most phases are short, so a timer that ends no later is kept, and looks at the deadline then.
        """
        self._phase = phase
        if seconds is None:
            self._deadline = inf
            return
        self._deadline = self.server.scheduler.seconds() + seconds
        if self._timer is None or self._timer_at > self._deadline:
            self._start_timer()

    def _start_timer(self) -> None:
        scheduler = self.server.scheduler
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = scheduler.callLater(self._deadline - scheduler.seconds(), self._look_at_phase)

    def _look_at_phase(self) -> None:
        self._timer = None
        if self._deadline > self._timer_at:
            if self._deadline < inf:
                self._start_timer()
            return
        self._too_late()

    def _too_late(self) -> None:
        limits = self.server.limits
        if self._phase is ChannelPhase.IDLE:
            self._close()
        elif self._phase is ChannelPhase.HEAD:
            self._refuse(RequestTooSlow(part="head", seconds=limits.head_s))
        elif self._phase is ChannelPhase.BODY:
            self._look_at_body()
        else:
            self.abort()

    def _look_at_body(self) -> None:
        """Refuse a body that arrives too slowly, else extend the deadline."""
        request, limits = self._under_way(), self.server.limits
        allowed = limits.body_s + request.size / limits.body_rate
        left = request.began + allowed - self.server.scheduler.seconds()
        if left > 0:
            self._begin(ChannelPhase.BODY, left)
            return
        request.refuse(RequestTooSlow(part="body", seconds=round(allowed, 1)))
        self._close()
