"""``spark.read``: the facts between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from synrepl.pipeline.source import filters, position_option
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import EndNotSettled, NotSettled
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.partition import ChunkPartition, PartitionReader
from synrepl.pipeline.source.plan.chunks import plan_chunks
from synrepl.pipeline.source.read_schema import ReadSchema
from synrepl.pipeline.source.streams import (
    observe_until_settled,
    read_schema_of,
    require_not_trimmed,
    selected_streams,
)
from synrepl.pipeline.source.writer_ranges import cap_position
from synrepl.positions.vector import PositionVector


class BatchReader(DataSourceReader):
    """Implements Spark's batch reader. It is pickled, so it holds no connection.

    :param schema: the columns to read, given by the user or by :func:`.streams.read_schema_of`
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: list[Filter] = []
        self._parts = PartitionReader(
            options.dsn, ReadSchema.named(schema).arrow, options.patience_s
        )

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
        for stream, upto in end.items():
            if not filters.may_match_stream(self._pushed, stream):
                continue
            stream_schema = source.stream_schema(stream)
            span = filters.token_range(self._pushed, stream_schema)
            columns = read_schema.read_of(stream_schema)
            for chunk in plan_chunks(
                source,
                {stream: _from(start[stream], span.after)},
                {stream: cap_position(PositionVector(), upto, span.upto)},
                {stream: columns},
                self._options.chunk_rows,
                filters.condition(self._pushed, stream_schema),
            ):
                yield ChunkPartition(chunk, columns)

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


class FilteringReader(BatchReader):
    """A batch reader that pushes filters down to the database, if the option ``push_filters`` is set.

    It is optional because Spark (at least 4.3) caches the plan of a DataFrame's source: a DataFrame
    that was used with a filter returns the filtered rows again when it is used without one. So load
    a new DataFrame for each filter.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        """Accept the filters that the database can apply; return the others to Spark."""
        for each in filters_:
            if filters.can_push(each, self._schema):
                self._pushed.append(each)
            else:
                yield each


def _from(start: PositionVector, after: int) -> PositionVector:
    """``start``, raised so that nothing at or below ``after`` is read."""
    writers = {writer: max(token, after) for writer, token in start.writers.items()}
    return PositionVector(writers, max(start.linear, after))


def _asked(
    ending: position_option.PositionOption | None, streams: Sequence[str]
) -> Mapping[str, PositionVector]:
    """The explicit end positions, by stream; empty for none or a named one."""
    if isinstance(ending, PositionVector):
        return dict.fromkeys(streams, ending)
    return ending if isinstance(ending, Mapping) else {}
