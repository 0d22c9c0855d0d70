"""An import stays current: what commits at the source afterwards is imported, each event once."""

from __future__ import annotations

import psycopg2
from twisted.internet import reactor

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.rooms.importing.following import RoomFollower
from synrepl.services.rooms.importing.importer import PARTIAL
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.rooms.tables.imports import RecordedSource
from tests.rooms.test_real_rooms import Recorded
from tests.services.rooms.importing_case import ImportingCase, RoomsInMemory
from tests.storage.foreign_rooms import insert_room, rooms_of, take_out


class FollowingASource(ImportingCase):
    async def follower(self, dsn: str, settle_s: float = 0.0) -> RoomFollower:
        self.sink = RoomsInMemory()
        self.importer_ = await self.importer(dsn, self.sink)
        scheduler = TwistedScheduler(reactor)
        self.addCleanup(scheduler.stop)
        source = ForeignStore(self.database(dsn))
        return RoomFollower(scheduler, source, self.importer_, settle_s)

    def recorded(self) -> Recorded:
        """A room with live and backfilled events."""
        return next(
            each
            for each in rooms_of("1.163.2")
            if any(row["stream_ordering"] < 0 for row in each.rows)
        )

    async def test_new_events_are_imported(self) -> None:
        recorded = max(rooms_of("1.163.2"), key=lambda each: len(each.rows))
        dsn = await self.source("1.163.2", [recorded])
        rows = sorted(recorded.rows, key=lambda row: row["stream_ordering"])
        put_back = take_out(dsn, [row["event_id"] for row in rows[-10:]])
        follower = await self.follower(dsn)
        await follower.begin()
        await self.importer_.run()
        room = self.sink.rooms[recorded.room_id]
        self.assertEqual(len(room), len(rows) - 10)
        self.assertEqual((await follower.poll()).counts.events, 0)
        put_back()
        report = await follower.poll()
        self.assertEqual(report.counts.events, 10)
        self.assertTrue(report.is_equal, report.findings)
        self.assertEqual(len(room), len(rows))
        self.assertEqual(room.current_state(), recorded.current_state)
        self.assertEqual((await follower.poll()).counts.events, 0)

    async def test_backfilled_events_are_imported(self) -> None:
        recorded = self.recorded()
        dsn = await self.source("1.163.2", [recorded])
        old = [row["event_id"] for row in recorded.rows if row["stream_ordering"] < 0]
        put_back = take_out(dsn, old[:1])
        follower = await self.follower(dsn)
        await self.importer_.run()
        put_back()
        await self.importer_.journal.record_positions(RecordedSource(1_000_000, 0))
        report = await follower.poll()
        self.assertGreaterEqual(report.counts.events, 1)
        self.assertIn(old[0], self.sink.rooms[recorded.room_id])

    async def test_a_new_room_is_imported(self) -> None:
        rooms = rooms_of("1.163.2")
        dsn = await self.source("1.163.2", rooms[:1])
        follower = await self.follower(dsn)
        await follower.begin()
        await self.importer_.run()
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            insert_room(cursor, rooms[1])
        connection.close()
        await self.importer_.journal.record_positions(RecordedSource(0, 0))
        await follower.poll()
        room = self.sink.rooms[rooms[1].room_id]
        self.assertEqual(len(room), len(rooms[1].rows))

    async def test_an_event_of_a_transaction_that_commits_late_is_imported(self) -> None:
        """Its token is smaller than that of events that were imported before."""
        recorded = max(rooms_of("1.163.2"), key=lambda each: len(each.rows))
        dsn = await self.source("1.163.2", [recorded])
        rows = sorted(recorded.rows, key=lambda row: row["stream_ordering"])
        late = rows[-2]["event_id"]
        last = take_out(dsn, [rows[-1]["event_id"]])
        put_back = take_out(dsn, [late])
        open_transaction = psycopg2.connect(dsn)
        self.addCleanup(open_transaction.close)
        follower = await self.follower(dsn)
        await follower.begin()
        await self.importer_.run()
        with open_transaction.cursor() as cursor:
            cursor.execute("SELECT 1")  # it was open before the last event was committed
        last()
        report = await follower.poll()
        self.assertEqual(report.counts.events, 1)
        put_back()
        open_transaction.rollback()
        report = await follower.poll()
        self.assertEqual(report.counts.events, 1)
        self.assertIn(late, self.sink.rooms[recorded.room_id])

    async def test_a_partial_room_is_imported_when_it_is_complete(self) -> None:
        recorded = rooms_of("1.163.2")[0]
        dsn = await self.source("1.163.2", [recorded])
        self.change(dsn, "INSERT INTO partial_state_rooms (room_id) VALUES (%s)", recorded.room_id)
        follower = await self.follower(dsn)
        await follower.begin()
        report = await self.importer_.run()
        self.assertEqual(report.left_out, {recorded.room_id: PARTIAL})
        self.change(dsn, "DELETE FROM partial_state_rooms")
        await follower.poll()
        self.assertEqual(len(self.sink.rooms[recorded.room_id]), len(recorded.rows))
