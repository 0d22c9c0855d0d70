"""Gives whole parts of rooms to a function, in Spark tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from synrepl.pipeline.rooms.parts.cutting import OUTLIERS
from synrepl.pipeline.rooms.parts.judging import PartRow

#: Where Spark does not tell.
_CORES = 8

#: Columns of events that parts are judged from.
PART_COLUMNS = (
    *("room_id", "event_id", "room_version", "topological_ordering", "stream_ordering", "part"),
    *("rejected", "state_group_before", "state_group", "json"),
)

#: Results of a part, in batches.
PartWork = Callable[[pa.Table], Iterator[pa.RecordBatch]]


def each_part(work: PartWork, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call ``work`` with the rows of each part; one part is held at a time.

    Outliers, which do not depend on one another's states, come in any number of pieces, each of one room.

    :param batches: sorted by the columns ``part`` and ``room_id``
    """
    with _without_collections():
        yield from _worked_parts(work, batches)


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


def _worked_parts(work: PartWork, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    part = OUTLIERS
    for batch in batches:
        for number, rows in _runs(batch):
            if number == OUTLIERS:
                yield from work(pa.Table.from_batches([rows]))
                continue
            if number != part and held:
                yield from work(pa.Table.from_batches(held))
                held = []
            part = number
            held.append(rows)
    if held:
        yield from work(pa.Table.from_batches(held))


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The parts of a batch, in order."""
    if not batch.num_rows:
        return
    at = batch.schema.get_field_index
    numbers: Any = batch.column(at("part")).to_numpy()
    rooms: Any = pc.rank(batch.column(at("room_id")), tiebreaker="dense").to_numpy()
    changes = (numbers[1:] != numbers[:-1]) | (rooms[1:] != rooms[:-1])
    starts = [0, *(changes.nonzero()[0] + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield int(numbers[start]), batch.slice(start, end - start)


def part_rows(table: pa.Table) -> list[PartRow]:
    """The events of a part."""
    column = {name: table.column(name).to_pylist() for name in PART_COLUMNS[1:]}
    return [
        PartRow(event_id, (topological, stream), rejected, before, group, raw)
        for event_id, topological, stream, rejected, before, group, raw in zip(
            column["event_id"],
            column["topological_ordering"],
            column["stream_ordering"],
            column["rejected"],
            column["state_group_before"],
            column["state_group"],
            column["json"],
            strict=True,
        )
    ]


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run at the same time; a guess where Spark Connect does not tell."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:
        return _CORES
