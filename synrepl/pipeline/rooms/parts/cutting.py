"""Cuts rooms into parts that tasks judge independently of one another.

A room may be cut behind an event if every later event follows it or a later one, so that there the room has one extremity,
and its state there is all that what comes later depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.parts.source import JudgedRoom, PartSource, RoomPart

#: Events of a part, if the room can be cut there. A task holds one part at a time.
PART_SIZE = 20_000

#: Tasks for each core, so that cores have as much to do as one another, and parts for each task, which are read while
#: the ones before are judged; while its first part is read, a task does nothing. A part of a small database has at least
#: this number of events, and a task of a large one about that number at most, which are judged again if it fails.
_TASKS_A_CORE, _PARTS_A_TASK, _SMALLEST_PART, _LARGEST_TASK = 2, 8, 5_000, 160_000

#: Where parts begin, and the number of their events.
CUTS = pa.schema(
    [
        pa.field("room", pa.int64()),
        pa.field("topological", pa.int64()),
        pa.field("stream", pa.int64()),
        pa.field("events", pa.int64()),
    ]
)


class TaskSizes(NamedTuple):
    """Numbers of events.

    :ivar part: after which a part ends where it can
    :ivar task: of the parts that one task judges, one after the other
    """

    part: int
    task: int

    @classmethod
    def of(cls, rooms: Sequence[JudgedRoom], largest_part: int, cores: int) -> Self:
        """Those with which each of some cores has as much to do as another.

        :param cores: number of tasks that run at the same time
        """
        events = sum(room.events for room in rooms)
        # A core alone has nobody to share with.
        several = min(_TASKS_A_CORE, cores)
        tasks = cores * max(several, -(-events // (_LARGEST_TASK * cores)))
        task = -(-events // tasks)
        parts = max(1, min(_PARTS_A_TASK, task // _SMALLEST_PART))
        part = min(largest_part, max(_SMALLEST_PART, -(-task // parts)))
        return cls(part, max(part, task))


def cut_rooms(
    spark: SparkSession, source: PartSource, rooms: Sequence[JudgedRoom], size: int
) -> list[RoomPart]:
    """Cut rooms; runs a Spark job if one of them has more events than a part. The parts are sorted by room and place.

    :param size: number of events after which a part ends where it can
    """
    large = [room for room in rooms if room.events > size]
    cuts: dict[str, list[Any]] = {}
    if large:
        numbers = spark.range(0, len(large), 1, len(large))
        found = numbers.mapInArrow(partial(_cut, source, large, size), from_arrow_schema(CUTS))
        for row in found.collect():
            cuts.setdefault(large[row.room].room_id, []).append(row)
    parts = list[RoomPart]()
    for room in rooms:
        if room.room_id in cuts:
            parts += room_parts(len(parts), room, cuts[room.room_id])
        elif room.events:
            parts.append(RoomPart(len(parts), room, None, None, room.events))
    return parts


def whole_rooms(rooms: Sequence[JudgedRoom]) -> list[RoomPart]:
    """Rooms as one part each."""
    return [RoomPart(number, room, None, None, room.events) for number, room in enumerate(rooms)]


def outliers_of(rooms: Sequence[JudgedRoom]) -> list[RoomPart]:
    """The outliers of rooms, as one part each."""
    return [
        RoomPart(number, room, None, None, room.outliers, is_outliers=True)
        for number, room in enumerate(rooms)
        if room.outliers
    ]


def room_parts(number: int, room: JudgedRoom, cuts: Sequence[Any]) -> list[RoomPart]:
    """The parts of a room.

    :param number: of the first part
    :param cuts: where they begin (:data:`CUTS`), in any order
    """
    ordered = sorted(cuts, key=lambda cut: (cut.topological, cut.stream))
    firsts = [None, *((cut.topological, cut.stream) for cut in ordered[1:])]
    return [
        RoomPart(nth, room, first, until, cut.events)
        for nth, (cut, first, until) in enumerate(
            zip(ordered, firsts, [*firsts[1:], None], strict=True), number
        )
    ]


def _cut(
    source: PartSource,
    rooms: Sequence[JudgedRoom],
    size: int,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Cut the rooms with these numbers; runs in a task."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield cut_room(number, source.order(rooms[number]), size)


def cut_room(number: int, order: pa.Table, size: int) -> pa.RecordBatch:
    """Cut one room (:data:`CUTS`). Takes some 150 bytes an event.

    :param number: of the room
    :param order: see :data:`.tables.ROOM_ORDER`
    """
    topological, stream = (
        order.column(name).to_numpy() for name in ("topological_ordering", "stream_ordering")
    )
    rows = np.lexsort((stream, topological))
    topological, stream = topological[rows], stream[rows]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = stream[1:] != stream[:-1]
    place_of_row = np.cumsum(is_new) - 1
    topological, stream = topological[is_new], stream[is_new]
    prev_stream = order.column("prev_stream_ordering").to_numpy()[rows]
    has_group = order.column("has_state_group").to_numpy()[rows][is_new]
    oldest = _oldest_prevs(stream, place_of_row, prev_stream)
    starts = [0, *_cut_positions(oldest, has_group, size)]
    ends = [*starts[1:], len(stream)]
    columns = [
        [number] * len(starts),
        topological[starts],
        stream[starts],
        [end - start for start, end in zip(starts, ends, strict=True)],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, pa.int64()) for column in columns], schema=CUTS
    )


def _oldest_prevs(stream: Any, place_of_row: Any, prev_stream: Any) -> Any:
    """By place in the order, that of the oldest prev event; the number of places where none is known.

    :param prev_stream: by row, the stream ordering of a prev event; NaN without one
    """
    count = len(stream)
    # An event whose prev events are all missing depends on nothing here, so it hinders no cut.
    oldest = np.full(count, count, dtype=np.int64)
    known = ~np.isnan(prev_stream.astype(np.float64))
    by_stream = np.argsort(stream)
    found = np.searchsorted(stream[by_stream], prev_stream[known].astype(np.int64))
    np.minimum.at(oldest, place_of_row[known], by_stream[np.minimum(found, count - 1)])
    return oldest


def _cut_positions(oldest: Any, has_group: Any, size: int) -> Iterator[int]:
    """The places in the order at which parts begin, without the first."""
    count = len(oldest)
    # The oldest event that any later one follows: a minimum from the end.
    behind = np.minimum.accumulate(oldest[::-1])[::-1]
    can_cut = np.zeros(count, dtype=bool)
    can_cut[1:] = (behind[1:] >= np.arange(count - 1)) & has_group[:-1]
    begun = 0
    for at in np.flatnonzero(can_cut):
        if at - begun >= size:
            begun = int(at)
            yield begun


def packed_parts(parts: Sequence[RoomPart], size: int) -> list[list[RoomPart]]:
    """Parts together that one task judges, one after the other.

    :param size: number of events after which a task has enough, to half a part
    """
    bins: list[list[RoomPart]] = []
    filled = 0
    for part in parts:
        if not bins or (filled and filled + part.events / 2 > size):
            bins.append([])
            filled = 0
        bins[-1].append(part)
        filled += part.events
    return bins
