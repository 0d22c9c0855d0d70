"""Job ``state-groups``: state groups that nothing needs, that are broken or wrong, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.groups.checks import (
    CheckedGroup,
    GroupFinding,
    StateChecks,
    broken_groups,
    unreferenced,
)
from synrepl.pipeline.rooms.groups.digests import stored_sums
from synrepl.pipeline.rooms.groups.forest import Entries, ForestBuilder
from synrepl.pipeline.rooms.groups.stream import (
    EntryNumbers,
    StreamedEvent,
    each_rooms_groups,
    events_of,
    require_synapse_groups,
)
from synrepl.pipeline.rooms.page.charts import MAX_ROWS, Bar, bars, short_number
from synrepl.pipeline.rooms.page.document import PageSection, ResultPage
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames

RESULT = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("state_group", pa.int64()),
        pa.field("finding", pa.string()),
        pa.field("event_id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("state_key", pa.string()),
        pa.field("stored", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)


def check_groups(frames: RoomFrames) -> DataFrame:
    """One row for each finding in the state groups of a Synapse's database.

    docs/rooms-on-spark.md has the columns, and :class:`.GroupFinding` the findings.

    A group that nothing needs may be needed by an event that the server is about to store.

    A task holds the events of one room, some 500 bytes each, and what their states change.

    :raises GroupsArePacked: the groups are those of synrepl's own database
    """
    require_synapse_groups(frames)
    groups = frames.state_groups.select("room_id", "state_group", "prev_state_group")
    rooms = groups.select("state_group", f.col("room_id").alias("room_of"))
    foreign_bases = (
        groups.where("prev_state_group IS NOT NULL")
        .join(rooms.withColumnRenamed("state_group", "prev_state_group"), "prev_state_group")
        .where("room_of <> room_id")
    )
    # What a group of another room, or one with several bases, builds on is needed.
    several = groups.groupBy("state_group").count().where("count > 1")
    needed = foreign_bases.select(
        f.col("room_of").alias("room_id"), f.col("prev_state_group").alias("state_group")
    ).unionByName(
        groups.join(several, "state_group", "left_semi")
        .where("prev_state_group IS NOT NULL")
        .select("room_id", f.col("prev_state_group").alias("state_group"))
    )
    events = events_of(frames)
    events = events.unionByName(needed.withColumn("event_id", f.lit("")), allowMissingColumns=True)
    found = each_rooms_groups(frames, _Checking, RESULT, events=events)
    rows = found.join(
        foreign_bases.select("room_id", "state_group", f.lit(True).alias("is_foreign")),
        ["room_id", "state_group"],
        "left",
    ).withColumn(
        "finding",
        f.when(
            f.col("is_foreign") & (f.col("finding") == GroupFinding.NO_BASE.value),
            f.lit(GroupFinding.BASE_OF_ANOTHER_ROOM.value),
        ).otherwise(f.col("finding")),
    )
    names = RESULT.names
    unneeded = found.where(f.col("finding") == GroupFinding.UNREFERENCED.value).select(
        "state_group"
    )
    return (
        rows.select(*names)
        .unionByName(_events_of_other_groups(frames, rooms).select(*names))
        .unionByName(_wrong_entries(frames, rooms, unneeded).select(*names))
    )


def _events_of_other_groups(frames: RoomFrames, rooms: DataFrame) -> DataFrame:
    """Events whose state is a group of another room, or none."""
    other = (
        f.when(f.col("room_of").isNull(), GroupFinding.NO_GROUP.value)
        .when(f.col("room_of") != f.col("room_id"), GroupFinding.EVENT_OF_ANOTHER_ROOM.value)
        .alias("finding")
    )
    rows = frames.event_state_groups.join(rooms, "state_group", "left")
    found = rows.select("room_id", "state_group", other, "event_id").where("finding IS NOT NULL")
    return _with_nulls(found)


def _wrong_entries(frames: RoomFrames, rooms: DataFrame, unneeded: DataFrame) -> DataFrame:
    """Entries that cannot belong to their group, whatever the state is.

    :param unneeded: the groups that nothing needs
    """
    known = frames.events.select(
        f.col("event_id").alias("stored"),
        f.col("room_id").alias("event_room"),
        f.col("type").alias("event_type"),
        f.col("state_key").alias("event_key"),
    )
    entries = frames.state_group_entries.withColumnRenamed("event_id", "stored")
    # An entry is in many groups: each is looked up once.
    kinds = entries.select("room_id", "type", "state_key", "stored").distinct()
    same_key = (f.col("event_type") == f.col("type")) & f.col("event_key").eqNullSafe(
        f.col("state_key")
    )
    wrong = (
        kinds.join(known, "stored", "left")
        .withColumn(
            "finding",
            f.when(f.col("event_room").isNull(), GroupFinding.ENTRY_WITHOUT_EVENT.value)
            .when(f.col("event_room") != f.col("room_id"), GroupFinding.ENTRY_OF_ANOTHER_ROOM.value)
            .when(~same_key, GroupFinding.ENTRY_OF_ANOTHER_KEY.value),
        )
        .where("finding IS NOT NULL")
        .select("room_id", "type", "state_key", "stored", "finding")
    )
    by_kind = entries.join(f.broadcast(wrong), ["room_id", "type", "state_key", "stored"])
    # A group for an event that was then not stored has its entry, and nothing needs it.
    by_kind = by_kind.join(unneeded, "state_group", "left_anti")
    # The room that is stored with an entry is not that of its group.
    misplaced = (
        entries.join(rooms, "state_group", "left")
        .withColumn(
            "finding",
            f.when(f.col("room_of").isNull(), GroupFinding.NO_GROUP.value).when(
                f.col("room_of") != f.col("room_id"), GroupFinding.ENTRY_OF_ANOTHER_ROOM.value
            ),
        )
        .where("finding IS NOT NULL")
    )
    columns = ("room_id", "state_group", "finding", "type", "state_key", "stored")
    return _with_nulls(by_kind.select(*columns).unionByName(misplaced.select(*columns)).distinct())


def _with_nulls(rows: DataFrame) -> DataFrame:
    for field in RESULT:
        if field.name not in rows.columns:
            kind = "long" if field.type == pa.int64() else "string"
            rows = rows.withColumn(field.name, f.lit(None).cast(kind))
    return rows


class _Checking:
    """The groups of one room."""

    def __init__(self, room_id: str, numbers: EntryNumbers) -> None:
        self._room_id = room_id
        self._numbers = numbers
        self._builder = ForestBuilder(numbers.hashes)
        self._stored: dict[int, int | None] = {}
        self._cost: dict[int, tuple[int, int]] = {}
        self._used: list[int] = []
        self._events: list[StreamedEvent] = []

    def group(self, number: int, prev: int | None, entries: Entries) -> None:
        """Add a group."""
        sizes = self._numbers.sizes
        self._stored[number] = prev
        self._cost[number] = len(entries), sum([sizes[entry] for entry in entries.items()])
        self._builder.add(number, prev, entries)

    def event(self, event: StreamedEvent) -> None:
        """Add an event."""
        if event.group is None:
            return
        self._used.append(event.group)
        if event.event_id:
            self._events.append(event)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The findings of the room."""
        forest = self._builder.finish()
        sums = stored_sums(forest, self._numbers.hashes)
        found = list(broken_groups(forest))
        found += [
            CheckedGroup(group, GroupFinding.UNREFERENCED)
            for group in unreferenced(self._stored, self._used)
        ]
        found += StateChecks(forest, sums, self._numbers).check(self._events)
        for each in found:
            key: tuple[str | None, str | None] = (None, None)
            stored = None
            if each.entry is not None:
                key = self._numbers.key(each.entry[0])
                stored = None if each.entry[1] is None else self._numbers.event(each.entry[1])
            event_id = None if each.event is None else each.event.event_id
            yield (
                *(self._room_id, each.group, each.finding.value, event_id, *key, stored),
                *self._cost[each.group],
            )


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return check_groups(frames)


def _page(rows: DataFrame) -> ResultPage:
    cost = (f.coalesce(f.sum("bytes"), f.lit(0)).alias("bytes"), f.count("*").alias("findings"))
    kinds = rows.groupBy("finding").agg(*cost).orderBy(f.desc("findings"), "finding").collect()
    unneeded = rows.where(f.col("finding") == GroupFinding.UNREFERENCED.value)
    rooms = unneeded.groupBy("room_id").agg(*cost).orderBy(f.desc("bytes"), "room_id")
    largest = rooms.limit(MAX_ROWS).collect()
    wasted = sum(row.bytes for row in kinds if row.finding == GroupFinding.UNREFERENCED)
    wrong = sum(row.findings for row in kinds if row.finding != GroupFinding.UNREFERENCED)
    others = rows.where(f.col("finding") != GroupFinding.UNREFERENCED.value)
    return ResultPage(
        STATE_GROUPS.title,
        {"broken or wrong": f"{wrong:,}", "bytes that nothing needs": short_number(wasted)},
        [
            PageSection(
                "Kinds",
                "Findings of each kind.",
                bars([Bar(row.finding, row.findings) for row in kinds], "findings"),
            ),
            PageSection(
                "Rooms with groups that nothing needs",
                "Bytes of their rows, estimated.",
                bars([Bar(row.room_id, row.bytes) for row in largest], "bytes", rooms.count()),
            ),
            PageSection(
                "Broken or wrong",
                "What has to be looked at first.",
                rows_table(others.orderBy("room_id", "state_group", "finding")),
            ),
        ],
    )


STATE_GROUPS = SparkRoomJob(
    "state-groups",
    "State groups that nothing needs, or that are broken or wrong",
    from_arrow_schema(RESULT),
    _run,
    page=_page,
    nothing="No group is unneeded, broken or wrong.",
)
