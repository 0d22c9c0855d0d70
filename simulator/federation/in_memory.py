"""Links between servers, without sockets: requests are routed by the name of their destination."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from simulator.federation.server_keys import SimulatedKeys
from synrepl.core.clock import Promise, Scheduler
from synrepl.federation.errors import AnswerTooLarge, DestinationAway
from synrepl.federation.requests import FederationAnswer, FederationRequest


class FederationServer(Protocol):
    """A server that answers others."""

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """Answer a request; None: never.

        :param origin: the server that it comes from
        :raises AnswerTooLarge: the answer has too many bytes
        """


class InMemoryFederation:
    """Servers and the links between them.

    :param latency_s: seconds from a request to its answer; 0 for none
    :param patience_s: seconds after which all requests fail that have no answer, for tests in real time; None: as each
        request says
    :ivar keys: of all servers
    :ivar requests: those that arrived: origin, destination, and what was asked
    """

    def __init__(
        self, scheduler: Scheduler, latency_s: float = 0.0, patience_s: float | None = None
    ) -> None:
        self.scheduler = scheduler
        self.latency_s = latency_s
        self.patience_s = patience_s
        self.keys = SimulatedKeys()
        self.requests: list[tuple[str, str, str]] = []
        self._servers: dict[str, FederationServer] = {}
        self._cut: set[tuple[str, str]] = set()
        self._down: set[str] = set()

    def register(self, name: str, server: FederationServer) -> None:
        """Add a server, or replace it, as after a restart."""
        self._servers[name] = server
        self._down.discard(name)

    @property
    def names(self) -> Collection[str]:
        """The names of the servers."""
        return self._servers.keys()

    def stop(self, name: str) -> None:
        """Nobody listens at a server any more, until it is registered again or started."""
        self._down.add(name)

    def start(self, name: str) -> None:
        """A stopped server listens again."""
        self._down.discard(name)

    def cut(self, one: str, other: str) -> None:
        """Cut the link between two servers, in both directions."""
        self._cut |= {(one, other), (other, one)}

    def heal(self, one: str, other: str) -> None:
        """Restore the link between two servers."""
        self._cut -= {(one, other), (other, one)}

    def transport(self, origin: str) -> InMemoryTransport:
        """The transport of a server."""
        return InMemoryTransport(self, origin)

    def asked(self, endpoint: str, destination: str | None = None) -> list[str]:
        """The paths of the requests to an endpoint that arrived.

        :param destination: only those to this server
        """
        return [
            path
            for _, to, path in self.requests
            if f"/{endpoint}" in path and destination in (None, to)
        ]

    async def deliver(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """Have a request answered; None if it is lost.

        :raises DestinationAway: nobody listens
        """
        name = request.destination
        if self.latency_s:
            await self.scheduler.sleep(self.latency_s)
        server = self._servers.get(name)
        if (origin, name) in self._cut or name in self._down or server is None:
            raise DestinationAway(destination=name, subject=request.subject, reason="no route")
        self.requests.append((origin, name, request.path))
        answer = await server.handle(origin, request)
        if (origin, name) in self._cut or name in self._down:
            return None
        if answer is not None and answer.body.size > request.max_bytes:
            where = f"the answer of {name} to {request.subject}"
            raise AnswerTooLarge(where=where, limit=request.max_bytes)
        return answer


class InMemoryTransport:
    """Implements :class:`synrepl.services.federation.interfaces.FederationTransport` for one server."""

    def __init__(self, federation: InMemoryFederation, origin: str) -> None:
        self._federation = federation
        self._origin = origin

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request; a lost one fails when its time is over.

        :raises DestinationAway: :raises AnswerTooLarge:
        """
        scheduler = self._federation.scheduler
        name, subject = request.destination, request.subject
        answered = _FirstResult(scheduler.promise())

        def expire() -> None:
            reason = f"no answer in {request.timeout_s:.0f} s"
            answered.fail(DestinationAway(destination=name, subject=subject, reason=reason))

        async def answer() -> None:
            try:
                found = await self._federation.deliver(self._origin, request)
            except (DestinationAway, AnswerTooLarge) as error:
                answered.fail(error)
                return
            if found is not None:
                answered.succeed(found)

        patience_s = self._federation.patience_s
        timeout_s = request.timeout_s if patience_s is None else min(patience_s, request.timeout_s)
        timer = scheduler.callLater(timeout_s, expire)
        scheduler.spawn(f"request to {name}", answer())
        try:
            result: FederationAnswer = await answered.promise
        finally:
            if timer.active():
                timer.cancel()
        return result


class _FirstResult:
    """A promise that takes the first of several results."""

    def __init__(self, promise: Promise[FederationAnswer]) -> None:
        self.promise = promise
        self._is_open = True

    def succeed(self, answer: FederationAnswer) -> None:
        if self._is_open:
            self._is_open = False
            self.promise.callback(answer)

    def fail(self, error: Exception) -> None:
        if self._is_open:
            self._is_open = False
            self.promise.errback(error)
