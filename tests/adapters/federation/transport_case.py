"""Servers with real TLS on loopback, and a transport that reaches them; time is the test's."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from signedjson.key import generate_signing_key
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from synrepl.adapters.federation.addresses import AddressPolicy
from synrepl.adapters.federation.certificates import ServedCertificate, TrustedAuthorities
from synrepl.adapters.federation.endpoints import ServerConnector
from synrepl.adapters.federation.exchange import HttpsClient
from synrepl.adapters.federation.names import NameResolver
from synrepl.adapters.federation.tls_factory import TlsListenerFactory
from synrepl.adapters.federation.transport import HttpsFederationTransport, ServerDiscovery
from synrepl.adapters.federation.well_known import WellKnownLookups
from synrepl.adapters.http.errors import error_answer
from synrepl.adapters.http.messages import HttpAnswer, HttpRequest
from synrepl.adapters.http.policy import ListenerPolicy
from synrepl.adapters.http.routes import Match, Route
from synrepl.adapters.http.server import HttpServer
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.federation.requests import FederationRequest
from tests.adapters.federation.authorities import Authority, CertificateFiles
from tests.adapters.federation.name_server import NameServer
from tests.adapters.raw_http_client import reactor, turn

#: The name of the server that asks.
ORIGIN = "origin.example"

NOW = 1_700_000_000.0

T = TypeVar("T")

Answers = Callable[[HttpRequest], Awaitable[HttpAnswer] | HttpAnswer]


class ClockedReactor:
    """The real reactor, but for its time, which is a test's; what has no delay is done in its next turn."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = clock.seconds

    def callLater(self, delay: float, call: Callable[..., object], *args: Any, **more: Any) -> Any:
        """Call later, by the time of the test."""
        chosen: Any = self._clock if delay else reactor
        return chosen.callLater(delay, call, *args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(reactor, name)


class AnyRequest(ListenerPolicy):
    """A policy by which one handler answers everything."""

    headers: Sequence[tuple[str, str]] = ()

    def __init__(self, handle: Answers) -> None:
        async def answer(request: HttpRequest) -> HttpAnswer:
            answered = handle(request)
            return answered if isinstance(answered, HttpAnswer) else await answered

        self._match = Match(
            Route(
                "GET",
                "*",
                answer,
                public=True,
                takes_body=True,
                waits=True,
                repeatable=frozenset({"b", "v", "ver"}),
            ),
            {},
        )

    def admit(self, head: Any, router: Any) -> Match:
        return self._match

    def error_answer(self, error: Exception, statuses: Mapping[Any, int]) -> HttpAnswer:
        return error_answer(error, {})


class Scripted(Protocol):
    """A server that sends given bytes once it has received something, and may close then."""

    transport: Any

    def __init__(self, send: bytes, closes: bool) -> None:
        self._send = send
        self._closes = closes
        self.is_lost = False
        self.is_asked = False

    def dataReceived(self, data: bytes) -> None:
        self.is_asked = True
        send, self._send = self._send, b""
        self.transport.write(send)
        if self._closes:
            self.transport.loseConnection()

    def connectionLost(self, reason: object = None) -> None:
        self.is_lost = True


class ScriptedFactory(Factory):
    """Makes :class:`Scripted` connections, and keeps them."""

    noisy = False

    def __init__(self, send: bytes, closes: bool = False) -> None:
        self.made: list[Scripted] = []
        self._send = send
        self._closes = closes

    def buildProtocol(self, addr: object) -> Scripted:
        made = Scripted(self._send, self._closes)
        self.made.append(made)
        return made


class TransportCase(TestCase):
    """Servers on loopback, and a transport that reaches them.

    :cvar allowed: networks that may be connected to
    """

    timeout = 30
    allowed: Sequence[str] = ("127.0.0.0/8",)

    async def setUp(self) -> None:  # type: ignore[override]
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.clock = Clock()
        self.clock.advance(NOW)
        self.reactor = ClockedReactor(self.clock)
        self.scheduler = TwistedScheduler(self.clock, lambda: 0.0)
        self.authority = Authority(self.folder)
        self.names = NameServer()
        await self.names.start()
        self.addCleanup(self.names.stop)
        self.key = generate_signing_key("a_1")
        self.well_known_port = 443
        self.messages: list[str] = []
        self.served: list[Any] = []
        self.transport = self.make_transport()

    def make_transport(self, **more: Any) -> HttpsFederationTransport:
        """A transport that trusts the authority."""
        names = NameResolver(self.names.resolver(self.reactor), self.names)
        authorities = TrustedAuthorities([self.authority.path], of_system=False)
        connector = ServerConnector(self.reactor, names, AddressPolicy(self.allowed), authorities)
        self.client = HttpsClient(connector, **more)
        self.addCleanup(self.client.close)
        self.well_known = WellKnownLookups(self.scheduler, self.client, self, self.well_known_port)
        self.discovery = ServerDiscovery(self.scheduler, names, self.well_known)
        return HttpsFederationTransport(self.reactor, ORIGIN, self.key, self.discovery, self.client)

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """A log."""
        self.messages.append(format.format(**facts))

    warn = info

    def serve(
        self,
        handle: Answers | Factory[Any],
        names: Sequence[str] = ("localhost", "127.0.0.1"),
        certificate: CertificateFiles | None = None,
        interface: str = "127.0.0.1",
    ) -> int:
        """Start a server with a certificate; its port."""
        files = certificate or self.authority.certificate(names)
        served = ServedCertificate(*files, self.clock.seconds, lambda error: None)
        factory: Any = handle
        if not isinstance(handle, Factory):
            factory = HttpServer(Clock(), [], AnyRequest(handle))
        self.served.append(factory)
        tls = TlsListenerFactory(reactor, served, factory)
        port = reactor.listenTCP(0, tls, interface=interface)
        self.addCleanup(self._stop, port, factory)
        return int(port.getHost().port)

    async def _stop(self, port: Any, factory: Any) -> None:
        await self.client.close()
        await port.stopListening()
        if isinstance(factory, HttpServer):
            factory.close_connections()
        while any(True for _ in getattr(factory, "connections", ())):
            await turn()
        while any(not each.is_lost for each in getattr(factory, "made", ())):
            await turn()

    async def send(self, destination: str, path: str = "/path", **more: Any) -> Any:
        """Send a request, while time passes quickly; the answer."""
        return await self.passing(self.begin(destination, path, **more))

    def begin(self, destination: str, path: str = "/path", **more: Any) -> Deferred[Any]:
        """Send a request, while no time passes."""
        request = FederationRequest("GET", destination, path, **more)
        return Deferred.fromCoroutine(self._send(request))

    async def passing(self, work: Deferred[T]) -> T:
        """Let time pass until work is done: some ten milliseconds in each turn."""
        while not work.called:
            await turn()
            self.clock.advance(0.01)
        return await work

    async def turns(self, count: int = 20) -> None:
        """Let the reactor run for some turns, while no time passes."""
        for _ in range(count):
            await turn()

    async def _send(self, request: FederationRequest) -> Any:
        answer = await self.transport.send(request)
        self.addCleanup(answer.body.close)
        return answer
