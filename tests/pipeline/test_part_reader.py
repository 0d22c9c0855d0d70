"""Reading parts of rooms in tasks: what fails is named, and no connection stays open."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from synrepl.driver.held_snapshot import held_snapshot
from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.parts.source import JudgedRoom, RoomPart
from synrepl.pipeline.rooms.parts.tasks import PartTasks
from synrepl.pipeline.rooms.reading.part_reader import DatabaseParts
from synrepl.pipeline.rooms.reading.scan_reader import SnapshotGone, TableReadFailed
from synrepl.pipeline.rooms.reading.table_scan import PartStatements
from tests.storage.postgres import PostgresCase

#: An order that cannot be read, and outliers that come in several batches.
STATEMENTS = PartStatements(
    "",
    {
        tables.ROOM_ORDER.name: "SELECT n, 1 / (n - 1), NULL::bigint, true FROM"
        " generate_series(1, 9::bigint) n WHERE {part}",
        tables.JUDGED_EVENTS.name: "SELECT '!r', '$' || n, NULL::bigint, NULL::bigint, false, NULL::bigint,"
        " NULL::bigint, decode(repeat('00', 200), 'hex') FROM generate_series(1, 100000) n WHERE {part}",
    },
    room="1",
    place="(n, n)",
    is_outlier="n > 0",
)

ROOM = JudgedRoom("1", "!r", "10", 0, 100_000)
OUTLIERS = RoomPart(0, ROOM, None, None, 100_000, is_outliers=True)


class Failures(PostgresCase):
    """Of the database, and of the work on what was read."""

    timeout = 30

    def connections(self) -> object:
        """The number of the connections of tasks once those that were closed have ended."""
        return self.sql(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'synrepl rooms'"
        )

    async def test_a_snapshot_that_is_not_held_any_more_is_named(self) -> None:
        with held_snapshot(self.dsn, "driver") as snapshot:
            name = snapshot.name
        with self.assertRaises(SnapshotGone):
            list(DatabaseParts(self.dsn, name, STATEMENTS).parts([OUTLIERS], verified=False))
        await self.until(lambda: self.connections() == 0)

    async def test_a_statement_that_fails_is_named(self) -> None:
        with held_snapshot(self.dsn, "driver") as snapshot:
            parts = DatabaseParts(self.dsn, snapshot.name, STATEMENTS._replace(is_outlier="n < 0"))
            with self.assertRaises(TableReadFailed) as raised:
                parts.order(ROOM)
        self.assertIn("division by zero", str(raised.exception))
        await self.until(lambda: self.connections() == 0)

    async def test_work_that_fails_ends_the_reading(self) -> None:
        def work(part: RoomPart, table: pa.Table) -> Iterator[pa.RecordBatch]:
            self.assertLess(table.num_rows, part.events)
            yield from ()
            raise KeyError("lost")

        with held_snapshot(self.dsn, "driver") as snapshot:
            parts = DatabaseParts(self.dsn, snapshot.name, STATEMENTS)
            numbers = iter([pa.RecordBatch.from_pydict({"id": [0]})])
            with self.assertRaises(KeyError):
                list(PartTasks(parts, [[OUTLIERS]], work).rows(numbers))
            await self.until(lambda: self.connections() == 0)
