"""The keys of servers, over a real database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from signedjson.key import generate_signing_key
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.federation.keys.fetching import Notary
from synrepl.services.federation.keys.key_ring import ServerKeyRing
from synrepl.services.federation.keys.own_keys import OwnKeys
from tests.services.federation.key_servers import DAY_MS, KeyServer, KeyServers
from tests.storage.postgres import PostgresCase

NOW = 1_700_000_000
NOW_MS = NOW * 1000
HERE = "here.example"


class KeysCase(PostgresCase):
    """A key ring, under a clock of the test's."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.clock = Clock()
        self.clock.advance(NOW)
        self.scheduler = TwistedScheduler(self.clock, lambda: 0.0)
        self.one = self.process("one")
        self.servers = KeyServers()
        self.messages: list[str] = []
        self.own = OwnKeys(self.clock, self.one.database, HERE, generate_signing_key("own"))
        self.ring = self.new_ring()

    def new_ring(self, notaries: Sequence[Notary] = ()) -> ServerKeyRing:
        """A ring without memory."""
        return ServerKeyRing(
            self.scheduler, self.one.database, self.own, self.servers, notaries, self
        )

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """A log."""
        self.messages.append(format.format(**facts))

    warn = info

    def add(self, name: str, days: float = 1) -> KeyServer:
        """A server whose keys are valid for some days."""
        return self.servers.add(name, NOW_MS + int(days * DAY_MS))

    async def for_events(
        self, *wanted: tuple[KeyServer, int] | KeyServer, ring: ServerKeyRing | None = None
    ) -> set[str]:
        """The servers whose current keys are found, among some with the times at which they must be valid."""
        pairs = [(each, 0) if isinstance(each, KeyServer) else each for each in wanted]
        found = await (ring or self.ring).for_events(
            {server.name: {server.key_id: at} for server, at in pairs}
        )
        return {
            server.name
            for server, at in pairs
            if server.key_id in found[server.name]
            and found[server.name][server.key_id].was_valid(at)
        }

    async def for_request(self, server: KeyServer, ring: ServerKeyRing | None = None) -> Any:
        """The current key of a server, for a request."""
        return await (ring or self.ring).for_request(server.name, server.key_id)

    @staticmethod
    def starting(work: Any) -> Deferred[Any]:
        """Start a coroutine."""
        return Deferred.fromCoroutine(work)
