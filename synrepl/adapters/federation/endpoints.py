"""Connects to a server over TLS: to the first of its places that can be reached and has a public address."""

# mypy: disable-error-code="no-untyped-call"
# (parts of Twisted's endpoints have no types)

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    HostnameEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    wrapClientTLS,
)
from twisted.internet.error import ConnectError, UserError
from twisted.internet.interfaces import (
    IHostnameResolver,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.python.failure import Failure
from zope.interface import implementer

from synrepl.adapters.federation.addresses import AddressPolicy
from synrepl.adapters.federation.certificates import TrustedAuthorities
from synrepl.adapters.federation.names import NameNotFound, NameResolver
from synrepl.core.errors import ProtocolError, Refused, Unavailable
from synrepl.federation.discovery import ServerRoute

#: Seconds that a connection to an address may take.
CONNECT_S = 10.0

#: Seconds after which the next address of a host is tried as well.
NEXT_ADDRESS_S = 0.3

#: Maximum size of the head of an answer, in bytes.
MAX_HEAD = 64 * 2**10

_INFORMATIONAL = b"HTTP/1.1 1", b"HTTP/1.0 1"
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class AddressNotAllowed(Refused):
    """{host} is at {address}, which is no public address"""


class CannotConnect(Unavailable):
    """no connection to {host}:{port}: {reason}"""


class HeadTooLong(ProtocolError):
    """the head of its answer is longer than {limit} bytes"""


class MalformedHead(ProtocolError):
    """its answer is no HTTP, or a line of its head is too long"""


@dataclass(frozen=True, slots=True)
class ServerConnector:
    """What is needed to connect to servers.

    :ivar reactor: provides TCP connections and time
    """

    reactor: Any
    names: NameResolver
    policy: AddressPolicy
    authorities: TrustedAuthorities

    def endpoint(self, route: ServerRoute) -> RouteEndpoint:
        """An endpoint that connects to a server."""
        return RouteEndpoint(self, route)


@implementer(IStreamClientEndpoint)
class RouteEndpoint:
    """Connects to a server by TLS; see :meth:`ServerConnector.endpoint`."""

    def __init__(self, connector: ServerConnector, route: ServerRoute) -> None:
        self._connector = connector
        self._route = route

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Connect to the first place that can be reached.

        :raises AddressNotAllowed: :raises CannotConnect: :raises Unavailable: a name cannot be looked up
        """
        protocolFactory.noisy = False  # each connection would be in the log
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: Any) -> Any:
        error: Exception | None = None
        for host, port in self._route.places:
            try:
                addresses = await self._addresses(host)
                return await self._connect_to(host, port, addresses, factory)
            except (AddressNotAllowed, Unavailable) as refused:
                # That an address is not allowed is worth more than that another one is away.
                error = error if isinstance(error, AddressNotAllowed) else refused
        raise error or NameNotFound(name=self._route.host_header)

    async def _addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host that may be connected to."""
        found = await self._connector.names.addresses(host)
        allowed = [address for address in found if self._connector.policy.allows(address)]
        if not allowed:
            raise AddressNotAllowed(host=host, address=found[0])
        return allowed

    async def _connect_to(
        self, host: str, port: int, addresses: Sequence[str], factory: Any
    ) -> Any:
        tcp = self._tcp(host, port, addresses)
        tls: Any = self._connector.authorities.for_name(self._route.certificate_name)
        try:
            endpoint: Any = wrapClientTLS(tls, tcp, clock=self._connector.reactor)
            guard: Any = await endpoint.connect(_HeadGuardFactory(factory))
        except (ConnectError, OSError) as error:
            raise CannotConnect(host=host, port=port, reason=_reason(error)) from error
        return guard.wrappedProtocol

    def _tcp(self, host: str, port: int, addresses: Sequence[str]) -> Any:
        """Connects to the first of some addresses that answers."""
        reactor = self._connector.reactor
        if len(addresses) == 1:  # so that a refusal is known at once
            one = TCP6ClientEndpoint if ":" in addresses[0] else TCP4ClientEndpoint
            return one(reactor, addresses[0], port, timeout=CONNECT_S)
        return HostnameEndpoint(
            _KnownAddresses(reactor, addresses),
            host,
            port,
            timeout=CONNECT_S,
            attemptDelay=NEXT_ADDRESS_S,
        )


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return f"none within {CONNECT_S:g} s"
    return " ".join(str(error).split())[:200] or type(error).__name__


@implementer(IReactorTime, IReactorTCP, IReactorPluggableNameResolver)
class _KnownAddresses:
    """A reactor that knows the addresses of the host that is asked for, which were checked before."""

    def __init__(self, reactor: Any, addresses: Sequence[str]) -> None:
        self._reactor = reactor
        self.nameResolver = _FixedResolver(addresses)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


@implementer(IHostnameResolver)
class _FixedResolver:
    """Resolves every name to the same addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def resolveHostName(
        self,
        resolutionReceiver: Any,
        hostName: str,
        portNumber: int = 0,
        addressTypes: object = None,
        transportSemantics: str = "TCP",
    ) -> Any:
        """See Twisted's ``IHostnameResolver``."""
        resolutionReceiver.resolutionBegan(self)
        for address in self._addresses:
            kind = IPv6Address if ":" in address else IPv4Address
            resolutionReceiver.addressResolved(kind("TCP", address, portNumber))
        resolutionReceiver.resolutionComplete()
        return self


class _HeadGuard(ProtocolWrapper):
    """Aborts a connection whose answer has too long a head, which ``twisted.web`` would keep in memory."""

    def __init__(self, factory: Any, wrappedProtocol: Any) -> None:
        super().__init__(factory, wrappedProtocol)
        self._error: ProtocolError | None = None
        self._begin()

    def _begin(self) -> None:
        """The next bytes are the head of an answer."""
        self._in_head = True
        self._head = bytearray()
        self._size = 0

    def write(self, data: bytes) -> None:
        """Send a part of a request, after which an answer comes."""
        self._begin()
        super().write(data)

    def writeSequence(self, data: Any) -> None:
        """Send a part of a request, after which an answer comes."""
        self._begin()
        super().writeSequence(data)

    def loseConnection(self) -> None:
        """Abort the connection: a server that goes on sending would keep it open."""
        if self._head and self._error is None:
            self._error = MalformedHead()
        self.transport.abortConnection()  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        """Receive a part of an answer."""
        if self._error is None and self._in_head and self._is_too_long(data):
            self._error = HeadTooLong(limit=MAX_HEAD)
            self.transport.abortConnection()  # type: ignore[union-attr]
        if self._error is None:
            super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The connection is lost, or was aborted here."""
        super().connectionLost(reason if self._error is None else Failure(self._error))

    def _is_too_long(self, data: bytes) -> bool:
        """Look for the end of the head. After an informational one comes another."""
        start = max(0, len(self._head) - 3)
        self._head += data
        while (found := _END_OF_HEAD.search(self._head, start)) is not None:
            self._in_head = self._head.startswith(_INFORMATIONAL)
            if not self._in_head:
                self._head = bytearray()
                return False
            self._size += found.end()
            del self._head[: found.end()]
            start = 0
        return self._size + len(self._head) > MAX_HEAD


class _HeadGuardFactory(WrappingFactory):
    """Makes :class:`_HeadGuard` around the protocols of a factory."""

    noisy = False
    protocol = _HeadGuard
