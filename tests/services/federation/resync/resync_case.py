"""Fixtures: our store among servers of pure rooms, with a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from simulator.rooms.comparison import compare_room
from synrepl.rooms import Event, Room, topological_sort
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from tests.services.federation.joining_server import JoiningServer
from tests.services.world import NullLog
from tests.storage.rooms.store_case import StoreCase

T = TypeVar("T")

ALICE, BOB = "@alice:a", "@bob:b"


class ResyncCase(StoreCase):
    """Servers ``a`` and ``b`` with pure rooms, and ours."""

    streams = RESYNC_STREAMS

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.connection = self.connect()
        scheduler = self.one.process.scheduler
        self.federation = InMemoryFederation(scheduler, patience_s=0.3)
        self.a, self.b = (PureServer(name, self.federation) for name in "ab")
        self.here = JoiningServer(
            self.federation, scheduler, self.database, self.one.persister, NullLog()
        )

    def sql(self, statement: str, *params: object, on: Any = None) -> Any:
        """Run a statement on one connection of the test."""
        return super().sql(statement, *params, on=on or self.connection)

    @staticmethod
    def deferred(work: Coroutine[Any, Any, T]) -> Deferred[T]:
        """The result of a coroutine, for ``assertFailure``."""
        return Deferred.fromCoroutine(work)

    def made_room(self, version: str = "10", members: int = 8) -> HostedRoom:
        """A room of Alice, with members of several servers, some of whom are on server ``b``."""
        room = self.a.create_room(version, ALICE)
        for number in range(members):
            user = f"@u{number}:{'bcde'[number % 4]}"
            self.a.send(room.room_id, "m.room.member", user, {"membership": "join"}, user)
        return room

    async def shared_room(self, version: str = "10", members: int = 8) -> HostedRoom:
        """A room that server ``b`` has, too."""
        room = self.made_room(version, members)
        await self.b.join(room.room_id, BOB, "a")
        return room

    async def join(self, room: HostedRoom, via: str = "a") -> None:
        """Join a room partially; the other servers hear of it."""
        done = await self.here.join(room.room_id, via)
        self.assertTrue(done.is_partial)
        for server in (self.a, self.b):
            await server.outgoing.send_all()

    def attempts(self) -> dict[str, str]:
        """What came of asking each server, by name."""
        found = self.sql("SELECT jsonb_object_agg(destination, code) FROM synrepl._resync_attempts")
        return found or {}

    def try_again(self) -> None:
        """Time passes: jobs that wait may be claimed."""
        self.sql("UPDATE synrepl._resync_jobs SET next_try = now(), leased_until = NULL")

    async def receive(self, *events: Event) -> PersistedBatch:
        """Events of others come to our store."""
        incoming = [IncomingEvent(each) for each in events]
        version = events[0].version.name
        return await self.one.persister.persist(events[0].room_id, version, incoming)

    async def sent_to_us(self, room: HostedRoom) -> None:
        """All events of a room that came after our join."""
        known = set(await self.stored_ids())
        for judged in room.room.in_topological_order():
            if judged.event.event_id not in known:
                await self.receive(judged.event)

    async def stored_ids(self, where: str = "stream_id IS NOT NULL") -> list[str]:
        return self.sql(f"SELECT array_agg(event_id) FROM synrepl._room_events WHERE {where}") or []

    async def check_complete(self, room: HostedRoom) -> Room:
        """Our room is what a room would be that had everything, and nothing is left of its having been partial.

        :returns: that room
        """
        job = self.sql("SELECT j::text FROM synrepl._resync_jobs j")
        phase = self.sql("SELECT phase FROM synrepl._resync_jobs")
        self.assertEqual(phase, "done", (job, self.attempts()))
        for table in (
            "_partial_rooms",
            "_partial_events",
            "_resync_events",
            "_listed_events",
            "_fetched_events",
            "_partial_room_servers",
        ):
            self.assertEqual(self.sql(f"SELECT count(*) FROM synrepl.{table}"), 0, table)
        whole = await self.whole_room(room)
        await self.read(lambda txn: compare_room(txn, whole, None, orders=False))
        await self.check_nothing_is_wrong()
        return whole

    @property
    def verification(self) -> RoomVerification:
        """What looks for damage."""
        return RoomVerification(self.database)

    async def check_nothing_is_wrong(self) -> None:
        verification = self.verification
        for room_id in await verification.room_ids():
            findings = [str(each) async for each in verification.findings(room_id)]
            self.assertEqual(findings, [])

    async def whole_room(self, room: HostedRoom) -> Room:
        """The room in memory that has the events of ours, and knew all states."""
        ours = Room(room.version)
        outliers = await self.stored_ids("stream_id IS NULL")
        streamed: Mapping[str, Event] = {each: room.event(each) for each in await self.stored_ids()}
        order = topological_sort(
            [room.event(each) for each in outliers], dependencies=lambda each: each.auth_event_ids
        )
        for event in order.events:
            ours.receive_outlier(event)
        for event in topological_sort(streamed.values()).events:
            if all(ours.has_state(each) for each in event.prev_event_ids):
                ours.receive(event, live=False)
            else:
                ours.receive_with_state(event, room.room.state_before(event.event_id).as_dict())
        return ours
