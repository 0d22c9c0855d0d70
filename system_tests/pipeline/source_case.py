"""Test case with a database of streams that Spark reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from psycopg2 import extensions
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from synrepl.core.errors import SynreplError
from synrepl.pipeline.datasource import register
from synrepl.pipeline.source.errors import original_error
from system_tests.pipeline.spark_fixture import shared_session
from tests.storage.postgres import PostgresCase


class SourceCase(PostgresCase):
    """Appends facts by plain SQL, so that a test can keep transactions open."""

    timeout = 300

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.spark = shared_session()
        register(self.spark)
        self.out = self.mktemp()
        self.checkpoint = self.mktemp()

    def add_writers(self, stream: str, *writers: str) -> None:
        """Add writers to a stream."""
        for writer in writers:
            self.sql("SELECT synrepl.add_writer(%s, %s)", stream, writer)

    def append(
        self,
        stream: str,
        *rows: dict[str, Any],
        writer: str = "sql",
        on: extensions.connection | None = None,
    ) -> int:
        """Append a fact, and return its ID."""
        return int(
            self.sql("SELECT synrepl.append(%s, %s, %s)", stream, json.dumps(rows), writer, on=on)
        )

    def notes(
        self, first: int, last: int, writer: str = "sql", on: extensions.connection | None = None
    ) -> None:
        """Append facts with these numbers to the stream ``notes``."""
        for n in range(first, last + 1):
            self.append("notes", {"text": f"n{n}", "n": n}, writer=writer, on=on)

    def open(self) -> extensions.connection:
        """A connection without autocommit."""
        found = self.connect()
        found.autocommit = False
        return found

    def read(self, stream: str = "notes", **options: object) -> DataFrame:
        """A batch read."""
        reader = self.spark.read.format("synrepl").options(database=self.dsn, stream=stream)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    def query(self, stream: str = "notes", now: bool = True, **options: object) -> StreamingQuery:
        """Run a query from the source into files.

        :param now: end when everything available has been read
        """
        options.setdefault("database", self.dsn)
        reader = self.spark.readStream.format("synrepl").options(
            stream=stream, **{key: str(value) for key, value in options.items()}
        )
        writer = reader.load().writeStream.format("parquet").option("path", self.out)
        writer = writer.option("checkpointLocation", self.checkpoint)
        if now:
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return query
        query = writer.start()
        self.addCleanup(query.stop)
        return query

    def landed(self) -> DataFrame:
        """The rows that the query wrote."""
        return self.spark.read.parquet(self.out)

    def numbers(self) -> list[int]:
        """The numbers of the notes that the query wrote."""
        return sorted(row.n for row in self.landed().select("n").collect())

    def uncommit(self) -> None:
        """Remove the last batch's commit, as if the driver had been killed before it."""
        folders = [Path(self.checkpoint, "commits"), Path(self.out, "_spark_metadata")]
        last = max(int(path.name) for path in folders[0].glob("[0-9]*"))
        for folder in folders:
            (folder / str(last)).unlink()
            (folder / f".{last}.crc").unlink()

    def ours(self, call: Any, *args: Any, **options: Any) -> SynreplError:
        """The synrepl error that a call through Spark raises."""
        try:
            call(*args, **options)
        except Exception as error:
            found = original_error(error)
            if found is None:
                raise
            return found
        self.fail("there was no error")
