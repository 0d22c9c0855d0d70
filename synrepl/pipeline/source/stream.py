"""``spark.readStream``: micro-batches from one offset to the next."""

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

from synrepl.pipeline.source.named_first import named_first
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.partition import PartitionReader
from synrepl.pipeline.source.planner import Planner
from synrepl.pipeline.source.read_schema import ReadSchema

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's stream reader; offsets are those of :mod:`synrepl.pipeline.source.plan.offset`.

    One object plans for as long as a query runs; others are pickled for the tasks of a batch. So
    connections are opened only when they are needed.
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

    @named_first
    def initialOffset(self) -> Json:
        """The offset at which a query without a checkpoint begins."""
        return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The maximum number of rows in a batch, from the options."""
        rows = self._options.max_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    @named_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the offset at which the run ends."""
        self._planner.fix_end()

    @named_first
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """The end offset of the next batch. It never goes back.

        :raises OtherServer: :raises OtherVersion: the checkpoint is of another database or release
        :raises MustReland: :raises StreamAppeared: :raises DatabaseAway:
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._planner.next(self._planner.offset(start), rows).to_json()

    def reportLatestOffset(self) -> Json | None:
        """What was settled at the last observation, for the query's progress reports."""
        latest = self._planner.latest
        return None if latest is None else latest.to_json()

    @named_first
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The partitions between two offsets; the same facts each time it is called."""
        planner = self._planner
        return list(planner.parts(planner.offset(start), planner.offset(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; runs in a task."""
        return self._parts.rows(partition)

    @named_first
    def commit(self, end: Json) -> None:
        """Acknowledge a batch that is in the sink, if the query is a named follower.

        Spark calls this when it has planned the next batch, so the record is one batch behind.
        """
        self._planner.acknowledge(self._planner.offset(end))

    def stop(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
