"""Job ``compaction``: the state groups of rooms in fewer rows, with the proof that no state changes.

The result is one row for each group: how it would be stored, and the digests of its state as it is stored
and as it would be stored. :mod:`synrepl.storage.foreign.rooms.compacted` applies the rows to a copy of the
database; the same job over the copy computes the digests again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.groups.digests import StateSum, state_sums, stored_sums
from synrepl.pipeline.rooms.groups.forest import ROOT, Entries, ForestBuilder
from synrepl.pipeline.rooms.groups.plan import MAX_HOPS, plan_groups
from synrepl.pipeline.rooms.groups.stream import (
    EntryNumbers,
    StreamedEvent,
    each_rooms_groups,
    require_synapse_groups,
)
from synrepl.pipeline.rooms.page.charts import MAX_ROWS, Bar, bars, short_number
from synrepl.pipeline.rooms.page.document import PageSection, ResultPage
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.spark_room_job import JobSetting, SettingKind, SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.storage.rooms.states.state_digest import digest_of_total

ENTRY = pa.struct(
    [
        pa.field("type", pa.string()),
        pa.field("state_key", pa.string()),
        pa.field("event_id", pa.string()),
    ]
)

RESULT = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("state_group", pa.int64()),
        pa.field("stored_prev", pa.int64()),
        pa.field("prev_state_group", pa.int64()),
        pa.field("changed", pa.bool_()),
        pa.field("entries", pa.list_(ENTRY)),
        pa.field("size", pa.int64()),
        pa.field("digest_before", pa.binary()),
        pa.field("digest_after", pa.binary()),
        pa.field("rows_before", pa.int64()),
        pa.field("rows_after", pa.int64()),
        pa.field("bytes_before", pa.int64()),
        pa.field("bytes_after", pa.int64()),
        pa.field("hops", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)


def compact_groups(frames: RoomFrames, max_hops: int = MAX_HOPS) -> DataFrame:
    """One row for each state group of a Synapse's database.

    docs/rooms-on-spark.md has the columns. Where digests would differ, the job fails.

    A room of which no rows would be saved stays as it is. A task holds what the states of one room change, some
    400 bytes a change, and a few whole states.

    :param max_hops: maximum number of further groups to read for one
    :raises GroupsArePacked: the groups are those of synrepl's own database
    """
    require_synapse_groups(frames)
    return each_rooms_groups(frames, partial(_Compacting, max_hops), RESULT)


class _Compacting:
    """The groups of one room."""

    def __init__(self, max_hops: int, room_id: str, numbers: EntryNumbers) -> None:
        self._max_hops = max_hops
        self._room_id = room_id
        self._numbers = numbers
        self._builder = ForestBuilder(numbers.hashes)
        self._bytes: dict[int, int] = {}

    def group(self, number: int, prev: int | None, entries: Entries) -> None:
        """Add a group."""
        self._bytes[number] = self._size(entries)
        self._builder.add(number, prev, entries)

    def event(self, event: StreamedEvent) -> None:
        """Events are not needed."""

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows of the room."""
        forest = self._builder.finish()
        hashes = self._numbers.hashes
        before = stored_sums(forest, hashes)
        plan = plan_groups(forest, self._max_hops)
        after = state_sums(plan.bases, plan.changes, hashes)
        if before != after:
            raise RuntimeError(f"the compaction of room {self._room_id} would change states")
        saves = plan.rows < sum(forest.stored_rows)
        for place, number in enumerate(forest.numbers):
            stored_prev, rows = forest.stored_prevs[place], forest.stored_rows[place]
            base = plan.bases[place]
            prev = None if base == ROOT else forest.numbers[base]
            change = plan.changes[place]
            changed = saves and (prev != stored_prev or len(change) != rows)
            yield (
                self._room_id,
                number,
                stored_prev,
                prev if changed else stored_prev,
                changed,
                self._named(change) if changed else None,
                *_proof(before[place], after[place]),
                rows,
                len(change) if changed else rows,
                self._bytes[number],
                self._size(change) if changed else self._bytes[number],
                plan.hops[place] if saves else None,
                None,
            )
        for number, why in forest.broken.items():
            nothing = (None,) * 3
            yield (
                *(self._room_id, number, None, None, False, None, *nothing),
                *(None, None, self._bytes[number], self._bytes[number], None, why.value),
            )

    def _named(self, change: Entries) -> list[dict[str, str]]:
        numbers = self._numbers
        found = []
        for key, event in change.items():
            kind, state_key = numbers.key(key)
            found.append({"type": kind, "state_key": state_key, "event_id": numbers.event(event)})
        return found

    def _size(self, entries: Entries) -> int:
        sizes = self._numbers.sizes
        return sum([sizes[entry] for entry in entries.items()])


def _proof(before: StateSum, after: StateSum) -> tuple[int, bytes, bytes]:
    return before.size, digest_of_total(before.total), digest_of_total(after.total)


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return compact_groups(frames, int(settings.get("max_hops", MAX_HOPS)))


def _page(rows: DataFrame) -> ResultPage:
    columns = ("rows_before", "rows_after", "bytes_before", "bytes_after")
    equal = f.col("digest_before") == f.col("digest_after")
    rooms = (
        rows.groupBy("room_id")
        .agg(
            f.count("*").alias("groups"),
            f.count_if(equal).alias("equal_digests"),
            f.count("problem").alias("broken"),
            *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in columns),
            f.max("hops").alias("hops"),
        )
        .withColumn("saved", f.col("bytes_before") - f.col("bytes_after"))
        .orderBy(f.desc("saved"), "room_id")
    )
    (total,) = rooms.agg(
        f.count("*").alias("rooms"),
        *(f.sum(name).alias(name) for name in ("groups", "equal_digests", "broken", *columns)),
    ).collect()
    largest = rooms.orderBy(f.desc("rows_before"), "room_id").limit(MAX_ROWS).collect()
    compared = [Bar(row.room_id, row.rows_after, row.rows_before) for row in largest]
    chart = bars(compared, "rows", total.rooms)
    share = 100 * (total.rows_after or 0) / max(1, total.rows_before or 0)
    return ResultPage(
        COMPACTION.title,
        {
            "rows before": f"{total.rows_before or 0:,}",
            "rows after": f"{total.rows_after or 0:,}",
            "of the rows": f"{share:.1f} %",
            "bytes saved": short_number((total.bytes_before or 0) - (total.bytes_after or 0)),
            "groups with equal digests": f"{total.equal_digests or 0:,} of {total.groups or 0:,}",
            "broken groups, left alone": f"{total.broken or 0:,}",
        },
        [
            PageSection(
                "The largest rooms",
                "Rows after, in front of rows before. The axis begins at 0.",
                chart,
            ),
            PageSection("Rooms", "Those first where most bytes are saved.", rows_table(rooms)),
        ],
    )


COMPACTION = SparkRoomJob(
    "compaction",
    "State groups in fewer rows, with equal digests",
    from_arrow_schema(RESULT),
    _run,
    {
        "max_hops": JobSetting(
            SettingKind.NUMBER, f"most further groups to read for one ({MAX_HOPS})"
        )
    },
    _page,
)
