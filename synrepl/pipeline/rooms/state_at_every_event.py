"""Job ``state-at-every-event``: the state of rooms after each event, computed from the events.

States are given as differences, and by their digests (:mod:`synrepl.storage.rooms.states.state_digest`). Rooms
are cut into parts (:mod:`.parts`) that are judged at the same time. Each part assumes the state that the database has where
it begins, and compares the state at its own end with the one that the next part assumes. Where they differ, the parts
behind are judged again with what was computed, until nothing differs; so the result is the same as without cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.lookup import LookupSource
from synrepl.pipeline.rooms.page.charts import MAX_ROWS, Bar, bars
from synrepl.pipeline.rooms.page.document import PageSection, ResultPage
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.parts.cutting import PART_SIZE, TaskSizes, cut_rooms, packed_parts
from synrepl.pipeline.rooms.parts.judging import JudgedRow, PartJudging, PartRow
from synrepl.pipeline.rooms.parts.source import RoomPart
from synrepl.pipeline.rooms.parts.tasks import PartTasks, cores_of, part_rows
from synrepl.pipeline.rooms.parts.view import JudgingVersions, PartView, StateCorrection
from synrepl.pipeline.rooms.spark_room_job import JobSetting, SettingKind, SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import CompactStateMap, UnknownRoomVersion, delta
from synrepl.storage.rooms.states.state_digest import digest_of_total, entry_hash

#: The key of digests, unless another one is given. It is no secret: somebody who chooses event IDs could make
#: two states with the same digest.
DIGEST_KEY = b"synrepl"

#: Corrections by room.
Corrections = Mapping[str, Sequence[StateCorrection]]

_ROWS = 4_096


def _structs(*names: str) -> pa.DataType:
    return pa.list_(pa.struct([pa.field(name, pa.string()) for name in names]))


_CHANGES = _structs("type", "state_key", "event_id")

#: The columns of the result, without ``room_id``, which comes first.
_COLUMNS = pa.schema(
    [
        pa.field("event_id", pa.string()),
        pa.field("topological_ordering", pa.int64()),
        pa.field("stream_ordering", pa.int64()),
        pa.field("accepted", pa.bool_()),
        pa.field("problem", pa.string()),
        pa.field("base_event_id", pa.string()),
        pa.field("changes", _CHANGES),
        pa.field("size", pa.int64()),
        pa.field("digest", pa.binary()),
        pa.field("resolved", pa.bool_()),
        pa.field("given", pa.bool_()),
    ]
)
_ROOM_ID = pa.field("room_id", pa.string())

#: The columns of the result.
STATES = pa.schema([_ROOM_ID, *_COLUMNS])

#: What is wrong in the state with which the next part begins; null everywhere but at the end of a part.
_CORRECTED = pa.field("corrected", _structs("type", "state_key", "stored", "computed"))

#: What tasks yield.
_TASK_ROWS = pa.schema([*STATES, _CORRECTED, pa.field("part", pa.int32())])


def state_at_every_event(
    frames: RoomFrames, size: int = PART_SIZE, digest_key: bytes = DIGEST_KEY
) -> DataFrame:
    """The verdict on each event that has a state, and the state after it.

    Where rooms are cut, it runs when it is called, else when its rows are requested. docs/rooms-on-spark.md has the columns.

    :param size: the number of events after which a part ends where it can. A task holds one part, which
        takes some 10 KB an event, and the state with which it begins
    :param digest_key: of the digests of states, at most 64 bytes
    """
    spark, source = frames.events.sparkSession, frames.parts
    rooms = source.rooms()
    sizes = TaskSizes.of(rooms, size, cores_of(spark))
    parts = cut_rooms(spark, source, rooms, sizes.part)

    def judged(some: Sequence[RoomPart], corrections: Corrections) -> DataFrame:
        task = StateTask(frames.lookup, digest_key, corrections)
        tasks = PartTasks(source, packed_parts(some, sizes.task), partial(state_rows, task))
        return tasks.frame(spark, _TASK_ROWS)

    rows = judged(parts, {})
    if any(not part.is_whole for part in parts):
        rows = _proven(rows, parts, judged)
    return rows.drop("part", "corrected")


def _proven(
    rows: DataFrame,
    parts: Sequence[RoomPart],
    judged: Callable[[Sequence[RoomPart], Corrections], DataFrame],
) -> DataFrame:
    """The rows, after parts that began in a wrong state were judged again."""
    rows = rows.persist(StorageLevel.DISK_ONLY)
    known: dict[str, list[StateCorrection]] = {}
    while wrong := _corrections(rows):
        for room_id, corrections in wrong.items():
            known[room_id] = sorted(
                known.get(room_id, []) + corrections, key=lambda each: each.topological
            )
        again = [
            part
            for part in parts
            if part.first is not None
            and part.room.room_id in wrong
            and part.first[0] >= min(each.topological for each in wrong[part.room.room_id])
        ]
        kept = rows.where(~f.col("part").isin([part.number for part in again]))
        # What was found is applied now, so it counts as answered.
        kept = kept.withColumn("corrected", f.lit(None).cast(kept.schema["corrected"].dataType))
        rows = kept.unionByName(judged(again, known)).persist(StorageLevel.DISK_ONLY)
    return rows


def _corrections(rows: DataFrame) -> dict[str, list[StateCorrection]]:
    """By room, what is wrong in the states that parts assumed."""
    found: dict[str, list[StateCorrection]] = {}
    wrong = rows.where("size(corrected) > 0").select(
        "room_id", "topological_ordering", f.explode("corrected").alias("at")
    )
    for row in wrong.collect():
        key = row["at"].type, row["at"].state_key
        correction = StateCorrection(
            row.topological_ordering, key, row["at"].stored, row["at"].computed
        )
        found.setdefault(row.room_id, []).append(correction)
    return found


@dataclass(frozen=True, slots=True)
class StateTask:
    """What the tasks need to know. It is pickled for them.

    :ivar lookup: looks up what is outside a part
    :ivar corrections: of states that parts assume, by room
    """

    lookup: LookupSource
    digest_key: bytes = DIGEST_KEY
    corrections: Corrections = field(default_factory=dict)


def state_rows(task: StateTask, part: RoomPart, table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows of a part; runs in a task.

    :param table: its events (:data:`.tables.JUDGED_EVENTS`)
    """
    room_id = part.room.room_id
    rows = _StateRows(room_id, part.number, task.digest_key)
    given = part_rows(table)
    try:
        versions = JudgingVersions.of(part.room.version)
    except UnknownRoomVersion as error:
        for row in given:
            rows.add_unjudged(row, str(error))
        yield rows.take()
        return
    corrections = task.corrections.get(room_id, ())
    judging = PartJudging(room_id, versions, given, task.lookup.open(), corrections)
    last = None if part.until is None else max(given, key=lambda row: row.place)
    for judged in judging.run():
        rows.add(judged, _end_corrections(judged, judging.view) if judged.row is last else ())
        if len(rows) >= _ROWS:
            yield rows.take()
    if len(rows):
        yield rows.take()


def _end_corrections(each: JudgedRow, view: PartView) -> list[dict[str, str | None]]:
    """The entries in which the state with which the next part begins differs from the computed one."""
    if each.judged is None or each.judged.state_after is None or each.row.group is None:
        return []
    view.groups.read([each.row.group])
    theirs = view.stored_state(each.row.group, each.row.place[0]) or view.empty_state
    change = delta(theirs, each.judged.state_after)
    return [
        {"type": key[0], "state_key": key[1], "stored": theirs.get(key), "computed": computed}
        for key, computed in (
            *change.entries.items(),
            *((gone, None) for gone in change.removed),
        )
    ]


class _StateRows:
    """Gathers the rows of a part."""

    def __init__(self, room_id: str, part: int, digest_key: bytes) -> None:
        self._room_id = room_id
        self._part = part
        self._key = digest_key
        # By event, the sum of the hashes of the entries of the state after it.
        self._totals: dict[str, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        # The entries that change, and where those of each row begin; None for an event that was not judged.
        self._changes: tuple[list[str], list[str], list[str | None]] = ([], [], [])
        self._starts: list[int | None] = []

    def __len__(self) -> int:
        return len(self._rows)

    def take(self) -> pa.RecordBatch:
        """The rows gathered so far, which are dropped here."""
        count = len(self._rows)
        entries = pa.StructArray.from_arrays(
            [pa.array(column, pa.string()) for column in self._changes],
            fields=list(_CHANGES.value_type),
        )
        starts = pa.array([*self._starts, len(entries)], pa.int32())
        made = {
            "room_id": pa.repeat(pa.scalar(self._room_id, pa.string()), count),
            "part": pa.repeat(pa.scalar(self._part, pa.int32()), count),
            "changes": pa.ListArray.from_arrays(starts, entries),
        }
        others = iter(list(zip(*self._rows, strict=True)))
        arrays = [
            made[field.name] if field.name in made else pa.array(next(others), field.type)
            for field in _TASK_ROWS
        ]
        for gathered in (self._rows, self._starts, *self._changes):
            gathered.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=_TASK_ROWS)

    def add_unjudged(self, row: PartRow, problem: str) -> None:
        """Add an event that cannot be judged."""
        self._starts.append(None)
        nothing = (None, None, None, None, None, None)
        self._rows.append((row.event_id, *row.place, None, problem, *nothing))

    def add(self, each: JudgedRow, corrected: Sequence[dict[str, str | None]] = ()) -> None:
        """Add an event.

        :param corrected: what is wrong in the stored state after it
        """
        judged = each.judged
        if judged is None:
            self.add_unjudged(each.row, each.problem or "")
            return
        after, before = judged.state_after, judged.state_before
        assert after is not None
        self._starts.append(len(self._changes[0]))
        total = 0 if each.base_id is None else self._total(each.base_id, each.base)
        if after is not each.base:
            total = self._add_changes(each, total)
        event_id, (topological, stream), *_ = each.row
        self._totals[event_id] = total
        refusal = judged.refusal
        self._rows.append(
            (
                event_id,
                topological,
                stream,
                refusal is None,
                None if refusal is None else f"{refusal.code}: {refusal.sentence}",
                each.base_id,
                len(after),
                digest_of_total(total),
                before is not each.base and len(judged.prev_event_ids) > 1 and not each.given,
                each.given,
                corrected or None,
            )
        )

    def _add_changes(self, each: JudgedRow, total: int) -> int:
        """Add the entries that change; the sum of the hashes after them.

        :param total: the sum before
        """
        base, key = each.base, self._key
        types, keys, ids = self._changes
        change = each.changes()
        for entry, event_id in (
            *change.entries.items(),
            *((gone, None) for gone in change.removed),
        ):
            types.append(entry[0])
            keys.append(entry[1])
            ids.append(event_id)
            old = base.get(entry)
            if old is not None:
                total -= entry_hash(key, (entry, old))
            if event_id is not None:
                total += entry_hash(key, (entry, event_id))
        return total

    def _total(self, event_id: str, state: CompactStateMap) -> int:
        total = self._totals.get(event_id)
        if total is None:
            total = sum([entry_hash(self._key, entry) for entry in state.as_dict().items()])
            self._totals[event_id] = total
        return total


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return state_at_every_event(frames, int(settings.get("part_events", PART_SIZE)))


def _page(rows: DataFrame) -> ResultPage:
    sums = {
        "rejected": f.col("accepted") == f.lit(False),
        "not_judged": f.col("accepted").isNull(),
        "resolved": f.col("resolved"),
        "given": f.col("given"),
    }
    rooms = rows.groupBy("room_id").agg(
        f.count("*").alias("events"),
        *(f.count_if(condition).alias(name) for name, condition in sums.items()),
        f.max("size").alias("largest_state"),
    )
    largest = rooms.orderBy(f.desc("events"), "room_id")
    shown = largest.limit(MAX_ROWS).collect()
    (total,) = rooms.agg(
        f.count("*").alias("rooms"), *(f.sum(name).alias(name) for name in ("events", *sums))
    ).collect()
    figures = {name.replace("_", " "): f"{total[name] or 0:,}" for name in ("events", *sums)}
    refused = rows.where("accepted IS NOT TRUE").select("room_id", "event_id", "problem")
    return ResultPage(
        STATE_AT_EVERY_EVENT.title,
        figures,
        [
            PageSection(
                "The largest rooms",
                "Events of each. The axis begins at 0.",
                bars([Bar(row.room_id, row.events) for row in shown], "events", total.rooms),
            ),
            PageSection(
                "Rooms",
                "Resolved: states before an event differed. Given: taken from the database.",
                rows_table(largest),
            ),
            PageSection(
                "Rejected or not judged",
                "With the reason.",
                rows_table(refused.orderBy("room_id", "event_id")),
            ),
        ],
    )


STATE_AT_EVERY_EVENT = SparkRoomJob(
    "state-at-every-event",
    "The state of rooms after each event, computed from the events",
    from_arrow_schema(STATES),
    _run,
    {
        "part_events": JobSetting(
            SettingKind.NUMBER,
            f"events after which a part of a room ends where it can ({PART_SIZE:,})",
        )
    },
    _page,
)
