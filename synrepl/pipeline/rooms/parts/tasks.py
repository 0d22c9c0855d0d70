"""Runs a function over parts of rooms in Spark tasks, each of which reads its parts itself.

The driver sends the tasks places in rooms, and no events pass through it or through a shuffle.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.parts.judging import PartRow
from synrepl.pipeline.rooms.parts.source import PartSource, RoomPart

T = TypeVar("T")

#: Where Spark does not tell.
_CORES = 8

#: Columns of the events of a part, in the order of :class:`.PartRow`, whose place has two of them.
_ROW_COLUMNS = (
    *("event_id", "topological_ordering", "stream_ordering"),
    *("rejected", "state_group_before", "state_group", "json"),
)

#: Results of a part, in batches.
PartWork = Callable[[RoomPart, pa.Table], Iterator[pa.RecordBatch]]


class PartTasks(NamedTuple):
    """Calls a function with parts. It is pickled for the tasks.

    :ivar bins: the parts of each task
    :ivar verified: see :meth:`.PartSource.parts`
    """

    source: PartSource
    bins: Sequence[Sequence[RoomPart]]
    work: PartWork
    verified: bool = False

    def rows(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results of the tasks with these numbers; the events of one part are held, and the bytes of the next."""
        with _without_collections():
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from self._results(self.bins[number])

    def frame(self, spark: SparkSession, schema: pa.Schema) -> DataFrame:
        """The results of all tasks.

        :param schema: of the results
        """
        numbers = spark.range(0, len(self.bins), 1, max(1, len(self.bins)))
        return numbers.mapInArrow(self.rows, from_arrow_schema(schema))

    def _results(self, parts: Sequence[RoomPart]) -> Iterator[pa.RecordBatch]:
        with closing(read_ahead(self.source.parts(parts, verified=self.verified))) as tables:
            for part, table in tables:
                yield from self.work(part, table)


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """The items of an iterator, each read in a thread while the caller works on the one before."""
    with ThreadPoolExecutor(1, "read-ahead") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage: a part is hundreds of thousands of objects without cycles, and each collection visits them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def part_rows(table: pa.Table) -> list[PartRow]:
    """The events of a part."""
    event_ids, topological, stream, *others = (
        table.column(name).to_pylist() for name in _ROW_COLUMNS
    )
    places = zip(topological, stream, strict=True)
    return list(map(PartRow, event_ids, places, *others))


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run at the same time; a guess where Spark Connect does not tell."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _CORES
