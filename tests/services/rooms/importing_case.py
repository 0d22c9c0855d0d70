"""A test case that imports the rooms of recorded servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg2
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.rooms import Keys, Room, RoomVersion
from synrepl.services.rooms.importing.findings import ImportFinding, ImportReport
from synrepl.services.rooms.importing.importer import RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.storage.foreign.store import ForeignStore
from tests.rooms.test_real_rooms import Recorded
from tests.storage.foreign_rooms import room_database
from tests.storage.postgres import MIGRATED


class RoomsInMemory:
    """A :class:`RoomSink` of the pure rooms, each in memory.

    :ivar rooms: by ID
    """

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}

    async def store(
        self, room_id: str, version: RoomVersion, events: Sequence[ImportedEvent]
    ) -> Mapping[str, str]:
        """Judge events in a pure room."""
        room = self.rooms.setdefault(room_id, Room(version, room_id))
        different: dict[str, str] = {}
        for each in events:
            event_id = each.event.event_id
            if each.outlier:
                room.receive_outlier(each.event)
            elif each.state_before is not None:
                room.receive_with_state(each.event, each.state_before)
            else:
                room.receive(each.event, live=False)
            if event_id not in room:
                different[event_id] = f"waits for {sorted(room.missing)}"
            elif room[event_id].accepted == each.rejected:
                different[event_id] = "accepted" if each.rejected else "rejected"
            elif not each.outlier and room[event_id].state_after != each.judged.state_after:
                different[event_id] = "has another state"
        return different

    async def stored(self, event_ids: Collection[str]) -> Collection[str]:
        """Those that are no outliers."""
        return [
            each for each in event_ids if any(room.has_state(each) for room in self.rooms.values())
        ]

    async def forward_extremities(self, room_id: str) -> Sequence[str]:
        """Those of the pure room."""
        return sorted(self.rooms[room_id].forward_extremities)


class ImportingCase(TestCase):
    """Has a database of a recorded server, and one of synrepl's."""

    timeout = 120

    async def source(self, version: str, rooms: Sequence[Recorded] | None = None) -> str:
        """The DSN of a database with a recorded server's rooms."""
        return await room_database(version, self, rooms)

    async def importer(
        self, source: str, sink: Any = None, *, keys: Keys | None = None, batch: int = 50
    ) -> RoomImporter:
        """An importer into a new database."""
        target = await MIGRATED.copy(self)
        journal = ImportJournal(self.database(target), "test")
        store = ForeignStore(self.database(source))
        return RoomImporter(store, journal, sink or RoomsInMemory(), keys, batch)

    def database(self, dsn: str) -> PostgresDatabase:
        """A database, closed at the end of the test."""
        database = PostgresDatabase(reactor, dsn, "test")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return database

    def change(self, dsn: str, statement: str, *values: object) -> Any:
        """Change a source by hand; the first cell of the result, if there is one."""
        connection = psycopg2.connect(dsn)
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute("SET session_replication_role = replica")
                cursor.execute(statement, values or None)
                row = cursor.fetchone() if cursor.description else None
                return None if row is None else row[0]
        finally:
            connection.close()

    def only(self, report: ImportReport) -> ImportFinding:
        """The only finding of a report."""
        self.assertEqual(len(report.findings), 1, "\n".join(map(str, report.findings)))
        return report.findings[0]
