"""Runs the tasks of room jobs in this process, over a real database and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.parts.cutting import cut_room, outliers_of, packed_parts, room_parts
from synrepl.pipeline.rooms.parts.source import RoomPart
from synrepl.pipeline.rooms.parts.tasks import PartTasks
from synrepl.pipeline.rooms.reading.database_lookup import DatabaseLookup
from synrepl.pipeline.rooms.reading.own_scans import own_scans
from synrepl.pipeline.rooms.reading.part_reader import DatabaseParts
from synrepl.pipeline.rooms.reading.scan_reader import ScanReader
from synrepl.pipeline.rooms.reading.synapse_scans import synapse_scans
from synrepl.pipeline.rooms.reading.table_scan import RoomScans
from synrepl.pipeline.rooms.tables import TableColumns

#: The rows that come of a part.
Work = Callable[[LookupSource, RoomPart, pa.Table], Iterator[pa.RecordBatch]]


class CutRow:
    """A row of :data:`.cutting.CUTS`, as Spark has it."""

    def __init__(self, topological: int, stream: int, events: int, **_: int) -> None:
        self.topological = topological
        self.stream = stream
        self.events = events


class InProcess:
    """The tables of a database at one snapshot.

    :param is_own: synrepl's own database, not a Synapse's
    """

    def __init__(self, dsn: str, snapshot: str, scans: RoomScans, *, is_own: bool) -> None:
        self._dsn = dsn
        self._snapshot = snapshot
        self._scans = scans
        self.lookup = DatabaseLookup(dsn, snapshot, is_own)
        self.source = DatabaseParts(dsn, snapshot, scans.judged)

    def read(self, table: TableColumns, *, as_stored: bool = False) -> pa.Table:
        """A whole table."""
        statements = self._scans.statements(table)
        reader = ScanReader(self._dsn, self._snapshot, table, statements, as_stored)
        return pa.Table.from_batches(list(reader.rows(_numbers(len(statements)))), table.arrow)

    def parts(self, size: int) -> list[RoomPart]:
        """The parts of all rooms.

        :param size: number of events after which a part ends where it can
        """
        parts: list[RoomPart] = []
        for room in self.source.rooms():
            if room.events:
                cuts = cut_room(0, self.source.order(room), size).to_pylist()
                parts += room_parts(len(parts), room, [CutRow(**cut) for cut in cuts])
        return parts

    def run(self, work: Work, size: int, *, verified: bool = False) -> list[dict[str, Any]]:
        """The rows of all parts.

        :param size: number of events after which a part ends where it can
        :param verified: with what is compared with the JSON of events, and outliers
        """
        bins = packed_parts(self.parts(size), size)
        if verified:
            bins += packed_parts(outliers_of(self.source.rooms()), size)
        tasks = PartTasks(self.source, bins, partial(work, self.lookup), verified)
        return [row for batch in tasks.rows(_numbers(len(bins))) for row in batch.to_pylist()]


def _numbers(count: int) -> Iterator[pa.RecordBatch]:
    """The numbers of tasks, as Spark hands them to one."""
    return iter([pa.RecordBatch.from_pydict({"id": list(range(count))})])


def run_in_process(
    dsn: str, work: Work, size: int, *, is_own: bool = False, verified: bool = False
) -> list[dict[str, Any]]:
    """See :meth:`InProcess.run`."""
    with held_snapshot(dsn, "rooms") as snapshot:
        scans = (own_scans if is_own else synapse_scans)(snapshot.txn, None)
        source = InProcess(dsn, snapshot.name, scans, is_own=is_own)
        return source.run(work, size, verified=verified)
