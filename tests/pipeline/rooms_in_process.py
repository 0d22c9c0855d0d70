"""Runs the tasks of room jobs in this process, over a real database and without Spark.

What Spark does between the tasks is done here in the simplest way: events are given their parts, sorted, and
cut into batches anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.parts.cutting import OUTLIERS, cut_room
from synrepl.pipeline.rooms.parts.tasks import each_part
from synrepl.pipeline.rooms.reading.database_lookup import DatabaseLookup
from synrepl.pipeline.rooms.reading.own_scans import own_scans
from synrepl.pipeline.rooms.reading.scan_reader import ScanReader
from synrepl.pipeline.rooms.reading.synapse_scans import synapse_scans
from synrepl.pipeline.rooms.reading.table_scan import RoomScans
from synrepl.pipeline.rooms.tables import TableColumns

#: Rows of a batch, few enough that parts go over several.
_BATCH = 7

#: The rows that come of a part.
Work = Callable[[LookupSource, pa.Table], Iterator[pa.RecordBatch]]


class InProcess:
    """The tables of a database at one snapshot.

    :param is_own: synrepl's own database, not a Synapse's
    """

    def __init__(self, dsn: str, snapshot: str, scans: RoomScans, *, is_own: bool) -> None:
        self._dsn = dsn
        self._snapshot = snapshot
        self._scans = scans
        self.lookup = DatabaseLookup(dsn, snapshot, is_own)

    def read(self, table: TableColumns, *, as_stored: bool = False) -> pa.Table:
        """A whole table."""
        statements = self._scans.statements(table)
        reader = ScanReader(self._dsn, self._snapshot, table, statements, as_stored)
        numbers = pa.RecordBatch.from_pydict({"id": list(range(len(statements)))})
        return pa.Table.from_batches(list(reader.rows(iter([numbers]))), table.arrow)

    def run(self, work: Work, size: int) -> list[dict[str, Any]]:
        """The rows of all parts.

        :param size: number of events after which a part ends where it can
        """
        events = self.read(tables.LINKED_EVENTS, as_stored=True)
        places = self.read(tables.PLACES)
        firsts: dict[str, list[tuple[int, tuple[int, int]]]] = {}
        number = 0
        for room_id in sorted(set(places.column("room_id").to_pylist())):
            room = places.filter(pc.equal(places.column("room_id"), room_id))
            for cut in cut_room(room, size).to_pylist():
                place = cut["first_topological"], cut["first_stream"]
                firsts.setdefault(room_id, []).append((number, place))
                number += 1
        rows = events.to_pylist()
        for row in rows:
            place = row["topological_ordering"], row["stream_ordering"]
            row["part"] = OUTLIERS
            if not row["outlier"]:
                row["part"] = max(at for at, first in firsts[row["room_id"]] if first <= place)
        rows.sort(key=lambda row: (row["part"], row["room_id"]))
        table = pa.Table.from_pylist(rows, events.schema.append(pa.field("part", pa.int32())))
        batches = iter(table.to_batches(max_chunksize=_BATCH))
        return [
            row
            for batch in each_part(partial(work, self.lookup), batches)
            for row in batch.to_pylist()
        ]


def run_in_process(
    dsn: str, work: Work, size: int, *, is_own: bool = False
) -> list[dict[str, Any]]:
    """See :meth:`InProcess.run`."""
    with held_snapshot(dsn, "rooms") as snapshot:
        scans = (own_scans if is_own else synapse_scans)(snapshot.txn, None)
        return InProcess(dsn, snapshot.name, scans, is_own=is_own).run(work, size)
