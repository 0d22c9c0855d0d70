"""``spark.read``: the facts between two positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from synrepl.pipeline.source import position_option
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import EndNotSettled, NotSettled
from synrepl.pipeline.source.named_first import named_first
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.partition import ChunkPartition, PartitionReader
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.read_schema import ReadSchema
from synrepl.pipeline.source.streams import (
    chunk_rows,
    observe_until_settled,
    read_schema_of,
    require_not_trimmed,
    selected_streams,
)
from synrepl.positions.vector import PositionVector


class BatchReader(DataSourceReader):
    """Implements Spark's batch reader. It is pickled, so it holds no connection.

    :param schema: the columns to read, given by the user or by :func:`.streams.read_schema_of`
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._parts = PartitionReader(
            options.dsn, ReadSchema.named(schema).arrow, options.patience_s
        )

    @named_first
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: one partition per task.

        :raises DatabaseAway: :raises NotConfirmed: :raises NoSuchStream: :raises MustReland:
        :raises NotSettled: :raises EndNotSettled:
        """
        options = self._options
        source = open_source_database(options.dsn, "source", options.patience_s)
        try:
            streams = selected_streams(source, options)
            read_schema = read_schema_of(source, options).fitted(self._schema, ", ".join(streams))
            start, end = self._ends(source, streams)
            return list(self._planned(source, read_schema, start, end))
        finally:
            source.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one partition; runs in a task."""
        return self._parts.rows(partition)

    def _planned(
        self,
        source: SourceDatabase,
        read_schema: ReadSchema,
        start: Mapping[str, PositionVector],
        end: Mapping[str, PositionVector],
    ) -> Iterator[ChunkPartition]:
        options = self._options
        columns = {stream: read_schema.read_of(source.stream_schema(stream)) for stream in end}
        rows = chunk_rows(options, source, start, end)
        # Rows of a DataFrame have no order, and without one the database takes less time. Facts with
        # bad rows are found by their place in it.
        ordered = read_schema.has_bad_rows
        for chunk in plan_chunks(source, start, end, columns, rows, options.where, ordered):
            yield ChunkPartition(chunk, columns[chunk.stream])

    def _ends(
        self, source: SourceDatabase, streams: Sequence[str]
    ) -> tuple[dict[str, PositionVector], dict[str, PositionVector]]:
        wait_s, wanted = self._options.settle_wait_s, self._options.ending
        look = partial(source.observe, streams)
        bounds, left = observe_until_settled(source, look, wait_s, _asked(wanted, streams))
        if wanted is None and left:
            raise EndNotSettled(wait_s=f"{wait_s:g}", what="; ".join(map(str, left.values())))
        ends = {
            stream: position_option.PositionRange(PositionVector(linear=at.trimmed), at.bound)
            for stream, at in bounds.items()
        }
        start = position_option.resolve_positions("starting", self._options.starting, ends)
        end = position_option.resolve_positions(
            "ending", self._options.ending or position_option.NamedPosition.NOW, ends
        )
        for stream, at in bounds.items():
            require_not_trimmed(stream, start[stream], at.trimmed)
            if not at.bound.covers(end[stream]):
                raise NotSettled(stream=stream, ending=end[stream], bound=at.bound)
        return start, end


def _asked(
    ending: position_option.PositionOption | None, streams: Sequence[str]
) -> Mapping[str, PositionVector]:
    """The explicit end positions, by stream; empty for none or a named one."""
    if isinstance(ending, PositionVector):
        return dict.fromkeys(streams, ending)
    return ending if isinstance(ending, Mapping) else {}
