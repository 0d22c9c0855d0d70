"""Sends signed requests to other servers; implements ``FederationTransport`` of the services."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from signedjson.types import SigningKey
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.defer import TimeoutError as DeferredTimeout

from synrepl.adapters.federation.endpoints import AddressNotAllowed
from synrepl.adapters.federation.exchange import HttpsClient, HttpsRequest, reason_of
from synrepl.adapters.federation.names import NameResolver
from synrepl.adapters.federation.spool import CannotSpool
from synrepl.adapters.federation.well_known import WellKnownLookups
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.federation.discovery import (
    DiscoveryStep,
    ServerRoute,
    WellKnownNeeded,
    discover,
)
from synrepl.federation.errors import AddressRefused, AnswerTooLarge, DestinationAway
from synrepl.federation.requests import FederationAnswer, FederationRequest
from synrepl.federation.x_matrix import sign_request

#: Maximum number of requests to one server at the same time; more wait for their turn.
CONCURRENT = 8

#: Seconds for which it is remembered how a server is reached, and maximum number of servers of which it is.
ROUTE_S = 300.0
MAX_ROUTES = 10_000


class ServerDiscovery:
    """Finds out how servers are reached; see :func:`synrepl.federation.discovery.discover`."""

    def __init__(
        self, scheduler: TwistedScheduler, names: NameResolver, well_known: WellKnownLookups
    ) -> None:
        self._scheduler = scheduler
        self._names = names
        self._well_known = well_known
        self._routes: OrderedDict[str, tuple[float, ServerRoute]] = OrderedDict()

    async def route(self, server_name: str) -> ServerRoute:
        """How a server is reached.

        :raises UnusableServerName: :raises NoSuchService:
        :raises NamesUnavailable: the DNS did not answer
        """
        now = self._scheduler.seconds()
        until, route = self._routes.get(server_name, (0.0, None))
        if route is not None and now < until:
            return route
        route = await self._discover(server_name)
        self._routes[server_name] = (now + ROUTE_S, route)
        self._routes.move_to_end(server_name)
        while len(self._routes) > MAX_ROUTES:
            self._routes.popitem(last=False)
        return route

    def forget(self, server_name: str) -> None:
        """Find out anew how a server is reached: it could not be."""
        self._routes.pop(server_name, None)

    async def _discover(self, server_name: str) -> ServerRoute:
        steps = discover(server_name, self._scheduler.random)
        found: Any = None
        while True:
            try:
                step = steps.send(found)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            found = await self._answer(step)

    async def _answer(self, step: DiscoveryStep) -> object:
        if isinstance(step, WellKnownNeeded):
            return await self._well_known.delegated(step.host)
        return await self._names.services(step.service)


class _Turn:
    """The requests to one server, of which some wait for their turn.

    :ivar users: their number
    """

    __slots__ = ("semaphore", "users")

    def __init__(self) -> None:
        self.semaphore = DeferredSemaphore(CONCURRENT)
        self.users = 0


class HttpsFederationTransport:
    """Sends requests over HTTPS, signed by this server.

    :param server_name: of this server
    """

    def __init__(
        self,
        reactor: Any,
        server_name: str,
        signing_key: SigningKey,
        discovery: ServerDiscovery,
        client: HttpsClient,
    ) -> None:
        self._reactor = reactor
        self._server_name = server_name
        self._signing_key = signing_key
        self._discovery = discovery
        self._client = client
        self._turns: dict[str, _Turn] = {}

    @property
    def client(self) -> HttpsClient:
        """Makes the exchanges."""
        return self._client

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request, and wait until its answer is there as a whole, whatever its status.

        :raises DestinationAway: :raises AnswerTooLarge: :raises AddressRefused:
        :raises CannotSpool: there is no room for the answer
        :raises CancelledError: the process stops; that says nothing about the server
        """
        work = Deferred.fromCoroutine(self._in_turn(request))
        work.addTimeout(request.timeout_s, self._reactor)
        try:
            return await work
        except (AnswerTooLarge, CannotSpool, CancelledError):
            raise
        except AddressNotAllowed as error:
            raise AddressRefused(
                destination=request.destination, address=error.facts["address"]
            ) from error
        except Exception as error:  # of Twisted or OpenSSL, whatever they are
            self._discovery.forget(request.destination)
            reason = reason_of(error)
            if isinstance(error, DeferredTimeout):
                reason = f"no whole answer within {request.timeout_s:g} s"
            raise DestinationAway(
                destination=request.destination, subject=request.subject, reason=reason
            ) from error

    async def _in_turn(self, request: FederationRequest) -> FederationAnswer:
        turn = self._turns.setdefault(request.destination, _Turn())
        turn.users += 1
        try:
            await turn.semaphore.acquire()
            try:
                return await self._send(request)
            finally:
                turn.semaphore.release()
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[request.destination]

    async def _send(self, request: FederationRequest) -> FederationAnswer:
        route = await self._discovery.route(request.destination)
        uri = request.path
        if request.query:
            uri = f"{uri}?{urlencode(request.query)}"
        answer = await self._client.exchange(
            route,
            HttpsRequest(
                request.method,
                uri,
                self._headers(request, uri),
                request.content,
                request.timeout_s,
                request.head_timeout_s or request.timeout_s,
                request.max_bytes,
                f"the answer of {request.destination} to {request.subject}",
            ),
        )
        retry_after = answer.headers.getRawHeaders("Retry-After", ["0"])[0]
        return FederationAnswer(answer.status, answer.body, _seconds(retry_after))

    def _headers(self, request: FederationRequest, uri: str) -> Mapping[str, str]:
        headers = {"Accept": "application/json"}
        if request.content is not None:
            headers["Content-Type"] = "application/json"
        if request.is_signed:
            headers["Authorization"] = sign_request(
                self._signing_key,
                request.method,
                uri,
                self._server_name,
                request.destination,
                request.content,
            )
        return headers


def _seconds(text: str) -> float:
    """The seconds of a ``Retry-After``; 0 for a date, which is rare."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
