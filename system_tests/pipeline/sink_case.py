"""A database with a few streams, and DataFrames that are written to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.tokens import Range
from synrepl.pipeline.sink.writers import batch_writer, stream_writer
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.events import EVENTS
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.postgres import PostgresCase, reactor
from tests.storage.samples import NOTES


class Sink(DataSource):
    """A data source that only has the sink."""

    @classmethod
    def name(cls) -> str:
        return "synrepl_sink"

    def schema(self) -> str:
        raise NotImplementedError  # never called for a sink

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return stream_writer(self.options, schema, overwrite)


def error_in(exception: BaseException) -> str:
    """The message of the error that Python raised in a task or the driver, within Spark's text."""
    return str(exception)


class SinkCase(PostgresCase):
    """A test case with a new database, and the session that all tests of the process share."""

    timeout = 240

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        database = PostgresDatabase(reactor, self.dsn, "more streams")
        await database.run("events", lambda txn: ensure_tables(txn, [EVENTS]))
        await database.close()
        self.spark: SparkSession = shared_session()
        self.spark.dataSource.register(Sink)

    def frame(self, schema: str, *rows: Any, parts: int = 1) -> DataFrame:
        """A DataFrame with these rows in order, in ``parts`` partitions."""
        return self.spark.createDataFrame(
            self.spark.sparkContext.parallelize(list(rows), parts), schema
        )

    def write(
        self, frame: DataFrame, stream: str = "notes", mode: str = "append", **options: Any
    ) -> None:
        options = {"database": self.dsn, "stream": stream, "patience_s": 5, **options}
        frame.write.format("synrepl_sink").options(**options).mode(mode).save()

    def refused(self, frame: DataFrame, *words: str, **options: Any) -> None:
        """Check that a write fails with a helpful message."""
        with self.assertRaises(Exception) as caught:
            self.write(frame, **options)
        for word in words:
            self.assertIn(word, error_in(caught.exception))

    async def facts(self, stream: Stream = NOTES) -> list[Fact]:
        store = self.process("reader").store
        return list((await store.page(stream, Range(0, 10**6), None, 10**6)).facts)

    def rows(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with self.connect().cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())

    def notes(self) -> list[tuple[Any, ...]]:
        """The rows of the stream: writer, text, n."""
        return self.rows("SELECT writer, text, n FROM synrepl.notes ORDER BY stream_id, row_no")

    def left_over(self) -> int:
        """Number of staged rows, attempts and bad rows that were not removed."""
        staged = self.rows(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^_.*_staged$'"
        )
        return sum(
            int(self.sql(f'SELECT count(*) FROM synrepl."{table}"'))
            for table in ("_staging", "_staged_bad", *(name for (name,) in staged))
        )

    def quarantined(self) -> Iterator[tuple[str, Any]]:
        """The reasons and cells of the quarantined rows."""
        for reason, row in self.rows(
            "SELECT reason, row::text FROM synrepl._quarantine ORDER BY number"
        ):
            yield reason, json.loads(row)
