"""Readers that know nothing of synrepl's locks, while a lake is landed, compacted and erased from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as datasets
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException
from twisted.trial.unittest import TestCase

from synrepl.pipeline.lake.data_files import FileWriter
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.maintenance import REMOVALS_PER_RETENTION, LakeMaintenance
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, StreamTable
from synrepl.pipeline.source.database.settlement import BlockingClock
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import Column, ColumnType
from system_tests.pipeline.landing_case import LandingCase

#: Returns the stream IDs that an opened reader reads.
Opened = Callable[[], list[int]]


class ReadersOfALake(LandingCase):
    """Readers of Delta tables that opened a version, and read it when others have replaced its files."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.now = 0.0
        self.landed_notes = 0
        self.maintenance = self.new_maintenance()

    def new_maintenance(self, retention_hours: int | None = None) -> LakeMaintenance:
        return LakeMaintenance(
            self.spark,
            self.lake,
            self.source,
            self.dsn,
            retention_hours=retention_hours,
            clock=BlockingClock(lambda: self.now),
        )

    def land_notes(self, count: int) -> int:
        """Land notes one by one; the number of files that were compacted."""
        compacted = 0
        for _ in range(count):
            self.landed_notes += 1
            self.notes(self.landed_notes, self.landed_notes)
            with self.lake.write_lock():
                compacted += self.maintenance.run(["notes"]).compacted_files
        return compacted

    def readers(self) -> Mapping[str, Opened]:
        """Readers that have opened the present version of the table, and read it later."""
        where = str(self.lake.table("notes").path)
        table = DeltaTable(where)
        lazy = polars.scan_delta(where, version=table.version())
        dataset = table.to_pyarrow_dataset()
        files = datasets.dataset(table.file_uris())
        frame = self.spark.read.parquet(*table.file_uris())
        return {
            "deltalake": lambda: ids(table.to_pyarrow_table()),
            "polars": lambda: sorted(lazy.select("stream_id").collect()["stream_id"].to_list()),
            "PyArrow, by the log": lambda: ids(dataset.to_table()),
            "PyArrow, by the names of files": lambda: ids(files.to_table()),
            "Spark": lambda: ids(frame.select("stream_id").toArrow()),
        }

    def test_readers_of_an_older_version_read_on_while_it_is_compacted(self) -> None:
        self.land_notes(3)
        readers = self.readers()
        files = len(list(self.lake.table("notes").path.glob("*.parquet")))
        self.assertGreater(self.land_notes(6), 5)
        for name, read in readers.items():
            self.assertEqual(read(), [1, 2, 3], name)
        self.assertGreater(len(list(self.lake.table("notes").path.glob("*.parquet"))), files + 6)
        self.assertEqual(ids(DeltaTable(self.lake.table("notes").path).to_pyarrow_table()),
                         list(range(1, 10)))  # fmt: skip

    def test_every_version_within_the_retention_can_be_read(self) -> None:
        self.land_notes(9)
        where = self.lake.table("notes").path
        versions = range(DeltaTable(where).version() + 1)
        found = [ids(DeltaTable(where, version=n).to_pyarrow_table()) for n in versions]
        self.assertEqual(found, sorted(found, key=len))
        self.assertEqual({tuple(each) for each in found},
                         {tuple(range(1, n + 1)) for n in range(1, 10)})  # fmt: skip

    def test_without_a_retention_replaced_files_are_deleted_by_the_same_run(self) -> None:
        self.maintenance = self.new_maintenance(retention_hours=0)
        self.land_notes(3)
        readers = self.readers()
        self.assertGreater(self.land_notes(1), 0)
        table = self.lake.table("notes")
        there = {path.name for path in table.path.glob("*.parquet")}
        self.assertEqual(there, {file.name for file in table.files})
        for name, read in readers.items():
            self.assertTrue(fails(read), name)

    def test_unused_files_are_looked_for_some_times_within_the_retention(self) -> None:
        self.land_notes(4)
        looked = []
        real = StreamTable.remove_unused

        def remove_unused(table: StreamTable, retention_hours: int) -> int:
            looked.append((table.stream, retention_hours))
            return real(table, retention_hours)

        self.patch(StreamTable, "remove_unused", remove_unused)
        self.land_notes(1)
        self.assertEqual(looked, [])
        self.now += DEFAULT_RETENTION_HOURS * 3600 / REMOVALS_PER_RETENTION
        self.land_notes(1)
        self.assertEqual(looked, [("notes", DEFAULT_RETENTION_HOURS)])


class FilesSkipped(TestCase):
    """Readers that are asked for a range open only the files that may have it, by the table's log."""

    #: A file for each day, with tokens 1 and 2, 11 and 12, and so on.
    DAYS = 4

    def setUp(self) -> None:
        lake = Lake.open_or_create(Path(self.mktemp()), "tests", False)
        sent = Column("origin_server_ts", ColumnType.BIGINT, True)
        self.table = lake.ensure_table(StreamSchema("sent", False, (sent,)))
        schema = arrow_schema(self.table.stream_schema.columns)
        for day in range(self.DAYS):
            writer = FileWriter(self.table.path, schema)
            rows = [
                {"stream_id": 10 * day + n, "row_no": 0, "writer": "w", sent.name: 1000 * day + n}
                for n in (1, 2)
            ]
            writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
            file = writer.close()
            assert file is not None
            self.table.append([file], self.table.position, PositionVector({"w": 10 * day + 2}, 0))
        # Whoever opens a file of another day than the second fails.
        for file in self.table.files:
            if file.low != 11:
                self.table.path_of(file).unlink()

    def readers(self, column: str, low: int, high: int) -> Mapping[str, Opened]:
        """Readers that are asked for a range of a column."""
        where = str(self.table.path)
        table = DeltaTable(where)
        wanted = (pc.field(column) >= low) & (pc.field(column) <= high)
        listed = [(column, ">=", low), (column, "<=", high)]
        lazy = polars.scan_delta(where).filter(polars.col(column).is_between(low, high))
        return {
            "deltalake": lambda: ids(table.to_pyarrow_table(filters=listed)),
            "deltalake, by an expression": lambda: ids(
                table.to_pyarrow_dataset().to_table(filter=wanted)
            ),
            "polars": lambda: sorted(lazy.select("stream_id").collect()["stream_id"].to_list()),
        }

    def assert_skip(self, column: str, day: tuple[int, int], two_days: tuple[int, int]) -> None:
        for name, read in self.readers(column, *day).items():
            self.assertEqual(read(), [11, 12], name)
        for name, read in self.readers(column, *two_days).items():
            self.assertTrue(fails(read), name)

    def test_by_a_range_of_time(self) -> None:
        self.assert_skip("origin_server_ts", (1000, 1999), (1000, 2001))

    def test_by_a_range_of_stream_ids(self) -> None:
        self.assert_skip("stream_id", (11, 15), (11, 21))


def fails(read: Opened) -> bool:
    """True if a reader fails."""
    try:
        read()
    except (DeltaError, OSError, PySparkException, Py4JError, polars.exceptions.PolarsError):
        return True
    return False


def ids(table: Any) -> list[int]:
    """The stream IDs of a table, in order."""
    return sorted(table["stream_id"].to_pylist())
