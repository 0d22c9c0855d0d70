"""Opens the tables of rooms of a database: synrepl's own, or a real Synapse's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from synrepl.core.errors import InputError
from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.reading.database_lookup import DatabaseLookup
from synrepl.pipeline.rooms.reading.own_scans import own_scans
from synrepl.pipeline.rooms.reading.part_reader import DatabaseParts
from synrepl.pipeline.rooms.reading.scan_reader import ScanReader
from synrepl.pipeline.rooms.reading.synapse_scans import synapse_scans
from synrepl.pipeline.rooms.reading.table_scan import RoomScans
from synrepl.pipeline.rooms.tables import RoomFrames, TableColumns
from synrepl.pipeline.source.database.open import NoStreamTables
from synrepl.storage.foreign.release import NotSynapse


class NoSuchRooms(InputError):
    """the database has no events of {rooms}; room IDs are as in !opaque:example.org, and in quotes in a shell"""


class RoomSource(NamedTuple):
    """The rooms of a database at a snapshot that is held.

    :ivar scans: how its tables are read
    :ivar is_own: it is synrepl's own, not a Synapse's
    """

    dsn: str
    snapshot: str
    scans: RoomScans
    is_own: bool

    def frames(self, spark: SparkSession) -> RoomFrames:
        """The tables; they can be read as long as the source is open."""
        return RoomFrames(
            **{table.name: self._frame(spark, table) for table in tables.ROOM_TABLES},
            stored_events=self._frame(spark, tables.EVENTS, as_stored=True),
            parts=DatabaseParts(self.dsn, self.snapshot, self.scans.judged),
            lookup=DatabaseLookup(self.dsn, self.snapshot, self.is_own),
        )

    def _frame(
        self, spark: SparkSession, table: TableColumns, *, as_stored: bool = False
    ) -> DataFrame:
        statements = self.scans.statements(table)
        reader = ScanReader(self.dsn, self.snapshot, table, statements, as_stored)
        numbers = spark.range(0, len(statements), 1, max(1, len(statements)))
        return numbers.mapInArrow(reader.rows, table.spark)


@contextmanager
def open_room_source(
    dsn: str, rooms: Sequence[str] | None = None, *, all_there: bool = True
) -> Iterator[RoomSource]:
    """Hold a snapshot of a database, and plan how to read its rooms. Needs no Spark.

    :param rooms: the IDs of the rooms to read; by default all
    :param all_there: whether it is an error if some of them are not there
    :raises NoSuchRooms: some of them have no events here
    :raises BadDsn: :raises DatabaseAway: :raises DatabaseRefused:
    :raises NoStreamTables: it is neither kind of database
    :raises RoomTablesUnknown: columns of a Synapse are missing
    :raises MayNotRead: the user of the DSN may not read its tables
    """
    with held_snapshot(dsn, "rooms") as snapshot:
        own = snapshot.txn.execute("SELECT to_regclass('synrepl._room_events')").fetchone()[0]
        try:
            scans = (own_scans if own else synapse_scans)(snapshot.txn, rooms)
        except NotSynapse:
            raise NoStreamTables(where=snapshot.where) from None
        if all_there and scans.missing:
            raise NoSuchRooms(rooms=", ".join(scans.missing[:5]))
        yield RoomSource(dsn, snapshot.name, scans, bool(own))


@contextmanager
def open_rooms(
    spark: SparkSession, dsn: str, rooms: Sequence[str] | None = None
) -> Iterator[RoomFrames]:
    """The tables of rooms, all read at one snapshot; they can be read as long as this is open.

    Tasks read parts of at most some 50,000 events each, batch by batch. While it is open, the server keeps all row
    versions that were deleted since, so read large databases on a standby.

    :param rooms: the IDs of the rooms to read; by default all
    :raises NoStreamTables: it is neither synrepl's own database nor a Synapse's
    :raises NoSuchRooms: some of the rooms have no events here
    :raises RoomTablesUnknown: columns of a Synapse are missing
    :raises MayNotRead: the user of the DSN may not read its tables
    """
    with open_room_source(dsn, rooms) as source:
        yield source.frames(spark)
