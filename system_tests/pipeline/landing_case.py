"""Test case with a database, a lake of it, and comparisons of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.data_files import read_batches
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing, LandingRound
from synrepl.pipeline.lake.land.task import land_part
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.sql import selected
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.reading.schema import arrow_schema
from system_tests.pipeline.source_case import SourceCase

#: Called in a task instead of its work, with the work as an argument.
Hook = Callable[[Callable[[], Iterator[pa.RecordBatch]]], Iterator[pa.RecordBatch]]


def land_in_hook(hook: Hook, *args: Any) -> Iterator[pa.RecordBatch]:
    """Land a part as ``land_part`` does with these arguments, wrapped by a hook."""
    return hook(partial(land_part, *args))


class LandingCase(SourceCase):
    """A lake of a database with a few streams."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source: SourceDatabase = self.opened(
            SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        )
        self.lake = self.new_lake()

    def opened(self, source: Any) -> Any:
        """Close the source after the test."""
        self.addCleanup(source.close)
        return source

    def new_lake(self) -> Lake:
        """Create an empty lake."""
        return Lake.open_or_create(Path(self.mktemp()), self.source.server, self.source.is_lossy)

    def landing(self, hook: Hook | None = None, **options: Any) -> Landing:
        """Create a landing."""
        if hook is not None:
            options["land"] = partial(land_in_hook, hook)
        return Landing(self.spark, self.lake, self.source, self.dsn, **options)

    def land(self, hook: Hook | None = None, **options: Any) -> list[LandingRound]:
        """Land all settled facts; return the result of each round."""
        return list(self.landing(hook, **options).rounds(self.source.streams))

    def in_lake(self, stream: str) -> list[tuple[Any, ...]]:
        """All rows of a stream in the lake."""
        return rows_of(self.lake.table(stream))

    def in_quarantine(self, stream: str) -> list[tuple[Any, ...]]:
        """All rows of a stream that are quarantined."""
        table = self.lake.quarantine(stream)
        return [] if table is None else rows_of(table)

    def in_table(self, stream: str, where: str = "true") -> list[tuple[Any, ...]]:
        """All rows of a stream in the database."""
        stream_schema = self.source.stream_schema(stream)
        wanted = selected(stream_schema, [column.name for column in stream_schema.columns])
        with self.connect().cursor() as cursor:
            cursor.execute(f"SELECT {wanted} FROM synrepl.{stream} WHERE {where}")
            return sorted(cursor.fetchall(), key=_place)

    def assert_landed(self, *streams: str) -> None:
        """Assert that the lake has each row of the database once."""
        for stream in streams or self.source.streams:
            self.assertEqual(self.in_lake(stream), self.in_table(stream), stream)

    def assert_no_leftovers(self) -> None:
        """Assert that removing unused files leaves exactly the files of the tables."""
        with self.lake.write_lock(), self.lake.removal_lock():
            for stream in self.lake.streams:
                table = self.lake.table(stream)
                table.remove_unused(retention_hours=0)
                there = {each.name for each in table.path.glob("*.parquet")}
                self.assertEqual(there, {file.name for file in table.files})


def rows_of(table: StreamTable) -> list[tuple[Any, ...]]:
    """All rows of a table, in the order of tokens."""
    schema = arrow_schema(column._replace(nullable=True) for column in table.stream_schema.columns)
    found: list[tuple[Any, ...]] = []
    for file in table.files:
        for batch in read_batches(table.path_of(file), schema):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return sorted(found, key=_place)


def _place(row: tuple[Any, ...]) -> tuple[int, int]:
    return abs(row[0]), row[1]
