"""The follower, over connections in memory."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from synrepl.adapters.tcp.master import MasterFactory
from synrepl.testing.links import EvenPace, Link
from tests.contract.follower import FollowerContract
from tests.contract.lines import LineTransport
from tests.contract.world import ContractStore, FollowerProcess, Transport, reactor

#: Bytes that arrive at a time, so that lines come in parts.
_PIECE = 512


class LoopbackTransport(LineTransport):
    """Links in memory, which reconnect when they are lost."""

    def __init__(self, site: ContractStore) -> None:
        super().__init__(site)
        self._links: dict[FollowerProcess, Link] = {}
        self._server: MasterFactory | None = None

    def serve(self, factory: MasterFactory) -> None:
        """Accept links, and reconnect existing ones."""
        self._server = factory
        for following, link in list(self._links.items()):
            self._rejoin(following, link)

    async def end(self) -> None:
        """Stop accepting links."""
        self._server = None
        await super().end()

    def join(self, following: FollowerProcess) -> None:
        """Connect a new link."""
        assert self._server is not None
        client = self.client(following).buildProtocol(None)
        link = Link(reactor, client, self._server.buildProtocol(None), pace=EvenPace(0.0, _PIECE))
        self._links[following] = link
        link.client.lost = lambda _: reactor.callLater(0, self._rejoin, following, link)
        link.connect()

    def cut(self, following: FollowerProcess) -> None:
        """Cut the link, losing what is in transit."""
        self._links[following].cut()

    async def leave(self, following: FollowerProcess) -> None:
        """Cut the link for good."""
        link = self._links.pop(following, None)
        if link is not None and link.client.open:
            down = following.down()
            link.cut()
            await down

    def _rejoin(self, following: FollowerProcess, link: Link) -> None:
        wanted = self._links.get(following) is link
        if wanted and self._server is not None and not link.client.open:
            self.join(following)


class LoopbackFollowerTest(FollowerContract, TestCase):
    def transport(self, site: ContractStore) -> Transport:
        return LoopbackTransport(site)
