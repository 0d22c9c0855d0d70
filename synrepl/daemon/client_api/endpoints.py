"""Makes routes of endpoints: access tokens, rate limits and positions are the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl

from synrepl.adapters.client_api.bodies import access_token, body_as, json_object
from synrepl.adapters.client_api.errors import UnknownToken
from synrepl.adapters.client_api.rate_limits import RateLimiter
from synrepl.adapters.client_api.write_positions import (
    WritePositions,
    remembered_positions,
    required_positions,
    with_cookie,
)
from synrepl.adapters.http.messages import MAX_PARAMETERS, HttpAnswer, HttpRequest
from synrepl.adapters.http.routes import Handle, Route
from synrepl.core.errors import InputError, Refused, Unavailable
from synrepl.services.clients.identity import ClientChecker, ClientIdentity

#: Prefixes of the endpoints that all versions of the specification since r0 have.
CLIENT = ("/_matrix/client/v3", "/_matrix/client/r0")

#: Parameters of any endpoint that may be repeated. They name servers to ask.
_REPEATABLE = frozenset({"via", "server_name"})

T = TypeVar("T")


class BadParameter(InputError):
    """the parameter {name!r} of this URL is not acceptable: {reason}"""


class NotOwnUser(Refused):
    """{user_id} is not the user of this access token"""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client that is logged in.

    :ivar access_token: that it was made with
    :ivar path: values of the placeholders of the route's pattern
    :ivar uri: path and query as they were sent
    """

    identity: ClientIdentity
    access_token: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    uri: str = ""

    @property
    def via(self) -> list[str]:
        """The servers that the client names, each once."""
        query = self.uri.partition("?")[2]
        pairs = parse_qsl(query, max_num_fields=MAX_PARAMETERS)
        return list(dict.fromkeys(value for name, value in pairs if name in _REPEATABLE))

    @property
    def user_id(self) -> str:
        """The user who asks."""
        return self.identity.user_id

    def json(self) -> dict[str, Any]:
        """The body, which is a JSON object.

        :raises BadJson: :raises BadClientBody:
        """
        return json_object(self.body)

    def body_as(self, kind: type[T]) -> T:
        """The body as a msgspec struct.

        :raises BadJson: :raises BadClientBody: a member is missing or of the wrong type
        """
        return body_as(kind, self.body)

    def number(self, name: str, default: int, lowest: int, highest: int) -> int:
        """A whole number of the URL; one above ``highest`` counts as that.

        :raises BadParameter: it is not a number, or below ``lowest``
        """
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < lowest:
            raise BadParameter(name=name, reason=f"give a whole number from {lowest}")
        return min(int(text), highest)

    def flag(self, name: str) -> bool:
        """A boolean of the URL; False without it.

        :raises BadParameter: it is neither ``true`` nor ``false``
        """
        text = self.query.get(name, "false")
        if text not in ("true", "false"):
            raise BadParameter(name=name, reason="give 'true' or 'false'")
        return text == "true"

    def check_own_user(self, placeholder: str = "user") -> None:
        """Check that the user in the path is the one who asks.

        :raises NotOwnUser:
        """
        if self.path[placeholder] != self.user_id:
            raise NotOwnUser(user_id=self.path[placeholder][:255])


ClientHandle = Callable[[ClientRequest], Coroutine[Any, Any, HttpAnswer]]


class WaitsForPositions(Protocol):
    """Waits until this process has what was written elsewhere."""

    async def wait_until_covered(self, positions: WritePositions) -> None:
        """Wait for a bounded time.

        :raises Unavailable: it took too long
        """


@dataclass(frozen=True, slots=True)
class ClientRateLimiters:
    """The rate limits of a listener.

    :ivar logins: attempts to log in, and other requests without an access token, by address
    :ivar requests: all requests of a user
    :ivar writes: those that change something, too
    """

    logins: RateLimiter
    requests: RateLimiter
    writes: RateLimiter


class Endpoints:
    """Makes routes of endpoints.

    Each endpoint is found below all of its prefixes. A method that may change something counts as a write.

    :param address_of: the address of a request's client, by which logins are limited
    """

    def __init__(
        self,
        checker: ClientChecker,
        limits: ClientRateLimiters,
        waiting: WaitsForPositions,
        address_of: Callable[[HttpRequest], str],
    ) -> None:
        self._checker = checker
        self._limits = limits
        self._waiting = waiting
        self._address_of = address_of

    def get(
        self,
        path: str,
        handle: ClientHandle,
        prefixes: Sequence[str] = CLIENT,
        *,
        waits: bool = False,
    ) -> list[Route]:
        """An endpoint that reads; with ``waits``, one whose requests may wait for a long time."""
        return _routes("GET", path, prefixes, self._reading(handle), waits=waits)

    def put(
        self,
        path: str,
        handle: ClientHandle,
        prefixes: Sequence[str] = CLIENT,
        *,
        waits: bool = False,
    ) -> list[Route]:
        """An endpoint that writes; with ``waits``, one whose requests may wait for other servers."""
        return _routes("PUT", path, prefixes, self._writing(handle), waits=waits)

    def post(
        self,
        path: str,
        handle: ClientHandle,
        prefixes: Sequence[str] = CLIENT,
        *,
        waits: bool = False,
    ) -> list[Route]:
        """An endpoint that writes; with ``waits``, one whose requests may wait for other servers."""
        return _routes("POST", path, prefixes, self._writing(handle), waits=waits)

    def post_query(
        self,
        path: str,
        handle: ClientHandle,
        prefixes: Sequence[str] = CLIENT,
        *,
        waits: bool = False,
    ) -> list[Route]:
        """An endpoint that reads by POST, because what it asks is long."""
        return _routes("POST", path, prefixes, self._reading(handle), waits=waits)

    def delete(
        self, path: str, handle: ClientHandle, prefixes: Sequence[str] = CLIENT
    ) -> list[Route]:
        """An endpoint that writes."""
        return _routes("DELETE", path, prefixes, self._writing(handle))

    def public(
        self, method: str, path: str, handle: Handle, prefixes: Sequence[str] = CLIENT
    ) -> list[Route]:
        """An endpoint for clients without an access token."""

        async def limited(request: HttpRequest) -> HttpAnswer:
            self._limits.logins.take(self._address_of(request))
            return await handle(request)

        return _routes(method, path, prefixes, limited)

    def _reading(self, handle: ClientHandle) -> Handle:
        async def read(request: HttpRequest) -> HttpAnswer:
            asked = await self._identified(request)
            await self._catch_up(request)
            return await handle(asked)

        return read

    def _writing(self, handle: ClientHandle) -> Handle:
        async def write(request: HttpRequest) -> HttpAnswer:
            asked = await self._identified(request)
            self._limits.writes.take(asked.user_id)
            return with_cookie(request, await handle(asked))

        return write

    async def _identified(self, request: HttpRequest) -> ClientRequest:
        token = access_token(request)
        identity = await self._checker.identify(token)
        if identity is None:
            self._limits.logins.take(self._address_of(request))
            raise UnknownToken()
        self._limits.requests.take(identity.user_id)
        return ClientRequest(
            identity, token, request.path, request.query, request.body, request.uri
        )

    async def _catch_up(self, request: HttpRequest) -> None:
        """Wait for what the client wrote elsewhere. Only a client that asks by the header is refused without it."""
        required = required_positions(request)
        if required:
            await self._waiting.wait_until_covered(required)
            return
        remembered = remembered_positions(request)
        if remembered:
            try:
                await self._waiting.wait_until_covered(remembered)
            except (Unavailable, InputError):
                return


def _routes(
    method: str, path: str, prefixes: Sequence[str], handle: Handle, *, waits: bool = False
) -> list[Route]:
    return [
        Route(
            method,
            prefix + path,
            handle,
            public=True,
            takes_body=method != "GET",
            waits=waits,
            repeatable=_REPEATABLE,
        )
        for prefix in prefixes
    ]
