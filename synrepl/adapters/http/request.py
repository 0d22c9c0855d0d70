"""A request of the HTTP listener: checked, received and answered."""

# mypy: disable-error-code="no-untyped-call"
# (the methods of twisted.web's request have no types)

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http

from synrepl.adapters.http.admission import Admission
from synrepl.adapters.http.limits import BodyTooLarge, HttpLimits
from synrepl.adapters.http.messages import (
    HttpAnswer,
    HttpRequest,
    StreamedAnswer,
    answer_head,
    fields_of,
    parse_query,
)
from synrepl.adapters.http.paced_writing import PacedWriting, aclose
from synrepl.adapters.http.policy import ListenerPolicy, RequestHead
from synrepl.adapters.http.routes import Match
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.connection_table import ConnectionTable
from synrepl.core.errors import SynreplError
from synrepl.core.slices import Slices

_log = Logger()

#: Cost of a request, and of an immediate one, in units of :class:`Slices`.
_COST, _COST_OF_IMMEDIATE = 100, 20


#: Bodies up to this size are joined with the head, which takes less time than another write.
_JOINED = 65_536


class RequestServer(Protocol):
    """What a request needs of its listener; see :class:`~synrepl.adapters.http.server.HttpServer`."""

    scheduler: TwistedScheduler
    limits: HttpLimits
    policy: ListenerPolicy
    connections: ConnectionTable[Any]
    admission: Admission
    slices: Slices | None
    immediate_slices: Slices | None
    responses: Counter[tuple[str, int]]

    def match(self, head: RequestHead) -> Match: ...


class RequestChannel(Protocol):
    """What a request needs of its connection; see :class:`~synrepl.adapters.http.channel.HttpChannel`."""

    server: RequestServer
    local_address: str
    remote_address: str
    persistent: int

    def request_line(self) -> tuple[bytes, bytes, bytes]: ...

    def head_accepted(self) -> None: ...

    def active(self, always: bool = False) -> None: ...

    def answered_early(self) -> None: ...

    def write(self, data: bytes) -> None: ...

    def answer_written(self, count: int) -> None: ...

    def abort(self) -> None: ...


class ArrivingRequest(http.Request):
    """One request, from its headers to the end of its answer."""

    channel: RequestChannel  # type: ignore[assignment]

    def __init__(self, channel: RequestChannel, queued: object = False) -> None:
        super().__init__(channel, queued)  # type: ignore[arg-type]
        self._server = channel.server
        self._match: Match | None = None
        self._chunks: list[bytes] = []
        self._answered = False
        self._handling: Deferred[None] | None = None
        self._pace: PacedWriting | None = None
        #: The handler may be cancelled: it has not started, or its route only waits.
        self._is_cancellable = True
        self.size = 0
        self.began = 0.0

    def parseCookies(self) -> None:
        """Do nothing: a handler that wants cookies has the header."""

    def gotLength(self, length: int | None) -> None:
        """Check the headers, which are complete now."""
        self.content = None
        self.method, self.uri, self.clientproto = self.channel.request_line()
        path, _, self._query = self.uri.partition(b"?")
        self.began = self._server.scheduler.seconds()
        try:
            self._match = self._server.match(
                RequestHead(
                    self.method,
                    path,
                    self.clientproto,
                    self.requestHeaders,
                    self.channel.local_address,
                )
            )
            self._check_size(length or 0)
        except SynreplError as error:
            self.refuse(error)
        else:
            if length != 0:
                self.channel.head_accepted()

    def handleContentChunk(self, data: bytes) -> None:
        """Receive part of the body."""
        if self._answered:
            return
        try:
            self._check_size(self.size + len(data))
        except SynreplError as error:
            self.refuse(error)
            return
        self._chunks.append(data)
        self._server.admission.body_received(self, len(data))

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Answer the request, which is complete now."""
        self._server.admission.body_complete(self)
        if self._answered:
            self.finish()
            return
        self._handling = Deferred.fromCoroutine(self._handle())
        self._handling.addErrback(lambda failure: _log.failure("cannot answer", failure=failure))

    def connectionLost(self, reason: Failure) -> None:
        """Cancel a handler that only waits, since the client is gone; others run to completion."""
        super().connectionLost(reason)
        if self._pace is not None:
            self._pace.lost()
        if self._handling is None:
            self._release_body()
        elif self._is_cancellable:
            self._handling.cancel()

    def refuse(self, error: SynreplError) -> None:
        """Answer an incomplete request with an error; the rest of it is discarded."""
        self._release_body()
        self.requestHeaders.removeHeader(b"Expect")  # or twisted.web would send 100 Continue
        self.channel.persistent = 0
        self.channel.answered_early()
        statuses = {} if self._match is None else self._match.route.statuses
        self._send(self._server.policy.error_answer(error, statuses))

    def _check_size(self, size: int) -> None:
        assert self._match is not None
        limit = self._server.limits.max_body if self._match.route.takes_body else 0
        if size > limit:
            raise BodyTooLarge(limit=limit)

    async def _handle(self) -> None:
        assert self._match is not None
        route = self._match.route
        try:
            if route.unqueued or route.immediate:
                answer = await self._answer_unqueued()
            elif route.waits:
                answer = await self._answer_waiting()
            else:
                answer = await self._answer_queued()
        except Exception as error:
            if self._disconnected and isinstance(error, CancelledError):
                return  # by connectionLost
            answer = self._server.policy.error_answer(error, route.statuses)
        finally:
            self._release_body()
        self._send(answer)
        if isinstance(answer, StreamedAnswer):
            await self._stream(answer)
        elif not self._disconnected:
            self.finish()

    async def _stream(self, answer: StreamedAnswer) -> None:
        """Send the rest of an answer as fast as the client reads it; after an error, abort the connection."""
        self._is_cancellable = False
        pace = self._pace = PacedWriting(self._server.scheduler, self._server.limits.idle_s)
        pace.is_lost = self._disconnected
        if not pace.is_lost:
            self.registerProducer(pace, True)
        try:
            async for chunk in answer.chunks:
                if await pace.wait():
                    break
                self.write(chunk)
            else:
                if not pace.is_lost:
                    self.unregisterProducer()
                    self.finish()
                return
        except Exception as error:
            _log.failure("an answer is not sent to its end", failure=Failure(error))
        finally:
            await aclose(answer.chunks)
        if not self._disconnected:
            self.channel.abort()

    async def _answer(self) -> HttpAnswer:
        assert self._match is not None
        route, path = self._match
        body = b"".join(self._chunks)
        self._chunks.clear()
        query = parse_query(self._query, route.repeatable)
        remote = self.channel.remote_address
        method = self.method.decode("ascii", "replace")
        uri = self.uri.decode("ascii", "replace")
        return await route.handle(
            HttpRequest(path, query, self.requestHeaders, body, remote, method, uri)
        )

    async def _answer_unqueued(self) -> HttpAnswer:
        """Answer without queueing: in this reactor turn, if the budget allows it."""
        assert self._match is not None
        self.channel.active(always=True)
        if self._match.route.immediate:
            await _turn(self._server.immediate_slices, _COST_OF_IMMEDIATE)
        else:
            await _turn(self._server.slices, _COST)
        return await self._answer()

    async def _answer_waiting(self) -> HttpAnswer:
        admission = self._server.admission
        self.channel.active()
        admission.begin_waiting()
        try:
            await _turn(self._server.slices, _COST)
            return await self._answer()
        finally:
            admission.end_waiting()

    async def _answer_queued(self) -> HttpAnswer:
        admission = self._server.admission
        self.channel.active()
        await admission.enter()
        try:
            await _turn(self._server.slices, _COST)
            self._is_cancellable = False
            return await self._answer()
        finally:
            admission.leave()

    def _send(self, answer: HttpAnswer) -> None:
        pattern = "-" if self._match is None else self._match.route.pattern
        self._server.responses[pattern, answer.status] += 1
        self._answered = True
        if self._disconnected:
            return
        if isinstance(answer, StreamedAnswer):
            self.setResponseCode(answer.status)
            headers = (*answer.headers, *self._server.policy.headers)
            for name, value in fields_of(answer.content_type, headers).items():
                self.responseHeaders.setRawHeaders(
                    name.encode(), [value.encode("latin-1", "replace")]
                )
            self.write(answer.body)
            self.channel.answer_written(len(answer.body))
            return
        # Twisted's own way of writing headers takes several times as long.
        self.code, self.startedWriting = answer.status, 1
        head = answer_head(
            answer,
            self._server.policy.headers,
            version=self.clientproto,
            closes=not self.channel.persistent,
        )
        body = b"" if self.method == b"HEAD" else answer.body
        if len(body) <= _JOINED:
            self.channel.write(head + body)
        else:
            self.channel.write(head)
            self.channel.write(body)
        self.channel.answer_written(len(body))

    def _release_body(self) -> None:
        self._chunks.clear()
        self._server.admission.body_released(self)


async def _turn(slices: Slices | None, cost: int) -> None:
    """Wait until the budget of a reactor turn allows another request."""
    if slices is not None:
        await slices.step(cost)
