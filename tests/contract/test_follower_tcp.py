"""The follower, over TCP."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.adapters.tcp.worker import WorkerFactory
from tests.contract.follower import FollowerContract
from tests.contract.lines import LineTransport
from tests.contract.world import ContractStore, FollowerProcess, Transport, reactor

_HOST = "127.0.0.1"


class TcpTransport(LineTransport):
    """A TCP port on the loopback interface."""

    def __init__(self, site: ContractStore) -> None:
        super().__init__(site)
        self._port = 0
        self._clients: dict[FollowerProcess, tuple[WorkerFactory, Any]] = {}

    def serve(self, factory: MasterFactory) -> None:
        """Listen on the same port as the last time."""
        self._listener = reactor.listenTCP(self._port, factory, interface=_HOST)
        self._port = self._listener.getHost().port

    async def end(self) -> None:
        """Stop listening."""
        await self._listener.stopListening()
        await super().end()

    def join(self, following: FollowerProcess) -> None:
        """Connect, and reconnect quickly."""
        factory = self.client(following)
        factory.initialDelay = factory.delay = 0.01
        connector = reactor.connectTCP(_HOST, self._port, factory)
        self._clients[following] = (factory, connector)

    def cut(self, following: FollowerProcess) -> None:
        """Abort the connection, losing what is in the kernel's buffers."""
        connector: Any = self._clients[following][1]
        connector.transport.abortConnection()

    async def leave(self, following: FollowerProcess) -> None:
        """Disconnect it for good."""
        client = self._clients.pop(following, None)
        if client is not None:
            factory, connector = client
            connected = connector.state == "connected"
            down = following.down()
            factory.stopTrying()
            connector.disconnect()
            if connected:
                await down


class TcpFollowerTest(FollowerContract, TestCase):
    def transport(self, site: ContractStore) -> Transport:
        return TcpTransport(site)
