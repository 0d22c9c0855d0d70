"""Reads parts of rooms from a database, in the tasks that judge them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from synrepl.driver.held_snapshot import JoinedSnapshot
from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.parts.source import JudgedRoom, RoomPart
from synrepl.pipeline.rooms.reading.scan_reader import SnapshotReader
from synrepl.pipeline.rooms.reading.table_scan import PartStatements
from synrepl.pipeline.rooms.tables import TableColumns


class DatabaseParts(NamedTuple):
    """Reads parts of rooms at a snapshot that the driver holds; implements :class:`.PartSource`.

    :ivar dsn: the database, for libpq
    :ivar snapshot: the name of an exported snapshot
    """

    dsn: str
    snapshot: str
    statements: PartStatements

    def rooms(self) -> list[JudgedRoom]:
        """See :class:`.PartSource`; counts the events of each room.

        :raises DatabaseAway: :raises DatabaseRefused: :raises QueryFailed: the snapshot is not held any more
        """
        txn = JoinedSnapshot(self.dsn, "rooms", self.snapshot).txn
        found = [JudgedRoom(*row) for row in txn.execute(self.statements.rooms).fetchall()]
        return sorted(found, key=lambda room: room.room_id)

    def order(self, room: JudgedRoom) -> pa.Table:
        """See :class:`.PartSource`.

        :raises TableReadFailed: :raises TableReadAway: :raises SnapshotGone:
        """
        where = self.statements.condition([RoomPart(0, room, None, None, room.events)])
        schema = tables.ROOM_ORDER.arrow
        return pa.Table.from_batches(list(self._batches(tables.ROOM_ORDER, where)), schema)

    def parts(
        self, parts: Sequence[RoomPart], *, verified: bool
    ) -> Iterator[tuple[RoomPart, pa.Table]]:
        """See :class:`.PartSource`.

        :raises TableReadFailed: :raises TableReadAway: :raises SnapshotGone:
        """
        table = tables.VERIFIED_EVENTS if verified else tables.JUDGED_EVENTS
        for together in _read_together(parts):
            by_room = {part.room.room_id: part for part in together}
            batches = self._batches(table, self.statements.condition(together))
            if together[0].is_outliers:
                for batch in batches:
                    yield from _split(by_room, pa.Table.from_batches([batch]))
            else:
                yield from _split(by_room, pa.Table.from_batches(list(batches), table.arrow))

    def _batches(self, table: TableColumns, where: str) -> Iterator[pa.RecordBatch]:
        reader = SnapshotReader(self.dsn, self.snapshot, table)
        statement = self.statements.statements[table.name].replace("{part}", where)
        # All parts of a table together must not read it once for each part.
        return reader.batches(statement, by_index=table is not tables.ROOM_ORDER)


def _read_together(parts: Sequence[RoomPart]) -> list[list[RoomPart]]:
    """Parts that one statement reads: whole ones of several rooms, or one that is cut off."""
    whole = [part for part in parts if part.is_whole]
    alone = [[part] for part in parts if not part.is_whole]
    return [whole, *alone] if whole else alone


def _split(by_room: dict[str, RoomPart], table: pa.Table) -> Iterator[tuple[RoomPart, pa.Table]]:
    """A table for each room that has rows in it."""
    if not table.num_rows:
        return
    if len(by_room) > 1:
        table = table.sort_by("room_id")
    at = 0
    for run in table.column("room_id").value_counts().to_pylist():
        yield by_room[run["values"]], table.slice(at, run["counts"])
        at += run["counts"]
