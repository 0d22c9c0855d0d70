"""One exchange with a server over HTTPS, with limits: connections, sizes, times and rates.

Nothing is followed, decompressed or kept beyond its limit, whatever a server sends.
"""

# mypy: disable-error-code="no-untyped-call"
# (parts of twisted.web have no types)

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    HTTPConnectionPool,
    ResponseDone,
    ResponseNeverReceived,
)
from twisted.web.http import PotentialDataLoss
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from synrepl.adapters.federation.endpoints import RouteEndpoint, ServerConnector
from synrepl.adapters.federation.spool import SpooledAnswer, SpoolUsage
from synrepl.adapters.http.client import BytesProducer
from synrepl.core.clock import DelayedCall
from synrepl.core.errors import ProtocolError, SynreplError, Unavailable
from synrepl.federation.discovery import ServerRoute
from synrepl.federation.errors import AnswerTooLarge

#: Maximum number of servers to which connections are kept, of these to one, and the seconds that they are kept.
MAX_SERVERS = 300
CONNECTIONS_OF_SERVER = 4
IDLE_S = 25

#: A body may take so many seconds, and a second more for each so many bytes.
GRACE_S = 20.0
RATE = 10_000


class ExchangeTooSlow(Unavailable):
    """{part} did not arrive within {seconds:g} s"""


class AnswerTooSlow(Unavailable):
    """its answer arrives too slowly: {size} bytes in {seconds:g} s"""


class AnswerEncoded(ProtocolError):
    """its answer is encoded as {coding!r}, which nobody asked for"""


@dataclass(frozen=True, slots=True)
class HttpsRequest:
    """A request to a server.

    :ivar uri: path and query
    :ivar headers: besides ``Host`` and ``User-Agent``
    :ivar timeout_s: seconds for the whole exchange
    :ivar head_timeout_s: seconds until the answer begins
    :ivar max_bytes: maximum size of the answer's body
    :ivar where: the server and the request, for errors
    """

    method: str
    uri: str
    headers: Mapping[str, str]
    content: bytes | None
    timeout_s: float
    head_timeout_s: float
    max_bytes: int
    where: str


@dataclass(frozen=True, slots=True)
class HttpsAnswer:
    """The answer of a server; who gets it closes its body."""

    status: int
    headers: Headers
    body: SpooledAnswer


class HttpsClient:
    """Makes exchanges, over connections that it keeps for a while.

    :param spool_dir: for large answers; None for the system's directory for temporary files
    :ivar usage: what answers take
    """

    def __init__(self, connector: ServerConnector, spool_dir: Path | None = None) -> None:
        self._connector = connector
        self._reactor = connector.reactor
        self._spool_dir = spool_dir
        self._pools: OrderedDict[tuple[str, str], HTTPConnectionPool] = OrderedDict()
        self._active: set[Deferred[HttpsAnswer]] = set()
        self._is_closed = False
        self.usage = SpoolUsage()

    async def exchange(self, route: ServerRoute, request: HttpsRequest) -> HttpsAnswer:
        """Send a request, and receive its whole answer, whatever its status.

        :raises SynreplError: by name, where the reason is known
        :raises Exception: of Twisted or OpenSSL; see :func:`reason_of`
        :raises CancelledError: the client is closed
        """
        if self._is_closed:
            raise CancelledError()
        whole = Deferred.fromCoroutine(self._exchange(route, request))
        _limit(self._reactor, whole, request.timeout_s, "its whole answer")
        self._active.add(whole)
        try:
            return await whole
        except Exception as error:  # which of Twisted's it is depends on how far the exchange was
            if self._is_closed:
                raise CancelledError() from error
            raise
        finally:
            self._active.discard(whole)

    async def close(self) -> None:
        """Cancel the exchanges that are under way, and close the connections that are kept."""
        self._is_closed = True
        for exchange in list(self._active):
            exchange.cancel()
        while self._pools:
            await self._pools.popitem()[1].closeCachedConnections()

    async def _exchange(self, route: ServerRoute, request: HttpsRequest) -> HttpsAnswer:
        response = await self._response(route, request)
        body = SpooledAnswer(self._spool_dir, self.usage, request.where)
        receiver = _Receiver(self._reactor, body, request.max_bytes, request.where)
        try:
            response.deliverBody(receiver)
            self._check_head(response, request, receiver)
            await receiver.done
        except BaseException:
            body.close()
            raise
        return HttpsAnswer(response.code, response.headers, body)

    @staticmethod
    def _check_head(response: Any, request: HttpsRequest, receiver: _Receiver) -> None:
        coding = b",".join(response.headers.getRawHeaders(b"Content-Encoding", []))
        if coding.strip().lower() not in (b"", b"identity"):
            receiver.fail(AnswerEncoded(coding=coding[:50].decode("ascii", "replace")))
        elif isinstance(response.length, int) and response.length > request.max_bytes:
            receiver.fail(AnswerTooLarge(where=request.where, limit=request.max_bytes))

    async def _response(self, route: ServerRoute, request: HttpsRequest) -> Any:
        """The head of the answer. A request whose connection was closed by the server just then is repeated once."""
        try:
            return await self._ask(route, request)
        except ResponseNeverReceived as error:
            if not all(each.check(ConnectionDone, ConnectionLost) for each in error.reasons):
                raise
        return await self._ask(route, request)

    async def _ask(self, route: ServerRoute, request: HttpsRequest) -> Any:
        agent = Agent.usingEndpointFactory(
            self._reactor, _OneEndpoint(self._connector.endpoint(route)), self._pool(route)
        )
        headers = Headers({"Host": [route.host_header], "User-Agent": ["synrepl"]})
        for name, value in request.headers.items():
            headers.setRawHeaders(name, [value])
        body = None if request.content is None else BytesProducer(request.content)
        url = f"https://{route.host_header}{request.uri}".encode("ascii")
        asking = agent.request(request.method.encode("ascii"), url, headers, body)
        _limit(self._reactor, asking, request.head_timeout_s, "an answer")
        return await asking

    def _pool(self, route: ServerRoute) -> HTTPConnectionPool:
        """The connections to a server. Those to the one that was not asked for longest are closed beyond the limit."""
        key = route.host_header, route.certificate_name
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = HTTPConnectionPool(self._reactor)
            pool.maxPersistentPerHost = CONNECTIONS_OF_SERVER
            pool.cachedConnectionTimeout = IDLE_S
        self._pools.move_to_end(key)
        while len(self._pools) > MAX_SERVERS:
            self._pools.popitem(last=False)[1].closeCachedConnections()
        return pool


def _limit(reactor: Any, work: Deferred[Any], seconds: float, part: str) -> None:
    """Cancel work that takes too long, which then fails with :class:`ExchangeTooSlow`."""

    def too_slow(result: object, seconds: float) -> Failure:
        return Failure(ExchangeTooSlow(part=part, seconds=seconds))

    work.addTimeout(seconds, reactor, too_slow)


def reason_of(error: Exception) -> str:
    """Why an exchange failed, for people."""
    reasons = getattr(error, "reasons", None)  # of twisted.web's ResponseFailed and others
    while reasons:
        error = next((each.value for each in reasons if _is_named(each)), reasons[0].value)
        reasons = getattr(error, "reasons", None)
    if isinstance(error, ConnectionDone):
        return "it closed the connection before its answer was complete"
    if isinstance(error, SSL.Error) and error.args and error.args[0]:
        return f"TLS failed: {error.args[0][0][2]}"
    return " ".join(str(error).split())[:300] or type(error).__name__


def _is_named(failure: Failure) -> bool:
    return failure.check(SynreplError) is not None


@implementer(IAgentEndpointFactory)
class _OneEndpoint:
    """Gives the same endpoint for every URL."""

    def __init__(self, endpoint: RouteEndpoint) -> None:
        self._endpoint = endpoint

    def endpointForURI(self, uri: object) -> RouteEndpoint:
        """The endpoint."""
        return self._endpoint


class _Receiver(Protocol):
    """Receives the body of an answer, up to a limit, and no slower than another.

    :ivar done: fires when the body is complete; fails if it breaks off
    """

    def __init__(self, reactor: Any, body: SpooledAnswer, limit: int, where: str) -> None:
        self._reactor = reactor
        self._body = body
        self._limit = limit
        self._where = where
        self._began = reactor.seconds()
        self._ended = False
        self._timer: DelayedCall = reactor.callLater(GRACE_S, self._look)
        self.done: Deferred[None] = Deferred(lambda _: self._end())

    def dataReceived(self, data: bytes) -> None:
        """Keep a part of the body."""
        if self._ended:
            return
        if self._body.size + len(data) > self._limit:
            self.fail(AnswerTooLarge(where=self._where, limit=self._limit))
            return
        try:
            self._body.write(data)
        except SynreplError as error:
            self.fail(error)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The body is complete, or has broken off."""
        if self._ended:
            return
        self._end()
        # Without a length, the end of the connection is the end; whether all is there, its JSON shows.
        if reason.check(ResponseDone, PotentialDataLoss):
            self.done.callback(None)
        else:
            self.done.errback(reason)

    def fail(self, error: SynreplError) -> None:
        """End with an error."""
        if not self._ended:
            self._end()
            self.done.errback(error)

    def _end(self) -> None:
        """Stop receiving; the connection is of no use if there is more to come."""
        if self._ended:
            return
        self._ended = True
        if self._timer.active():
            self._timer.cancel()
        # The connection aborts itself then; see _HeadGuard.
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()

    def _look(self) -> None:
        """Fail if the body is too slow, else look again when it would be."""
        seconds = self._reactor.seconds() - self._began
        left = GRACE_S + self._body.size / RATE - seconds
        if left > 0:
            self._timer = self._reactor.callLater(left, self._look)
        else:
            self.fail(AnswerTooSlow(size=self._body.size, seconds=round(seconds, 1)))
