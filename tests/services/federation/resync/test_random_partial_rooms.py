"""Random rooms, joined partially, with events that come meanwhile: in the end as if everything had been known."""

from __future__ import annotations

import os
from dataclasses import replace

from simulator.rooms.comparison import Kept, compare_room
from synrepl.rooms import Room
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.event_places_rebuild import rebuild_event_places
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.tables.numbers import lock_room
from tests.services.federation.resync.random_joined_room import (
    SERVER,
    RandomJoinedRoom,
    RandomRoomServer,
    UncheckedEvents,
)
from tests.services.federation.resync.resync_case import ResyncCase

#: Number of rooms: a few in every run, and more where more examples are asked for.
EXAMPLES = int(os.environ.get("SYNREPL_ROOM_EXAMPLES", "12"))

VERSIONS = ("3", "6", "10", "11", "12")


class RandomPartialRooms(ResyncCase):
    timeout = 3_600

    async def test_a_completed_room_is_as_if_everything_had_been_known(self) -> None:
        self.federation.register("a", self.here)
        wrong = changed = 0  # of all rooms: streams are not emptied
        for seed in range(EXAMPLES):
            room = RandomJoinedRoom(seed, VERSIONS[seed % len(VERSIONS)])
            await self.play(room)
            self.check_done(seed)
            outliers = await self.stored_ids("stream_id IS NULL")
            expected = room.stored(outliers)
            await self.compare(expected, seed)
            self.check_verdicts(room)
            await self.check_places()
            await self.check_only_random_events_are_wrong()
            wrong = self.sql("SELECT count(*) FROM synrepl.un_partial_stated_event")
            changed = self.sql(
                "SELECT count(*) FROM synrepl.un_partial_stated_event"
                " WHERE rejection_status_changed"
            )
            await self.empty()
        self.assertGreater(wrong, 5 * EXAMPLES)
        self.assertGreater(changed, EXAMPLES / 6)

    async def compare(self, expected: Room, seed: int) -> None:
        # The topological ordering depends on which prev events had come before.
        kept = Kept(unordered={each.event.event_id for each in expected})
        await self.read(lambda txn: compare_room(txn, expected, seed, False, kept))

    async def play(self, room: RandomJoinedRoom) -> None:
        """Join, and let events come before, during and after the resync."""
        rng = room.rng
        self.federation.register("a", RandomRoomServer(room))
        parts = replace(self.here.parts, verifier=UncheckedEvents(), server_name=SERVER)
        worker = self.here.worker = ResyncWorker(parts, "one", ["one"])
        await self.here.joins.persist(room.join, "a")
        room.more(rng.randint(0, 40))
        while len(room.unsent) > 10:
            await self.come(room)
        if rng.random() < 0.5:
            self.one.forget()
        await worker.look()
        while room.unsent:
            await self.come(room)
            await self.tick()
        await self.here.complete()

    async def come(self, room: RandomJoinedRoom) -> None:
        incoming = room.some(room.rng.randint(1, 6))
        await self.here.persister.persist(room.join.join.room_id, room.version.name, incoming)

    def check_done(self, seed: int) -> None:
        job = self.sql("SELECT row(j)::text FROM synrepl._resync_jobs j")
        attempts = self.sql("SELECT array_agg(a)::text FROM synrepl._resync_attempts a")
        phase = self.sql("SELECT phase FROM synrepl._resync_jobs")
        self.assertEqual(phase, "done", (seed, job, attempts))

    def check_verdicts(self, room: RandomJoinedRoom) -> None:
        """Verdicts are those of the server that has everything.

        Where an event leans on one that is rejected there, and is here only because it is cited, they may differ: then
        its rejection by the state before it is not known here.
        """
        whole = room.whole
        rows = self.sql(
            "SELECT jsonb_object_agg(event_id, flags & 2 = 0) FROM synrepl._room_events"
            " WHERE stream_id IS NOT NULL"
        )
        for event_id, is_accepted in rows.items():
            chain = room.chain([whole[event_id].event])
            if all(whole[each.event_id].accepted for each in chain):
                self.assertEqual(is_accepted, whole[event_id].accepted, event_id)

    async def check_places(self) -> None:
        """Events are placed along the main line as if they were placed anew."""
        branches = "SELECT array_agg(b ORDER BY b)::text FROM synrepl._branch_memberships b"
        before = self.sql(branches)

        def work(txn: Transaction) -> int:
            room_no = int(txn.execute("SELECT room_no FROM synrepl._rooms").fetchone()[0])
            return rebuild_event_places(txn, lock_room(txn, room_no))

        self.assertEqual(await self.database.run("place events", work), 0)
        self.assertEqual(self.sql(branches), before)

    async def check_only_random_events_are_wrong(self) -> None:
        verification = RoomVerification(self.database)
        for room_id in await verification.room_ids():
            findings = [
                str(each)
                async for each in verification.findings(room_id)
                if each.problem is not RoomProblem.WRONG_CONTENT  # they have no content hashes
            ]
            self.assertEqual(findings, [])
