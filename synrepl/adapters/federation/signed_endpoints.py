"""Makes routes of endpoints for other servers: their signatures and their limits are the same for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl

from synrepl.adapters.client_api.rate_limits import RateLimiter
from synrepl.adapters.federation.errors import (
    BadFederationBody,
    OriginNotAllowed,
    TooManyOfOrigin,
    TooManyUnknownKeys,
)
from synrepl.adapters.federation.policy import signature_of
from synrepl.adapters.http.messages import MAX_PARAMETERS, HttpAnswer, HttpRequest
from synrepl.adapters.http.routes import Handle, Route
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import Refused
from synrepl.core.jsons import BadJson, canonical_of_decoded, decode_exactly
from synrepl.federation.server_acl import ServerAcl
from synrepl.federation.x_matrix import XMatrix, verify_request
from synrepl.rooms import ServerKey

#: Size above which a body is decoded in a thread, in bytes.
MAX_AT_ONCE = 64 * 2**10

#: Maximum number of requests that wait for keys: those of servers that are known are to be answered meanwhile.
MAX_WAITING_FOR_KEYS = 50

#: Milliseconds after which a server that has too many requests may try again.
RETRY_MS = 1000


class RequestKeys(Protocol):
    """Knows the keys with which servers sign requests; see ``ServerKeyRing``."""

    def remembered(self, server: str, key_id: str) -> ServerKey | None: ...

    async def for_request(self, server: str, key_id: str) -> ServerKey | None: ...


class RunsAside(Protocol):
    """Runs work in a thread; see ``RunsInThreads``."""

    async def run(self, work: Callable[[], Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request of another server, whose signature was verified.

    :ivar origin: the server
    :ivar path: values of the placeholders of the route's pattern
    :ivar query: parameters; the first value of each
    :ivar body: as received; empty without one
    :ivar content: the JSON object in it; None without one
    """

    origin: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    uri: str
    body: bytes
    content: dict[str, Any] | None

    def values(self, name: str) -> list[str]:
        """All values of a parameter that may be repeated."""
        query = self.uri.partition("?")[2]
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        return [value for key, value in pairs if key == name]

    def json(self) -> dict[str, Any]:
        """The JSON object in the body.

        :raises BadFederationBody: there is none
        """
        if self.content is None:
            raise BadFederationBody(reason="there is none")
        return self.content


SignedHandle = Callable[[SignedRequest], Awaitable[HttpAnswer]]


@dataclass(frozen=True, slots=True)
class OriginLimits:
    """The limits of each server.

    :ivar requests: rate of its requests
    :ivar failures: rate of requests of an address that are signed wrongly, or not at all
    :ivar concurrent: maximum number of its requests that are answered at the same time
    """

    requests: RateLimiter
    failures: RateLimiter
    concurrent: int


class FederationEndpoints:
    """Makes routes of endpoints.

    :param server_name: of this server
    :param threads: for large bodies
    :param heard_of: is called with the name of each server that has sent a request
    :param address_of: the address of a request's client
    :param acl: says which servers are answered at all; None for all
    """

    def __init__(
        self,
        scheduler: TwistedScheduler,
        server_name: str,
        keys: RequestKeys,
        limits: OriginLimits,
        threads: RunsAside,
        heard_of: Callable[[str], Awaitable[None]],
        address_of: Callable[[HttpRequest], str],
        acl: ServerAcl | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._server_name = server_name
        self._keys = keys
        self._limits = limits
        self._threads = threads
        self._heard_of = heard_of
        self._address_of = address_of
        self._acl = acl
        self._waiting_for_keys = 0
        self._active: Counter[str] = Counter()
        #: Number of requests that were signed wrongly.
        self.unverified = 0

    def get(
        self,
        pattern: str,
        handle: SignedHandle,
        *,
        repeatable: Sequence[str] = (),
        waits: bool = False,
    ) -> Route:
        """An endpoint that reads.

        :param repeatable: names of parameters that may be repeated
        :param waits: its requests may wait for long
        """
        return Route(
            "GET", pattern, self._signed(handle), waits=waits, repeatable=frozenset(repeatable)
        )

    def put(
        self,
        pattern: str,
        handle: SignedHandle,
        *,
        repeatable: Sequence[str] = (),
        waits: bool = False,
    ) -> Route:
        """An endpoint with a body."""
        return self._with_body("PUT", pattern, handle, repeatable, waits)

    def post(
        self,
        pattern: str,
        handle: SignedHandle,
        *,
        repeatable: Sequence[str] = (),
        waits: bool = False,
    ) -> Route:
        """An endpoint with a body."""
        return self._with_body("POST", pattern, handle, repeatable, waits)

    def public(self, method: str, pattern: str, handle: Handle, *, waits: bool = False) -> Route:
        """An endpoint for requests without a signature, limited by address."""

        async def limited(request: HttpRequest) -> HttpAnswer:
            self._limits.requests.take(f"address {self._address_of(request)}")
            return await handle(request)

        return Route(method, pattern, limited, public=True, takes_body=method != "GET", waits=waits)

    def _with_body(
        self,
        method: str,
        pattern: str,
        handle: SignedHandle,
        repeatable: Sequence[str],
        waits: bool,
    ) -> Route:
        return Route(
            method,
            pattern,
            self._signed(handle),
            takes_body=True,
            waits=waits,
            repeatable=frozenset(repeatable),
        )

    def _signed(self, handle: SignedHandle) -> Handle:
        async def verified(request: HttpRequest) -> HttpAnswer:
            address = self._address_of(request)
            self._limits.failures.check(address)
            try:
                signed = await self._verified(request)
            except (BadFederationBody, Refused):
                self.unverified += 1
                self._limits.failures.take(address)
                raise
            return await self._answer(signed, handle)

        return verified

    async def _answer(self, request: SignedRequest, handle: SignedHandle) -> HttpAnswer:
        origin = request.origin
        self._limits.requests.take(origin)
        if self._active[origin] >= self._limits.concurrent:
            raise TooManyOfOrigin(
                origin=origin, limit=self._limits.concurrent, retry_after_ms=RETRY_MS
            )
        self._active[origin] += 1
        try:
            return await handle(request)
        finally:
            self._active[origin] -= 1
            if not self._active[origin]:
                del self._active[origin]

    async def _verified(self, request: HttpRequest) -> SignedRequest:
        """The request of the server that has signed it.

        :raises OriginNotAllowed: :raises BadFederationBody: :raises BadRequestSignature:
        """
        signature = signature_of(request.headers, self._server_name)
        if self._acl is not None and not self._acl.allows(signature.origin):
            raise OriginNotAllowed(origin=signature.origin)
        content, canonical = await self._content(request.body)
        key = await self._key(signature)
        verify_request(
            signature,
            key,
            request.method,
            request.uri,
            self._server_name,
            canonical,
            int(self._scheduler.seconds() * 1000),
        )
        self._scheduler.spawn("a server is up", _run(self._heard_of(signature.origin)))
        return SignedRequest(
            signature.origin, request.path, request.query, request.uri, request.body, content
        )

    async def _key(self, signature: XMatrix) -> ServerKey | None:
        remembered = self._keys.remembered(signature.origin, signature.key_id)
        if remembered is not None:
            return remembered
        if self._waiting_for_keys >= MAX_WAITING_FOR_KEYS:
            raise TooManyUnknownKeys(limit=MAX_WAITING_FOR_KEYS)
        self._waiting_for_keys += 1
        try:
            return await self._keys.for_request(signature.origin, signature.key_id)
        finally:
            self._waiting_for_keys -= 1

    async def _content(self, body: bytes) -> tuple[dict[str, Any] | None, bytes | None]:
        """The JSON object in a body, and its canonical JSON, which is what was signed."""
        if not body:
            return None, None
        if len(body) <= MAX_AT_ONCE:
            return _decoded(body)
        found: tuple[dict[str, Any], bytes] = await self._threads.run(lambda: _decoded(body))
        return found


async def _run(work: Awaitable[None]) -> None:
    await work


def _decoded(body: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        content, _ = decode_exactly(body, "the body")
        if not isinstance(content, dict):
            raise BadFederationBody(reason="it is no JSON object")
        return content, canonical_of_decoded(content)
    except (BadJson, ValueError) as error:
        raise BadFederationBody(reason=error) from None
