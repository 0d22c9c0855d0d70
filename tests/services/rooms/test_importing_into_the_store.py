"""Recorded rooms are imported into the room store, which then equals the pure rooms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from synrepl.rooms import RoomVersion, event_of, room_version
from synrepl.services.rooms.importing.findings import ImportReport
from synrepl.services.rooms.importing.importer import RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.services.rooms.importing.persisting import PersistingSink
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.store import ForeignStore
from tests.rooms.test_real_rooms import Recorded
from tests.services.rooms.importing_case import RoomsInMemory
from tests.storage.foreign_rooms import room_database, rooms_of
from tests.storage.rooms.store_case import StoreCase


class BothSinks:
    """Stores in a database, and in memory."""

    def __init__(self, store: PersistingSink) -> None:
        self._store = store
        self.memory = RoomsInMemory()

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """Store in both."""
        await self.memory.store(room_id, version, events)
        return await self._store.store(room_id, version, events)

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """Those in the database."""
        return await self._store.stored(event_ids)

    async def forward_extremities(self, room_id: str) -> Sequence[str]:
        """Those in the database."""
        return await self._store.forward_extremities(room_id)


class ImportingIntoTheStore(StoreCase):
    async def imported(
        self, version: str, batch: int = 500, **given: Any
    ) -> tuple[ImportReport, BothSinks, list[Recorded]]:
        rooms = rooms_of(version)
        dsn = await room_database(version, self, rooms)
        database = self.one.process.database
        sink = BothSinks(PersistingSink(self.one.persister, database))
        source = ForeignStore(self.process_at(dsn).database)
        importer = RoomImporter(source, ImportJournal(database, "test"), sink, batch=batch)
        return await importer.run(), sink, rooms

    def process_at(self, dsn: str) -> Any:
        """A process that uses another database."""
        mine, self.dsn = self.dsn, dsn
        try:
            return self.process("source")
        finally:
            self.dsn = mine

    async def check(self, version: str, batch: int = 500) -> ImportReport:
        report, sink, rooms = await self.imported(version, batch)
        self.assertEqual(report.counts.imported, sum(len(each.rows) for each in rooms))
        for recorded in rooms:
            room = sink.memory.rooms[recorded.room_id]
            if not any(row["internal_metadata"].get("soft_failed") for row in recorded.rows):
                await self.check_equal(room, recorded.room_id)
        return report

    async def test_rooms_of_the_current_release_are_stored_as_they_are(self) -> None:
        report = await self.check("1.163.2")
        self.assertEqual(report.findings, [])

    async def test_rooms_of_1_43_are_stored_as_they_are(self) -> None:
        self.assertEqual(len((await self.check("1.43.0", 40)).findings), 1)

    async def test_rooms_of_1_11_are_stored_as_they_are(self) -> None:
        self.assertEqual(len((await self.check("1.11.1")).findings), 1)

    async def test_live_events_have_the_order_in_which_they_arrived_at_the_source(self) -> None:
        _, _, rooms = await self.imported("1.43.0")

        def order(txn: Transaction) -> list[str]:
            txn.execute(
                "SELECT event_id FROM synrepl._room_events WHERE stream_id IS NOT NULL"
                " ORDER BY stream_id"
            )
            return [str(event_id) for (event_id,) in txn.fetchall()]

        stored = await self.read(order)
        for recorded in rooms:
            arrived = sorted(
                (row for row in recorded.rows if not row["outlier"]),
                key=lambda row: row["stream_ordering"],
            )
            at = {row["event_id"]: row["stream_ordering"] for row in arrived}
            version = room_version(recorded.room["room_version"])
            wanted = [
                row["event_id"]
                for row in arrived
                # One arrived before events that it follows.
                if all(
                    at.get(each, 0) < row["stream_ordering"]
                    for each in event_of(row["event"], version).prev_event_ids
                )
            ]
            self.assertGreaterEqual(len(wanted), len(arrived) - 1)
            known = set(wanted)
            self.assertEqual([each for each in stored if each in known], wanted)

    async def test_events_that_the_source_soft_failed_are_not_shown(self) -> None:
        report, _, rooms = await self.imported("1.43.0")
        self.assertEqual(report.counts.soft_failed, 5)

        def flagged(txn: Transaction) -> set[str]:
            txn.execute("SELECT event_id FROM synrepl._room_events WHERE flags & 4 <> 0")
            return {str(event_id) for (event_id,) in txn.fetchall()}

        wanted = {
            row["event_id"]
            for recorded in rooms
            for row in recorded.rows
            if row["internal_metadata"].get("soft_failed")
        }
        self.assertEqual(await self.read(flagged), wanted)
