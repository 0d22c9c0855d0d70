"""The HTTP listener: a thin router over ``twisted.web``, with limits.

A request is judged as soon as its headers are there: whoever lacks the secret,
asks for nothing that exists, or announces too much is answered at once, and
what it still sends is dropped. Bodies are held in memory, so all of them
together have a limit too.

=====================  ========================================================
limit                  what happens beyond it
=====================  ========================================================
request line, headers  400, closed (16 KiB together, by ``twisted.web``)
``max_body``           413, by Content-Length at once, else while it streams
``max_requests``       503: requests being received or answered at a time
``max_waiting``        503: the same, of routes that wait for what others do
``max_buffered``       503: bytes of bodies of all requests together
``max_connections``    closed without an answer
``arrival_s``          closed: the time a request may take to arrive whole
=====================  ========================================================
"""

# mypy: disable-error-code="no-untyped-call"
# (the methods of twisted.web's channel and request have no types)

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http

from synrepl.adapters.http_errors import (
    BodyTooLarge,
    CrossSite,
    TooBusy,
    Unauthorized,
    error_answer,
)
from synrepl.adapters.http_messages import HttpAnswer, HttpRequest, one_header, parse_query
from synrepl.adapters.http_routes import Match, Route, Router
from synrepl.core.clock import Clock
from synrepl.core.errors import SynreplError

_log = Logger()


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a listener puts up with; see the table of the module."""

    max_body: int = 16 * 2**20
    max_requests: int = 100
    max_waiting: int = 500
    max_buffered: int = 64 * 2**20
    max_connections: int = 1_000
    arrival_s: float = 30.0


class HttpServer(http.HTTPFactory):
    """Makes the connections of one listener and counts what they do.

    :param secret: what requests must carry as ``Authorization: Bearer …``; None
        lets everybody in
    :ivar responses: answers by (pattern of the route, status); ``-`` for no route
    :ivar active: requests being received or answered
    :ivar waiting: those of routes that wait, which are not among the active
    """

    noisy = False

    def __init__(
        self,
        clock: Clock,
        routes: Sequence[Route],
        secret: str | None = None,
        limits: HttpLimits = HttpLimits(),
    ) -> None:
        super().__init__(timeout=limits.arrival_s, reactor=clock)  # type: ignore[arg-type]
        self.limits = limits
        self._router = Router(routes)
        self._secret = None if secret is None else secret.encode()
        self.responses: Counter[tuple[str, int]] = Counter()
        self.active = 0
        self.waiting = 0
        self.buffered = 0
        self.connections: set[_Channel] = set()

    def buildProtocol(self, addr: IAddress | None) -> _Channel | None:  # type: ignore[override]
        """A connection, unless there are too many."""
        if len(self.connections) >= self.limits.max_connections:
            return None
        return _Channel(self)

    def serve(self, routes: Sequence[Route]) -> None:
        """Answer by other routes from now on."""
        self._router = Router(routes)

    def startFactory(self) -> None:
        """No access log, and no timer for one."""

    def stopFactory(self) -> None:
        """See :meth:`startFactory`."""

    def log(self, request: http.Request) -> None:
        """See :meth:`startFactory`."""

    def close_connections(self) -> None:
        """Close what is idle, and the rest once it is answered."""
        for channel in list(self.connections):
            channel.close_soon()

    def match(self, method: bytes, path: bytes, request: http.Request) -> Match:
        """The route of a request that may be answered.

        :raises Unauthorized: :raises CrossSite: :raises NoSuchPath: :raises MethodNotAllowed:
        """
        try:
            found = self._router.find(method.decode("ascii", "replace"), path)
        except SynreplError:
            self._check_secret(request)
            raise
        if not found.route.public:
            self._check_secret(request)
        if found.route.takes_body:
            _check_origin(request)
        return found

    def admit(self, route: Route) -> None:
        """Count a request; :meth:`dismiss` it once it is answered.

        :raises TooBusy: there are too many of its kind
        """
        if route.waits:
            if self.waiting >= self.limits.max_waiting:
                raise TooBusy()
            self.waiting += 1
        else:
            if self.active >= self.limits.max_requests:
                raise TooBusy()
            self.active += 1

    def dismiss(self, route: Route) -> None:
        """Count a request no more."""
        if route.waits:
            self.waiting -= 1
        else:
            self.active -= 1

    def _check_secret(self, request: http.Request) -> None:
        if self._secret is None:
            return
        given = request.requestHeaders.getRawHeaders(b"Authorization", [])
        kind, _, value = (given[0] if len(given) == 1 else b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(value.strip(), self._secret):
            raise Unauthorized()


def _check_origin(request: http.Request) -> None:
    """Refuse what a page of another site makes a browser send, for the listener may be on loopback."""
    origin = one_header(request.requestHeaders, "Origin")
    host = one_header(request.requestHeaders, "Host")
    if origin is not None and origin.partition("://")[2] != host:
        raise CrossSite(origin=origin[:100])


class _Request(http.Request):
    """One request: judged, received, answered."""

    channel: _Channel

    def __init__(self, channel: _Channel, queued: object = False) -> None:
        super().__init__(channel, queued)
        self._server = channel.server
        self._match: Match | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._counted = False
        self._answered = False
        self._handling: Deferred[None] | None = None

    def gotLength(self, length: int | None) -> None:
        """The headers are there: judge them."""
        self.content = None
        self.method, self.uri, self.clientproto = self.channel.request_line()
        path, _, self._query = self.uri.partition(b"?")
        server = self._server
        try:
            self._match = server.match(self.method, path, self)
            self._check_size(length or 0)
            server.admit(self._match.route)
        except SynreplError as error:
            self._refuse(error)
        else:
            self._counted = True

    def handleContentChunk(self, data: bytes) -> None:
        """Part of the body came."""
        if self._answered:
            return
        self._size += len(data)
        self._server.buffered += len(data)
        self._chunks.append(data)
        try:
            self._check_size(self._size)
            if self._server.buffered > self._server.limits.max_buffered:
                raise TooBusy()
        except SynreplError as error:
            self._refuse(error)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """The request is there, whole."""
        if self._answered:
            self.finish()
            return
        self._handling = Deferred.fromCoroutine(self._handle())
        self._handling.addErrback(lambda failure: _log.failure("cannot answer", failure=failure))

    def connectionLost(self, reason: Failure) -> None:
        """The client is gone: a handler that only waits ends; what another one does may be done."""
        super().connectionLost(reason)
        if self._handling is None:
            self._release()
        elif self._match is not None and self._match.route.waits:
            self._handling.cancel()

    def _check_size(self, size: int) -> None:
        assert self._match is not None
        limit = self._server.limits.max_body if self._match.route.takes_body else 0
        if size > limit:
            raise BodyTooLarge(limit=limit)

    async def _handle(self) -> None:
        assert self._match is not None
        route, path = self._match
        body = b"".join(self._chunks)
        self._chunks.clear()
        try:
            query = parse_query(self._query)
            answer = await route.handle(HttpRequest(path, query, self.requestHeaders, body))
        except Exception as error:
            if self._disconnected and isinstance(error, CancelledError):
                return  # by connectionLost
            answer = error_answer(error, route.statuses)
        finally:
            self._release()
        self._send(answer)
        if not self._disconnected:
            self.finish()

    def _refuse(self, error: SynreplError) -> None:
        """Answer before the request is there; what still comes of it is dropped."""
        self._release()
        self._chunks.clear()
        self.requestHeaders.removeHeader(b"Expect")  # or it would be told to continue
        self.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        self.channel.persistent = 0
        self._send(error_answer(error, {} if self._match is None else self._match.route.statuses))

    def _send(self, answer: HttpAnswer) -> None:
        pattern = "-" if self._match is None else self._match.route.pattern
        self._server.responses[pattern, answer.status] += 1
        self._answered = True
        if self._disconnected:
            return
        # Twisted's own phrases lack 422 and others, which it calls unknown.
        self.setResponseCode(answer.status, HTTPStatus(answer.status).phrase.encode())
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *answer.headers,
        ]
        for name, value in headers:
            self.responseHeaders.setRawHeaders(name.encode(), [value.encode("latin-1", "replace")])
        self.write(answer.body)

    def _release(self) -> None:
        self._server.buffered -= self._size
        self._size = 0
        if self._counted:
            self._counted = False
            assert self._match is not None
            self._server.dismiss(self._match.route)


class _Channel(http.HTTPChannel):
    """One connection."""

    requestFactory = _Request  # type: ignore[assignment]

    def __init__(self, server: HttpServer) -> None:
        super().__init__()
        self.factory = server
        self.server = server
        self.callLater = server.reactor.callLater  # type: ignore[method-assign,assignment]
        self.timeOut = server.limits.arrival_s  # type: ignore[assignment]
        self._arriving = False

    def request_line(self) -> tuple[bytes, bytes, bytes]:
        """Method, URI and version of the request whose headers were just read."""
        return cast("tuple[bytes, bytes, bytes]", (self._command, self._path, self._version))

    def connectionMade(self) -> None:
        """Count it."""
        self.server.connections.add(self)
        super().connectionMade()

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """Count it no more."""
        self.server.connections.discard(self)
        super().connectionLost(reason)

    def resetTimeout(self) -> None:
        """The clock starts with a request's first byte; bytes that dribble in buy no time."""
        if not self._arriving:
            self._arriving = True
            super().resetTimeout()

    def requestDone(self, request: http.Request) -> None:
        """The next request may come, or the client has this long to read the last answer."""
        self._arriving = False
        super().requestDone(request)
        if not self.persistent:
            self.setTimeout(self.timeOut)

    def close_soon(self) -> None:
        """Close once the request under way is answered."""
        self.persistent = 0
        if not self.requests:
            self.loseConnection()
