"""Cuts rooms into parts that tasks judge independently of one another.

A room may be cut behind an event if every later event follows it or a later one, so that there the room has one extremity,
and its state there is all that what comes later depends on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

#: Events of a part, if the room can be cut there. A task holds one part at a time.
PART_SIZE = 20_000

#: Fewest partitions for each core, so that a large part at the end keeps no core waiting for long.
_BINS_A_CORE = 4

#: The number in the column ``part`` of events that have no state.
OUTLIERS = -1

_CUTS = "room_id string, first_topological long, first_stream long, events long, assumed_id string"


#: Topological and stream ordering.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RoomPart:
    """A part of a room.

    :ivar first: the place of its first event; None for the first part of a room
    :ivar until: the place of the first event that is not in it; None for the last part of a room
    :ivar events: number of its events
    :ivar assumed_id: the event behind which it begins; None for the first part of a room
    """

    number: int
    room_id: str
    first: Place | None
    until: Place | None
    events: int
    assumed_id: str | None


def cut_rooms(places: DataFrame, size: int = PART_SIZE) -> list[RoomPart]:
    """Cut rooms; runs a Spark job. The parts are sorted by room and place.

    :param places: see :data:`.tables.PLACES`
    :param size: number of events after which a part ends where it can
    """

    def cut(room: pa.Table) -> pa.Table:
        return cut_room(room, size)

    found = places.groupBy("room_id").applyInArrow(cut, _CUTS).collect()
    found.sort(key=lambda row: (row.room_id, row.first_topological, row.first_stream))
    firsts = [
        None if row.assumed_id is None else (row.first_topological, row.first_stream)
        for row in found
    ]
    return [
        RoomPart(number, row.room_id, first, until, row.events, row.assumed_id)
        for number, (row, first, until) in enumerate(
            zip(found, firsts, [*firsts, None][1:], strict=True)
        )
    ]


def cut_room(room: pa.Table, size: int) -> pa.Table:
    """Cut one room; a row for each part."""
    order = room.select(["topological_ordering", "stream_ordering"]).to_pandas()
    topological = order["topological_ordering"].to_numpy(np.int64)
    stream = order["stream_ordering"].to_numpy(np.int64)
    sorted_at = np.lexsort((stream, topological))
    starts = [0]
    if len(sorted_at) > size:
        oldest = room.column("oldest_prev_stream").to_numpy(zero_copy_only=False)
        groups = room.column("state_group").is_valid().to_numpy(zero_copy_only=False)
        starts += _cut_positions(sorted_at, stream, oldest, groups, size)
    ends = [*starts[1:], len(sorted_at)]
    event_ids = room.column("event_id")
    rows = {
        "room_id": [room.column("room_id")[0].as_py()] * len(starts),
        "first_topological": [int(topological[sorted_at[at]]) for at in starts],
        "first_stream": [int(stream[sorted_at[at]]) for at in starts],
        "events": [end - start for start, end in zip(starts, ends, strict=True)],
        "assumed_id": [
            None if at == 0 else event_ids[int(sorted_at[at - 1])].as_py() for at in starts
        ],
    }
    return pa.table(rows, schema=_CUTS_ARROW)


_CUTS_ARROW = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("first_topological", pa.int64()),
        pa.field("first_stream", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("assumed_id", pa.string()),
    ]
)


def _cut_positions(
    sorted_at: Any, stream: Any, oldest: Any, has_group: Any, size: int
) -> Iterator[int]:
    """The positions in the order at which parts begin, without the first.

    :param sorted_at: row numbers in topological order
    :param oldest: by row, the stream ordering of its oldest prev event; NaN where it has none that is known
    """
    count = len(sorted_at)
    by_stream = np.argsort(stream[sorted_at])
    streams = stream[sorted_at][by_stream]
    prev_stream = oldest[sorted_at].astype(np.float64)
    known = ~np.isnan(prev_stream)
    # An event whose prev events are all missing depends on nothing here, so it hinders no cut.
    oldest_at = np.full(count, count, dtype=np.int64)
    found = np.searchsorted(streams, prev_stream[known].astype(np.int64))
    oldest_at[known] = by_stream[np.minimum(found, count - 1)]
    # The oldest event that any later one follows: a minimum from the end.
    behind = np.minimum.accumulate(oldest_at[::-1])[::-1]
    can_cut = np.zeros(count, dtype=bool)
    can_cut[1:] = behind[1:] >= np.arange(count - 1)
    can_cut[1:] &= has_group[sorted_at][:-1]
    begun = 0
    for at in np.flatnonzero(can_cut):
        if at - begun >= size:
            begun = int(at)
            yield begun


def with_parts(
    spark: SparkSession, events: DataFrame, parts: Sequence[RoomPart], cores: int
) -> DataFrame:
    """The events of these parts, and outliers, partitioned and sorted by a column ``part``, the number of each.

    :param events: see :data:`.tables.EVENTS`
    :param cores: number of tasks that run at the same time
    """
    total = sum(part.events for part in parts)
    bin_size = max(1, min(PART_SIZE, -(-total // (_BINS_A_CORE * cores))))
    filled = 0
    rows = []
    for part in parts:
        first, until = part.first or (None, None), part.until or (None, None)
        rows.append((part.room_id, part.number, filled // bin_size, *first, *until))
        filled += part.events
    bins = max((row[2] for row in rows), default=0) + 1
    table = spark.createDataFrame(rows, _PARTS)
    place = f.struct("topological_ordering", "stream_ordering")
    first_place = f.struct("from_topological", "from_stream")
    until_place = f.struct("until_topological", "until_stream")
    is_first = f.col("from_topological").isNull()
    here = (is_first | (place >= first_place)) & (
        f.col("until_topological").isNull() | (place < until_place)
    )
    # An outlier has no place; it goes where its room begins, so that tasks are alike.
    outlier = f.col("outlier")
    found = events.join(
        f.broadcast(table),
        (f.col("room_id") == f.col("of_room")) & f.when(outlier, is_first).otherwise(here),
        "left",
    ).where(outlier | f.col("part").isNotNull())
    alone = f.pmod(f.hash("room_id"), f.lit(bins))
    return (
        found.withColumn("part", f.when(outlier, f.lit(OUTLIERS)).otherwise(f.col("part")))
        .withColumn("bin", f.coalesce("bin", alone))
        .repartitionById(bins, f.col("bin"))
        .select(*events.columns, "part")
        .sortWithinPartitions("part", "room_id")
    )


_PARTS = t.StructType(
    [
        t.StructField("of_room", t.StringType()),
        t.StructField("part", t.IntegerType()),
        t.StructField("bin", t.IntegerType()),
        t.StructField("from_topological", t.LongType()),
        t.StructField("from_stream", t.LongType()),
        t.StructField("until_topological", t.LongType()),
        t.StructField("until_stream", t.LongType()),
    ]
)
