"""Readers that know nothing of synrepl's locks, while a lake is landed, compacted and erased from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polars
import pyarrow.dataset as datasets
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import PySparkException

from synrepl.pipeline.lake.maintenance import REMOVALS_PER_RETENTION, LakeMaintenance
from synrepl.pipeline.lake.table import DEFAULT_RETENTION_HOURS, StreamTable
from synrepl.pipeline.source.database.settlement import BlockingClock
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
                         {tuple(range(1, n + 1)) for n in range(10)})  # fmt: skip

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
