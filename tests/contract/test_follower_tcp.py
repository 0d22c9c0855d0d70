"""The follower, over TCP."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.adapters.tcp.worker import WorkerFactory
from tests.contract.follower import FollowerContract
from tests.contract.lines import OverLines
from tests.contract.world import Following, Site, Transport, reactor

_HOST = "127.0.0.1"


class Tcp(OverLines):
    """A port of the loopback interface."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._port = 0
        self._clients: dict[Following, tuple[WorkerFactory, Any]] = {}

    def serve(self, factory: MasterFactory) -> None:
        """At the same port as the last time."""
        self._listener = reactor.listenTCP(self._port, factory, interface=_HOST)
        self._port = self._listener.getHost().port

    async def end(self) -> None:
        """Nobody listens."""
        await self._listener.stopListening()
        await super().end()

    def join(self, following: Following) -> None:
        """It connects again and again."""
        factory = self.client(following)
        factory.initialDelay = factory.delay = 0.01
        connector = reactor.connectTCP(_HOST, self._port, factory)
        self._clients[following] = (factory, connector)

    def cut(self, following: Following) -> None:
        """With all that waits in the kernel."""
        connector: Any = self._clients[following][1]
        connector.transport.abortConnection()

    async def leave(self, following: Following) -> None:
        """It does not come back."""
        client = self._clients.pop(following, None)
        if client is not None:
            factory, connector = client
            connected = connector.state == "connected"
            down = following.down()
            factory.stopTrying()
            connector.disconnect()
            if connected:
                await down


class OverTcp(FollowerContract, TestCase):
    def transport(self, site: Site) -> Transport:
        return Tcp(site)
