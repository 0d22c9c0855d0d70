"""Fixtures: what changes memberships of our users, among servers of pure rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.pure_server import PureServer
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.joining.handshake import JoinHandshake
from synrepl.services.federation.joining.join import JoinedRoomResult, JoinRequest, RoomJoiner
from synrepl.services.federation.joining.own_membership import MembershipMaker
from synrepl.services.federation.joining.running_joins import RunningJoins
from synrepl.services.forwarding import NoOtherWriters
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.placements import PlacementCache
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.storage.rooms.tables.sent_events import SentEvent
from tests.services.federation.joining_server import HERE, US
from tests.services.federation.resync.resync_case import ResyncCase
from tests.services.world import NullLog

#: Another user of ours.
THEM = "@them:here"


class JoiningCase(ResyncCase):
    """Servers ``a``, ``b`` and ``c``, and what joins rooms here."""

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.c = PureServer("c", self.federation)
        scheduler, key = self.one.process.scheduler, self.federation.keys.signing_key(HERE)
        self.writers = RoomWriters(self.database, ["one"])
        self.forwarder = NoOtherWriters()
        self.sender = EventSender(
            scheduler,
            self.database,
            PlacementCache(scheduler, self.writers),
            self.one.persister,
            "one",
            HERE,
            key,
            self.forwarder,
        )
        aliases = RoomAliases(self.database, self.sender)
        self.changes = RoomChanges(self.database, self.sender, aliases)
        self.maker = MembershipMaker(HERE, key)
        self.handshake = JoinHandshake(
            scheduler,
            self.database,
            self.here.client,
            self.here.verifier,
            self.maker,
            self.here.joins,
            self.here.full_joins,
            NullLog(),
        )
        self.joiner = RoomJoiner(
            scheduler, self.database, self.handshake, self.locally, "one", HERE, NullLog()
        )
        self.running = RunningJoins(
            scheduler, self.joiner, self.writers, self.forwarder, "one", NullLog()
        )

    async def locally(
        self, user_id: str, room_id: str, content: Mapping[str, Any]
    ) -> SentEvent | None:
        return await self.changes.join(ClientIdentity(user_id, "D"), room_id, content)

    async def enter(
        self, room: HostedRoom, *via: str, user: str = US, **content: str
    ) -> JoinedRoomResult:
        """Have a user of ours join a room."""
        return await self.running.join(JoinRequest(room.room_id, user, content, via))

    def membership(self, room: HostedRoom, user: str = US) -> str | None:
        """What a room on its server says of a user."""
        found = room.current(("m.room.member", user))
        return None if found is None else str(found.membership)

    def counts(self, tables: Sequence[str]) -> dict[str, int]:
        """The number of rows of some tables."""
        return {each: self.sql(f"SELECT count(*) FROM synrepl.{each}") for each in tables}

    def check_nothing_is_left(self, hint: object = None) -> None:
        tables = ("_rooms", "_room_events", "_room_joins", "_room_keys", "_state_groups")
        self.assertEqual(self.counts(tables), dict.fromkeys(tables, 0), hint)

    def is_partial(self) -> bool:
        return bool(self.sql("SELECT count(*) FROM synrepl._partial_rooms"))
