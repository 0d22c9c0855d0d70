"""Passes the state groups of each room to a function, group by group, in a task of Spark.

All rows of a room come to one task, sorted, so a task holds one group with its entries at a time, and what
the function keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.groups.forest import REMOVED, SEVERAL, Entries
from synrepl.pipeline.rooms.groups.row_sizes import entry_bytes
from synrepl.pipeline.rooms.state_at_every_event import DIGEST_KEY
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import StateKey
from synrepl.storage.rooms.states.state_digest import entry_hash

#: Rows of the result that are passed on together.
_ROWS = 2_000

_GROUP_ROW, _ENTRY_ROW, _EVENT_ROW = 0, 1, 2

_COLUMNS = (
    "room_id",
    "kind",
    "state_group",
    "prev_state_group",
    "type",
    "state_key",
    "event_id",
    "stream_ordering",
    "sender",
    "prev_event_ids",
    "accepted",
    "soft_failed",
    "erased",
    "value",
    "state_group_before",
)

_TYPES = {
    **dict.fromkeys(("kind",), "int"),
    **dict.fromkeys(("state_group", "prev_state_group", "state_group_before"), "long"),
    "stream_ordering": "long",
    **dict.fromkeys(("accepted", "soft_failed", "erased"), "boolean"),
    "prev_event_ids": "array<string>",
}


class EntryNumbers:
    """Numbers for the keys and events of a room's states, and the hashes of their entries.

    :ivar hashes: of an entry, given as key and event: its summand in digests
    :ivar sizes: of an entry: the bytes that it takes where it is stored
    """

    def __init__(self, digest_key: bytes = DIGEST_KEY) -> None:
        self._digest_key = digest_key
        self._entries: dict[tuple[str, str, str | None], tuple[int, int]] = {}
        self._key_numbers: dict[StateKey, int] = {}
        self._event_numbers: dict[str, int] = {}
        self._keys: list[StateKey] = []
        self._events: list[str] = []
        self.hashes: dict[tuple[int, int], int] = {}
        self.sizes: dict[tuple[int, int], int] = {}

    def entry(self, kind: str, state_key: str, event_id: str) -> tuple[int, int]:
        """The numbers of key and event of an entry."""
        found = self._entries.get((kind, state_key, event_id))
        if found is None:
            key = self.key_number(kind, state_key)
            event = self._event_numbers.setdefault(event_id, len(self._events))
            if event == len(self._events):
                self._events.append(event_id)
            found = self._entries[kind, state_key, event_id] = key, event
            self.hashes[found] = entry_hash(self._digest_key, ((kind, state_key), event_id))
            self.sizes[found] = entry_bytes(kind, state_key, event_id)
        return found

    def key_number(self, kind: str, state_key: str) -> int:
        """The number of a key."""
        key = self._key_numbers.setdefault((kind, state_key), len(self._keys))
        if key == len(self._keys):
            self._keys.append((kind, state_key))
        return key

    def key(self, number: int) -> StateKey:
        """The key with a number."""
        return self._keys[number]

    def event(self, number: int) -> str:
        """The event with a number."""
        return self._events[number]


class StreamedEvent(NamedTuple):
    """An event.

    :ivar group: the state after it; None if it has none
    :ivar prev_event_ids: its prev events, whether they are there or not
    :ivar accepted: whether its entry belongs to the state after it
    :ivar value: the membership or the history visibility that it sets
    :ivar group_before: the state before it, where the database records that
    """

    event_id: str
    group: int | None
    type: str
    state_key: str | None
    stream_ordering: int | None
    sender: str | None
    prev_event_ids: list[str]
    accepted: bool
    soft_failed: bool
    erased: bool
    value: str | None
    group_before: int | None


class RoomWork(Protocol):
    """What is done with the groups of a room."""

    def group(self, number: int, prev: int | None, entries: Entries) -> None:
        """The next group; the numbers of groups rise."""
        ...

    def event(self, event: StreamedEvent) -> None:
        """An event, after all groups, in the order of the stream."""
        ...

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows of the result, after everything."""
        ...


class GroupsArePacked(InputError):
    """this job is about state groups as a Synapse stores them; those of synrepl's own database are packed rows with digests, which synrepl rooms verify checks, and synrepl rooms compact compacts"""


def require_synapse_groups(frames: RoomFrames) -> None:
    """Refuse the tables of synrepl's own database.

    :raises GroupsArePacked:
    """
    if getattr(frames.lookup, "is_own", False):
        raise GroupsArePacked


#: Begins with a room, given by its ID.
BeginRoom = Callable[[str, EntryNumbers], RoomWork]


def each_rooms_groups(
    frames: RoomFrames,
    begin: BeginRoom,
    result: pa.Schema,
    *,
    events: DataFrame | None = None,
    only: Column | None = None,
) -> DataFrame:
    """The rows that a function makes of the groups of each room.

    An entry belongs to the room of its group, whatever room is stored with the entry.

    :param events: the events to pass after the groups: see :func:`events_of`
    :param only: a condition for the entries to read
    """
    stored = frames.state_groups
    entries = frames.state_group_entries
    if only is not None:
        entries = entries.where(only)
    room_of = stored.select("state_group", "room_id")
    entries = entries.drop("room_id").join(room_of, "state_group")
    rows = _as(stored, _GROUP_ROW).unionByName(_as(entries, _ENTRY_ROW))
    if events is not None:
        rows = rows.unionByName(_as(events, _EVENT_ROW))
    is_event = f.col("kind") == _EVENT_ROW
    place = f.when(is_event, f.col("stream_ordering")).otherwise(f.col("state_group"))
    ready = rows.repartition("room_id").sortWithinPartitions("room_id", is_event, place, "kind")
    return ready.mapInArrow(partial(_each_room, begin, result), from_arrow_schema(result))


def events_of(frames: RoomFrames) -> DataFrame:
    """All events, for :func:`each_rooms_groups`."""
    prevs = frames.edges.groupBy("room_id", "event_id").agg(
        f.collect_set("prev_event_id").alias("prev_event_ids")
    )
    content = f.decode("json", "UTF-8")
    value = f.when(
        f.col("type") == "m.room.member", f.get_json_object(content, "$.content.membership")
    ).when(
        f.col("type") == "m.room.history_visibility",
        f.get_json_object(content, "$.content.history_visibility"),
    )
    return frames.events.join(prevs, ["room_id", "event_id"], "left").select(
        *("room_id", "type", "state_key", "event_id", "stream_ordering", "sender"),
        *("prev_event_ids", "soft_failed", "erased", "state_group_before"),
        f.when(~f.col("outlier"), f.col("state_group")).alias("state_group"),
        (~f.col("rejected")).alias("accepted"),
        value.alias("value"),
    )


def _as(rows: DataFrame, kind: int) -> DataFrame:
    """Rows with all columns; those that are not there are null."""
    return rows.select(
        *(
            (
                f.lit(kind)
                if name == "kind"
                else f.col(name)
                if name in rows.columns
                else f.lit(None).cast(_TYPES.get(name, "string"))
            ).alias(name)
            for name in _COLUMNS
        )
    )


def _each_room(
    begin: BeginRoom, result: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in a task."""
    waiting: list[tuple[Any, ...]] = []
    for row in _result_rows(begin, batches):
        waiting.append(row)
        if len(waiting) >= _ROWS:
            yield _batch(waiting, result)
            waiting = []
    if waiting:
        yield _batch(waiting, result)


def _batch(rows: list[tuple[Any, ...]], result: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, result, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=result)


def _result_rows(begin: BeginRoom, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    room_id: str | None = None
    work: RoomWork | None = None
    numbers = EntryNumbers()
    group: int | None = None
    prev: int | None = None
    entries: Entries = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        for row in zip(*columns, strict=True):
            room, kind, number, base, type_, state_key, event_id, *event = row
            if room != room_id:
                if work is not None:
                    if group is not None:
                        work.group(group, prev, entries)
                    yield from work.rows()
                room_id, numbers, group = room, EntryNumbers(), None
                work = begin(room, numbers)
            assert work is not None
            if kind == _ENTRY_ROW:
                # Entries without their group are no state.
                if number == group and event_id is None:
                    entries[numbers.key_number(type_, state_key)] = REMOVED
                elif number == group:
                    key, entry = numbers.entry(type_, state_key, event_id)
                    entries[key] = entry
                continue
            if kind == _GROUP_ROW and number == group:
                prev = SEVERAL
                continue
            if group is not None:
                work.group(group, prev, entries)
                group = None
            if kind == _GROUP_ROW:
                group, prev, entries = number, base, {}
            else:
                ordering, sender, prevs, *flags, value, before = event
                at = event_id, number, type_, state_key, ordering, sender
                accepted, soft_failed, erased = map(bool, flags)
                verdict = accepted, soft_failed, erased
                work.event(StreamedEvent(*at, prevs or [], *verdict, value, before))
    if work is not None:
        if group is not None:
            work.group(group, prev, entries)
        yield from work.rows()
