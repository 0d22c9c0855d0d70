"""``spark.readStream``: from one position to the next, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.partition import PartitionReader
from synrepl.pipeline.source.planner import Planner
from synrepl.pipeline.source.read_schema import ReadSchema

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's stream reader; offsets are those of :mod:`synrepl.pipeline.source.plan.offset`.

    One of them plans for as long as a query runs, others are pickled for the tasks of a
    batch; so a connection is not made before one is needed.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._parts = PartitionReader(
            options.dsn, ReadSchema.named(schema).arrow, options.patience_s
        )
        self._opened: Planner | None = None

    @property
    def _planner(self) -> Planner:
        if self._opened is None:
            self._opened = Planner(self._options, self._schema)
        return self._opened

    def initialOffset(self) -> Json:
        """Where a query without a checkpoint begins."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """As many rows as the options allow."""
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the run ends."""
        self._planner.fix_end()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Up to where the next batch reads. It never goes back.

        :raises OtherServer: :raises OtherVersion: the checkpoint is of somebody else
        :raises MustReland: :raises StreamAppeared: :raises DatabaseAway:
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._planner.next(self._planner.offset(start), rows).to_json()

    def reportLatestOffset(self) -> Json | None:
        """What was settled at the last look, for the query's progress."""
        latest = self._planner.latest
        return None if latest is None else latest.to_json()

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """What lies between, for tasks; the same however often it is asked for."""
        planner = self._planner
        return list(planner.parts(planner.offset(start), planner.offset(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; runs in a task."""
        return self._parts.rows(partition)

    def commit(self, end: Json) -> None:
        """A batch is in the sink: tell the database, if it keeps facts for this query.

        Spark says so when the next batch has been planned, so the record is one behind.
        """
        self._planner.acknowledge(self._planner.offset(end))

    def stop(self) -> None:
        """End the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
