"""HTTP client for requests to other processes: persistent connections, timeouts and bounded answers."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import UserError
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers
from twisted.web.iweb import IBodyProducer
from zope.interface import implementer

from synrepl.core.errors import ProtocolError, Unavailable

#: Timeout for connecting, in seconds.
CONNECT_S = 5.0

#: Maximum size of an answer, in bytes.
MAX_ANSWER = 64 * 2**20


class MasterAway(Unavailable):
    """the master at {where} cannot be reached: {reason}"""


class AnswerTooLong(ProtocolError):
    """the answer of {where} is longer than {limit} bytes; ask for fewer rows"""


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes


class HttpClient:
    """Sends requests to one server.

    :param base_url: such as ``http://127.0.0.1:9093``, without a path
    :param secret: sent as ``Authorization: Bearer …``
    :param timeout_s: for a whole exchange, including connecting
    :param max_answer: maximum size of an answer, in bytes
    :param connections: maximum number of persistent connections
    """

    def __init__(
        self,
        reactor: Any,
        base_url: str,
        secret: str | None = None,
        timeout_s: float = 30.0,
        max_answer: int = MAX_ANSWER,
        connections: int = 4,
    ) -> None:
        self.where = base_url.rstrip("/")
        self._reactor = reactor
        self._timeout_s = timeout_s
        self._max_answer = max_answer
        self._pool = HTTPConnectionPool(reactor, persistent=True)
        self._pool.maxPersistentPerHost = connections
        self._agent = Agent(reactor, connectTimeout=CONNECT_S, pool=self._pool)
        self._headers = Headers({"Accept": ["application/json"], "User-Agent": ["synrepl"]})
        if secret is not None:
            self._headers.addRawHeader("Authorization", f"Bearer {secret}")

    async def get(self, path: str, query: Mapping[str, str | int]) -> Answer:
        """GET a path.

        :raises MasterAway: no connection, no answer in time, or the answer broke off
        :raises AnswerTooLong:
        """
        return await self._ask(b"GET", f"{path}?{urlencode(query)}", None)

    async def post(self, path: str, body: bytes) -> Answer:
        """POST JSON to a path. It may have been received although this raises.

        :raises MasterAway: :raises AnswerTooLong: as :meth:`get`
        """
        return await self._ask(b"POST", path, body)

    async def _ask(self, method: bytes, target: str, body: bytes | None) -> Answer:
        url = f"{self.where}{target}".encode("ascii")
        exchange = Deferred.fromCoroutine(self._exchange(method, url, body))
        exchange.addTimeout(self._timeout_s, self._reactor, self._too_slow)
        try:
            return await exchange
        except (AnswerTooLong, MasterAway):
            raise
        except Exception as error:  # twisted.web does not document what it may raise
            raise MasterAway(where=self.where, reason=_reason(error)) from error

    async def close(self) -> None:
        """Close the persistent connections."""
        await self._pool.closeCachedConnections()

    def _too_slow(self, result: object, seconds: float) -> Failure:
        reason = f"no answer within {seconds:g} s"
        return Failure(MasterAway(where=self.where, reason=reason))

    async def _exchange(self, method: bytes, url: bytes, body: bytes | None) -> Answer:
        sent: Any = None if body is None else BytesProducer(body)
        response: Any = await self._agent.request(method, url, self._headers, sent)
        received = _ResponseBody(
            AnswerTooLong(where=self.where, limit=self._max_answer), self._max_answer
        )
        response.deliverBody(received)
        return Answer(response.code, await received.body)


@implementer(IBodyProducer)
class BytesProducer:
    """A body that is in memory, sent at once."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.length = len(body)

    def startProducing(self, consumer: Any) -> Deferred[None]:
        """Send the body."""
        consumer.write(self._body)
        return succeed(None)

    def pauseProducing(self) -> None:
        """Do nothing: everything was sent."""

    def resumeProducing(self) -> None:
        """Do nothing."""

    def stopProducing(self) -> None:
        """Do nothing."""


class _ResponseBody(Protocol):
    """Collects the body of an answer, up to a limit."""

    def __init__(self, too_long: AnswerTooLong, limit: int) -> None:
        self._too_long = too_long
        self._left = limit
        self._parts: list[bytes] = []
        self._done = False
        self.body: Deferred[bytes] = Deferred(lambda _: self._abort())

    def dataReceived(self, data: bytes) -> None:
        """Collect a part of the body."""
        self._left -= len(data)
        if self._left >= 0:
            self._parts.append(data)
        elif not self._done:
            self._done = True
            self._abort()
            self.body.errback(self._too_long)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Deliver the complete body, or the error if it broke off."""
        if self._done or self.body.called:
            return
        self._done = True
        if reason.check(ResponseDone):
            self.body.callback(b"".join(self._parts))
        else:
            self.body.errback(reason)

    def _abort(self) -> None:
        transport = cast(
            Any, self.transport
        )  # the transport of a response lacks parts of a TCP transport
        if transport is not None:
            transport.loseConnection()


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return f"no connection within {CONNECT_S:g} s"
    reasons = getattr(error, "reasons", None)  # of twisted.web's ResponseFailed
    cause = reasons[0].value if reasons else error
    return " ".join(str(cause).split())[:200] or type(cause).__name__


def status_text(status: int) -> str:
    """``503 Service Unavailable``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
