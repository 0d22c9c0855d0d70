"""The simulated network: the master's port, and links that the seed slows, cuts and mutes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from twisted.internet.error import ConnectError
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from synrepl.testing.links import Link, LinkAddress

#: Bytes in flight, and bytes buffered before a producer is paused: small, so that a few facts show a
#: slow reader.
WINDOW = 400
FULL = 200


class ServerFactory(Protocol):
    """Builds the protocols of accepted connections, as Twisted's server factories do."""

    def buildProtocol(self, addr: Any) -> Any: ...


class ClientFactory(ServerFactory, Protocol):
    """Builds the protocols of outgoing connections, as Twisted's client factories do."""

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> object: ...

    def clientConnectionLost(self, connector: Any, reason: Failure) -> object: ...


#: Called with (client name, link) for each new connection, before the first byte.
LinkOpened = Callable[[str, Link], object]


class NetworkConditions:
    """Latency and fragmentation, drawn for each piece of data.

    :param slowest: maximum latency of a piece, in seconds
    """

    def __init__(self, random: Random, slowest: float) -> None:
        self._random = random
        self.slowest = slowest

    def delay(self) -> float:
        """A latency; mostly short."""
        return self._random.random() ** 3 * self.slowest

    def piece(self, waiting: int) -> int:
        """The size of the next piece: mostly everything, otherwise split anywhere, even within a character."""
        if self._random.random() < 0.7:
            return waiting
        return self._random.randint(1, waiting)


class Network:
    """Connects followers to the master while it listens."""

    def __init__(
        self, clock: VirtualClock, conditions: NetworkConditions, link_opened: LinkOpened
    ) -> None:
        self._clock = clock
        self._conditions = conditions
        self._link_opened = link_opened
        self._listener: ServerFactory | None = None
        self._listening: Process | None = None
        self._all: list[Link] = []
        self._isolated_until: dict[Process, float] = {}
        self._number = 0

    @property
    def links(self) -> list[Link]:
        """The connections that at least one side considers open."""
        self._all = [link for link in self._all if link.open]
        return self._all

    def listen(self, process: Process, factory: ServerFactory) -> None:
        """Accept connections for a process until it is killed."""
        self._listener, self._listening = factory, process
        process.on_kill(self.close)

    def connect(self, process: Process, factory: ClientFactory) -> None:
        """Connect a process to the master, and reconnect whenever its factory asks for it."""
        Connector(self, process, factory).connect()

    def open_link(self, process: Process, factory: ClientFactory, connector: Connector) -> None:
        """Try to open a connection."""
        isolate = self._clock.seconds() < self._isolated_until.get(process, 0)
        if self._listener is None or self._listening is None or isolate:
            reason = "there is no way" if isolate else "nobody listens"
            factory.clientConnectionFailed(connector, Failure(ConnectError(string=reason)))
            return
        self._number += 1
        client: TwistedProtocol = factory.buildProtocol(LinkAddress("master"))
        server: TwistedProtocol = self._listener.buildProtocol(LinkAddress(process.name))
        link = Link(
            self._clock,
            client,
            server,
            names=(f"{process.name}#{self._number}", "master"),
            pace=self._conditions,
            window=WINDOW,
            full=FULL,
        )
        link.client.lost = lambda reason: factory.clientConnectionLost(connector, reason)
        self._listening.on_kill(lambda: self._end(link, link.server))
        process.on_kill(lambda: self._end(link, link.client))
        self._all.append(link)
        self._link_opened(process.name, link)
        link.connect()

    def isolate(self, process: Process, seconds: float) -> None:
        """Cut all connections of a process, and refuse new ones for some seconds."""
        self._isolated_until[process] = self._clock.seconds() + seconds
        for link in self.links:
            if link.client.name.startswith(f"{process.name}#"):
                link.cut(0)

    def heal(self) -> None:
        """Unmute all connections, and let every process connect."""
        self._isolated_until.clear()
        for link in self.links:
            link.silence(False)

    def close(self) -> None:
        """Stop listening."""
        self._listener = self._listening = None

    def _end(self, link: Link, end: Any) -> None:
        if end.open:
            link.crash(end)


class Connector:
    """What a client factory calls to reconnect (Twisted's ``IConnector``)."""

    def __init__(self, network: Network, process: Process, factory: ClientFactory) -> None:
        self._network = network
        self._process = process
        self._factory = factory

    def connect(self) -> None:
        """Try to connect soon; the factory is notified of the outcome."""
        self._process.callLater(0.001, self._network.open_link, self._process, self._factory, self)

    def stopConnecting(self) -> None:
        """Does nothing, since attempts take no time."""
