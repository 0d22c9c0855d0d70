"""A fault-injecting TCP proxy on loopback, which cuts PostgreSQL connections at a chosen point."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol

reactor: Any = _reactor

COMMIT = b"COMMIT\x00"  # at the end of what the client sends
COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"  # as the server answers


class Cut(Enum):
    """What happens to the next COMMIT."""

    NEVER = "it passes"
    BEFORE = "it is swallowed, and both connections end"
    UNNOTICED = "it is swallowed, and the server does not hear that its client is gone"
    AFTER = "it passes, its answer is swallowed, and both connections end"


class FaultProxy:
    """Forwards to ``port``.

    :ivar cut: applies once, then goes back to NEVER
    :ivar cut_at: counts down with each query of a client; at 0 all connections end, and
        the next one is refused
    :ivar refusing: connections are accepted and closed at once
    :ivar on_refused: called for each of them
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.cut = Cut.NEVER
        self.cut_at: int | None = None
        self.refusing = False
        self.on_refused: Callable[[], object] = lambda: None
        self.sides: list[_Side] = []
        factory: Any = Factory.forProtocol(_ClientSide)
        factory.proxy = self
        self.listener = reactor.listenTCP(0, factory, interface="127.0.0.1")

    @property
    def port(self) -> int:
        return int(self.listener.getHost().port)

    def query(self) -> bool:
        """Count a client's query; False if it ends all connections."""
        if self.cut_at is None:
            return True
        self.cut_at -= 1
        if self.cut_at > 0:
            return True
        self.cut_at, self.refusing, self.on_refused = None, True, self.back
        for side in list(self.sides):
            side.transport.abortConnection()
        return False

    def back(self) -> None:
        """Accept connections again."""
        self.refusing = False

    def freeze(self) -> None:
        """Forward nothing any more; connections stay open."""
        for side in self.sides:
            side.frozen = True

    async def stop(self) -> None:
        await self.listener.stopListening()
        for side in list(self.sides):
            side.transport.abortConnection()
            await side.gone


class _Side(Protocol):
    transport: Any
    factory: Any
    proxy: FaultProxy
    frozen = False

    def __init__(self) -> None:
        self.gone: Deferred[None] = Deferred()

    def connectionLost(self, reason: object = None) -> None:
        if self in self.proxy.sides:
            self.proxy.sides.remove(self)
            self.gone.callback(None)
            self.lost()

    def lost(self) -> None:
        """Close the other side as well."""


class _ClientSide(_Side):
    def connectionMade(self) -> None:
        self.proxy = self.factory.proxy
        self.proxy.sides.append(self)
        self.server: _ServerSide | None = None
        self.held = b""
        if self.proxy.refusing:
            self.transport.loseConnection()
            self.proxy.on_refused()
            return
        endpoint = TCP4ClientEndpoint(reactor, "127.0.0.1", self.proxy.target)
        connecting = connectProtocol(endpoint, _ServerSide(self))
        connecting.addErrback(lambda _: self.transport.loseConnection())

    def dataReceived(self, data: bytes) -> None:
        if self.frozen:
            return
        if self.server is None:
            self.held += data
            return
        if data[:1] == b"Q" and not self.proxy.query():
            return
        cut = self.proxy.cut
        if data[:1] == b"Q" and data.endswith(COMMIT) and cut in (Cut.BEFORE, Cut.UNNOTICED):
            self.proxy.cut = Cut.NEVER
            if cut is Cut.UNNOTICED:
                self.server.client = None
                self.server = None
            self.transport.abortConnection()
            return
        self.server.transport.write(data)

    def lost(self) -> None:
        if self.server is not None:
            self.server.transport.loseConnection()


class _ServerSide(_Side):
    def __init__(self, client: _ClientSide) -> None:
        super().__init__()
        self.client: _ClientSide | None = client
        self.proxy = client.proxy

    def connectionMade(self) -> None:
        self.proxy.sides.append(self)
        assert self.client is not None
        self.client.server = self
        self.client.dataReceived(self.client.held)

    def dataReceived(self, data: bytes) -> None:
        if self.client is None or self.frozen:
            return
        if COMMITTED in data and self.proxy.cut is Cut.AFTER:
            self.proxy.cut = Cut.NEVER
            self.client.transport.abortConnection()
            return
        self.client.transport.write(data)

    def lost(self) -> None:
        if self.client is not None:
            self.client.transport.loseConnection()
