"""Job ``divergence``: how two servers' views of the same rooms differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from synrepl.pipeline.rooms.groups.digests import stored_sums
from synrepl.pipeline.rooms.groups.forest import Entries, ForestBuilder
from synrepl.pipeline.rooms.groups.stream import EntryNumbers, StreamedEvent, each_rooms_groups
from synrepl.pipeline.rooms.page.document import ResultPage
from synrepl.pipeline.rooms.page.result import kinds_page
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.state_at_every_event import state_at_every_event
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.storage.rooms.states.state_digest import digest_of_total

#: The state of a group: its digest.
_SUMS = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("state_group", pa.int64()),
        pa.field("digest", pa.binary()),
    ]
)

_KEYS = ("room_id", "kind", "event_id", "type", "state_key", "here", "there", "stream_ordering")


def diverging_rooms(here: RoomFrames, there: RoomFrames) -> DataFrame:
    """One row for each difference between two servers, in the rooms that both have.

    docs/rooms-on-spark.md has the kinds.

    An event that is on its way is a difference, too. States are compared by their digests: those of stored groups in
    a Synapse's database, those of :mod:`.state_at_every_event` in synrepl's own.
    """
    rooms = here.rooms.join(there.rooms, "room_id", "left_semi").select("room_id")
    ours, theirs = _events(here, rooms), _events(there, rooms)
    both = ours.alias("ours").join(theirs.alias("theirs"), ["room_id", "event_id"], "full")
    return (
        _one_side(both)
        .unionByName(_verdicts(both))
        .unionByName(_states(here, both))
        .unionByName(_current(here, there, rooms))
    )


def _events(frames: RoomFrames, rooms: DataFrame) -> DataFrame:
    """The events that have a state, with verdict and digest."""
    verdict = (
        f.when(f.col("rejected"), "rejected")
        .when(f.col("soft_failed"), "soft-failed")
        .otherwise("accepted")
    )
    return (
        frames.events.where("NOT outlier")
        .join(rooms, "room_id", "left_semi")
        .select(
            *("room_id", "event_id", "type", "state_key", "stream_ordering"),
            verdict.alias("verdict"),
        )
        .join(_digests(frames), ["room_id", "event_id"], "left")
    )


def _one_side(both: DataFrame) -> DataFrame:
    only_here, only_there = f.col("theirs.verdict").isNull(), f.col("ours.verdict").isNull()
    side = f.when(only_here, "ours").otherwise("theirs")
    return both.where(only_here | only_there).select(
        "room_id",
        f.when(only_here, "only here").otherwise("only there").alias("kind"),
        "event_id",
        *(_of_either(name) for name in ("type", "state_key")),
        f.when(side == "ours", f.col("ours.verdict")).alias("here"),
        f.when(side == "theirs", f.col("theirs.verdict")).alias("there"),
        _of_either("stream_ordering"),
    )


def _verdicts(both: DataFrame) -> DataFrame:
    return both.where("ours.verdict <> theirs.verdict").select(
        "room_id",
        f.lit("verdict").alias("kind"),
        "event_id",
        *(_of_either(name) for name in ("type", "state_key")),
        f.col("ours.verdict").alias("here"),
        f.col("theirs.verdict").alias("there"),
        _of_either("stream_ordering"),
    )


def _states(here: RoomFrames, both: DataFrame) -> DataFrame:
    """Events after which the states differ, without those that only inherit a difference."""
    differ = both.where("ours.digest <> theirs.digest").select(
        "room_id",
        "event_id",
        *(_of_either(name) for name in ("type", "state_key")),
        f.hex("ours.digest").alias("here"),
        f.hex("theirs.digest").alias("there"),
        _of_either("stream_ordering"),
    )
    known = differ.select("room_id", f.col("event_id").alias("prev_event_id"))
    inherited = here.edges.join(known, ["room_id", "prev_event_id"], "left_semi")
    first = differ.join(inherited, ["room_id", "event_id"], "left_anti")
    return first.withColumn("kind", f.lit("state")).select(*_KEYS)


def _current(here: RoomFrames, there: RoomFrames, rooms: DataFrame) -> DataFrame:
    keys = ["room_id", "type", "state_key"]

    def entries(frames: RoomFrames, name: str) -> DataFrame:
        mine = frames.current_state.join(rooms, "room_id", "left_semi")
        return mine.select(*keys, f.col("event_id").alias(name))

    # A server that has left a room has no current state of it.
    known = [entries(frames, "event_id").select("room_id").distinct() for frames in (here, there)]
    rows = entries(here, "here").join(entries(there, "there"), keys, "full")
    for each in known:
        rows = rows.join(each, "room_id", "left_semi")
    return rows.where("NOT (here <=> there)").select(
        "room_id",
        f.lit("current state").alias("kind"),
        f.lit(None).cast("string").alias("event_id"),
        *("type", "state_key", "here", "there"),
        f.lit(None).cast("long").alias("stream_ordering"),
    )


def _of_either(name: str) -> Column:
    return f.coalesce(f.col(f"ours.{name}"), f.col(f"theirs.{name}")).alias(name)


def _digests(frames: RoomFrames) -> DataFrame:
    """The digest of the state after each event."""
    if getattr(frames.lookup, "is_own", False):
        # Its stored digests have keys that are secret, and other ones in each room.
        return state_at_every_event(frames).select("room_id", "event_id", "digest")
    groups = each_rooms_groups(frames, _Digesting, _SUMS).select("state_group", "digest")
    after = frames.event_state_groups.select("room_id", "event_id", "state_group")
    return after.join(groups, "state_group").drop("state_group")


class _Digesting:
    """The groups of one room."""

    def __init__(self, room_id: str, numbers: EntryNumbers) -> None:
        self._room_id = room_id
        self._numbers = numbers
        self._builder = ForestBuilder(numbers.hashes)

    def group(self, number: int, prev: int | None, entries: Entries) -> None:
        """Add a group."""
        self._builder.add(number, prev, entries)

    def event(self, event: StreamedEvent) -> None:
        """Events are not needed."""

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The digests of the room's groups."""
        forest = self._builder.finish()
        sums = stored_sums(forest, self._numbers.hashes)
        for number, state in zip(forest.numbers, sums, strict=True):
            yield self._room_id, number, digest_of_total(state.total)


def _run(frames: RoomFrames, settings: Mapping[str, str], there: RoomFrames) -> DataFrame:
    return diverging_rooms(frames, there)


def _page(rows: DataFrame) -> ResultPage:
    text = "Differences of each kind. Without any, both servers have the same view of their common rooms."
    return kinds_page(DIVERGENCE.title, rows, "kind", text)


DIVERGENCE = SparkRoomJob(
    "divergence",
    "How the views of two servers differ",
    t.StructType(
        [
            t.StructField(name, t.LongType() if name == "stream_ordering" else t.StringType())
            for name in _KEYS
        ]
    ),
    _run,
    page=_page,
    nothing="Nothing differs.",
    compares=True,
)
