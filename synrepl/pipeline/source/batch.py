"""``spark.read``: what lies between two positions, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from synrepl.pipeline.source import filters, place
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.pipeline.source.database.source_database import SourceDatabase
from synrepl.pipeline.source.errors import EndNotSettled, NotSettled
from synrepl.pipeline.source.layout import Layout
from synrepl.pipeline.source.options import SourceOptions
from synrepl.pipeline.source.part import Part, PartReader
from synrepl.pipeline.source.plan.plan import chunks
from synrepl.pipeline.source.plan.windows import stop_at
from synrepl.pipeline.source.streams import chosen, layout_of, not_trimmed, settled
from synrepl.positions.vector import PositionVector


class BatchReader(DataSourceReader):
    """Implements Spark's batch reader. Holds no connection, for it is pickled.

    :param schema: the columns wanted, by a user or by :func:`.streams.layout_of`
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: list[Filter] = []
        self._parts = PartReader(options.dsn, Layout.named(schema).arrow, options.patience_s)

    def partitions(self) -> Sequence[InputPartition]:
        """What there is to read now, for tasks.

        :raises DatabaseAway: :raises NotConfirmed: :raises NoSuchStream: :raises MustReland:
        :raises NotSettled: :raises EndNotSettled:
        """
        options = self._options
        origin = open_source_database(options.dsn, "source", options.patience_s)
        try:
            streams = chosen(origin, options)
            layout = layout_of(origin, options).fitted(self._schema, ", ".join(streams))
            start, end = self._ends(origin, streams)
            return list(self._planned(origin, layout, start, end))
        finally:
            origin.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part; runs in a task."""
        return self._parts.rows(partition)

    def _planned(
        self,
        origin: SourceDatabase,
        layout: Layout,
        start: Mapping[str, PositionVector],
        end: Mapping[str, PositionVector],
    ) -> Iterator[Part]:
        for stream, upto in end.items():
            if not filters.about(self._pushed, stream):
                continue
            shape = origin.shape(stream)
            span = filters.tokens(self._pushed, shape)
            columns = layout.read_of(shape)
            for chunk in chunks(
                origin,
                {stream: _from(start[stream], span.after)},
                {stream: stop_at(PositionVector(), upto, span.upto)},
                {stream: columns},
                self._options.chunk_rows,
                filters.condition(self._pushed, shape),
            ):
                yield Part(chunk, columns)

    def _ends(
        self, origin: SourceDatabase, streams: Sequence[str]
    ) -> tuple[dict[str, PositionVector], dict[str, PositionVector]]:
        wait_s, wanted = self._options.settle_wait_s, self._options.ending
        look = partial(origin.observe, streams)
        standings, left = settled(origin, look, wait_s, _asked(wanted, streams))
        if wanted is None and left:
            raise EndNotSettled(wait_s=f"{wait_s:g}", what="; ".join(map(str, left.values())))
        ends = {
            stream: place.Ends(PositionVector(linear=at.trimmed), at.bound)
            for stream, at in standings.items()
        }
        start = place.find("starting", self._options.starting, ends)
        end = place.find("ending", self._options.ending or place.Word.NOW, ends)
        for stream, at in standings.items():
            not_trimmed(stream, start[stream], at.trimmed)
            if not at.bound.covers(end[stream]):
                raise NotSettled(stream=stream, ending=end[stream], bound=at.bound)
        return start, end


class FilteringReader(BatchReader):
    """A batch reader that has the database apply filters. Only for who asks for it.

    Spark (4.3, at least) keeps what was planned with a DataFrame's source. Whoever filters
    a DataFrame and then uses the same one without a filter gets the filtered rows again: so
    each filter wants a DataFrame that was loaded for it.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        """Take those that the database can apply; give back the rest."""
        for each in filters_:
            if filters.can_push(each, self._schema):
                self._pushed.append(each)
            else:
                yield each


def _from(start: PositionVector, after: int) -> PositionVector:
    """A position from which nothing at or below ``after`` is read."""
    writers = {writer: max(token, after) for writer, token in start.writers.items()}
    return PositionVector(writers, max(start.linear, after))


def _asked(ending: place.Place | None, streams: Sequence[str]) -> Mapping[str, PositionVector]:
    """The positions that were spelled out."""
    if isinstance(ending, PositionVector):
        return dict.fromkeys(streams, ending)
    return ending if isinstance(ending, Mapping) else {}
