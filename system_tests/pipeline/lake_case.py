"""Test case with a database, and a lake that is landed without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.check.check import EVERYTHING, check
from synrepl.pipeline.lake.check.report import CheckReport
from synrepl.pipeline.lake.data_files import DataFile
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.postgres import PostgresCase


class LakeCase(PostgresCase):
    """Lands without Spark, so that the code under test does not check itself."""

    timeout = 600

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.spark = shared_session()
        self.source: SourceDatabase = self.source_of(self.dsn)
        self.lake = Lake.open_or_create(
            Path(self.mktemp()), self.source.server, self.source.is_lossy
        )

    def source_of(self, dsn: str) -> SynreplDatabase:
        source = SynreplDatabase(BlockingDatabase(dsn, "tests"))
        self.addCleanup(source.close)
        return source

    def notes(self, facts: int, rows: int = 1, first: int = 1) -> None:
        """Insert facts of two alternating writers into the table."""
        self.sql(
            "INSERT INTO synrepl.notes (stream_id, row_no, writer, text, n)"
            " SELECT fact, row, CASE WHEN fact %% 2 = 0 THEN 'even' ELSE 'odd' END,"
            " 'n' || fact || '.' || row, nullif(fact %% 7, 0)"
            " FROM generate_series(%s, %s) AS fact, generate_series(0, %s) AS row",
            first, first + facts - 1, rows - 1,
        )  # fmt: skip
        self.sql("ANALYZE synrepl.notes")

    def land(self, stream: str, upto: PositionVector, files: int = 1) -> StreamTable:
        """Land a stream up to a position."""
        stream_schema = self.source.stream_schema(stream)
        table = self.lake.ensure_table(stream_schema)
        names = [column.name for column in stream_schema.columns]
        schema = arrow_schema(stream_schema.columns)
        parts = plan_chunks(self.source, {stream: table.position}, {stream: upto}, {stream: names})
        batches = [batch for part in parts for batch in ChunkReader(self.dsn).batches(part, schema)]
        rows = pa.Table.from_batches(batches, schema)
        size = -(-rows.num_rows // files) or 1
        cut = [rows.slice(at, size) for at in range(0, rows.num_rows, size)]
        table.append([self.write(table, each) for each in cut], table.position, upto)
        return table

    def write(self, table: StreamTable, rows: pa.Table) -> DataFile:
        """Write a file into a table's folder, without committing it."""
        name = f"part-{len(list(table.path.iterdir()))}.parquet"
        # In a lake any cell may be null.
        pq.write_table(rows.cast(arrow_schema(table.stream_schema.columns)), table.path / name)
        ids = rows.column("stream_id").to_pylist()
        size = (table.path / name).stat().st_size
        return DataFile(name, size, rows.num_rows, min(ids), max(ids))

    def rewrite(self, stream: str, change: Any) -> None:
        """Replace the first file of a table that ``change`` changes by ``change(rows)``."""
        table = self.lake.table(stream)
        for file in table.files:
            before = pq.read_table(table.path_of(file))
            after = change(before.cast(arrow_schema(table.stream_schema.columns)))
            if repr(after.to_pydict()) != repr(before.to_pydict()):  # distinguishes -0.0 from 0.0
                table.rewrite([file], [self.write(table, after)], change=True)
                return
        raise AssertionError("nothing changed")

    def checked(self, extent: Any = None, **options: Any) -> CheckReport:
        """Check the lake; Spark alone has to come to the same report as the check of small streams."""
        extent = EVERYTHING if extent is None else extent
        report, by_spark = (
            check(self.spark, self.lake, self.source, self.dsn, each, **options)
            for each in (extent, replace(extent, rows_here=-1))
        )
        self.assertEqual(report, by_spark)
        return report
