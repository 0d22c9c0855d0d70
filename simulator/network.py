"""The network of a simulation: one master's port, and links that the seed slows, cuts and mutes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from twisted.internet.error import ConnectError
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from synrepl.testing.links import Link, LinkAddress

#: Bytes that travel unnoticed, and that then wait before a producer is paused: small,
#: so that a slow reader shows with few facts.
WINDOW = 400
FULL = 200


class ServerFactory(Protocol):
    """Makes protocols of accepted connections (Twisted's server factories do)."""

    def buildProtocol(self, addr: Any) -> Any: ...


class ClientFactory(ServerFactory, Protocol):
    """Makes protocols of connections it asked for (Twisted's client factories do)."""

    def clientConnectionFailed(self, connector: Any, reason: Failure) -> object: ...

    def clientConnectionLost(self, connector: Any, reason: Failure) -> object: ...


#: Told of a new connection before the first byte: (name of the client, link).
LinkOpened = Callable[[str, Link], object]


class NetworkConditions:
    """How bytes travel: a new mood of the network for each piece.

    :param slowest: seconds that a piece takes at most
    """

    def __init__(self, random: Random, slowest: float) -> None:
        self._random = random
        self.slowest = slowest

    def delay(self) -> float:
        """Mostly quick."""
        return self._random.random() ** 3 * self.slowest

    def piece(self, waiting: int) -> int:
        """Mostly all of it; otherwise it is split anywhere, also amid a character."""
        if self._random.random() < 0.7:
            return waiting
        return self._random.randint(1, waiting)


class Network:
    """Connects followers with the master while it listens."""

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
        """The connections that somebody still believes in."""
        self._all = [link for link in self._all if link.open]
        return self._all

    def listen(self, process: Process, factory: ServerFactory) -> None:
        """The process takes connections from now on, until it is killed."""
        self._listener, self._listening = factory, process
        process.on_kill(self.close)

    def connect(self, process: Process, factory: ClientFactory) -> None:
        """Connect a process with whoever listens, and again whenever its factory asks for it."""
        Connector(self, process, factory).connect()

    def open_link(self, process: Process, factory: ClientFactory, connector: Connector) -> None:
        """Try to make one connection."""
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
        """A process loses its connections, and gets no other one for a while."""
        self._isolated_until[process] = self._clock.seconds() + seconds
        for link in self.links:
            if link.client.name.startswith(f"{process.name}#"):
                link.cut(0)

    def heal(self) -> None:
        """No connection is mute any more, and everybody can connect."""
        self._isolated_until.clear()
        for link in self.links:
            link.silence(False)

    def close(self) -> None:
        """Nobody listens any more."""
        self._listener = self._listening = None

    def _end(self, link: Link, end: Any) -> None:
        if end.open:
            link.crash(end)


class Connector:
    """What a client factory calls to connect again (Twisted's ``IConnector``)."""

    def __init__(self, network: Network, process: Process, factory: ClientFactory) -> None:
        self._network = network
        self._process = process
        self._factory = factory

    def connect(self) -> None:
        """Try soon; the factory hears how it went."""
        self._process.callLater(0.001, self._network.open_link, self._process, self._factory, self)

    def stopConnecting(self) -> None:
        """Nothing is under way for long."""
