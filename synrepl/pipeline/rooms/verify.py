"""Job ``verify-rooms``: every event judged again, and its state compared with the stored one; a row for each difference.

Each difference is named where it begins: what follows from a wrong state or verdict builds on what was computed, and is not
named again. Rooms are cut into parts (:mod:`.parts`); each begins with the state that the database has there, which the part
before compares with its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.pipeline.rooms.differences import (
    DIFFERENCES,
    DifferenceKind,
    RoomDifference,
    differences_batch,
)
from synrepl.pipeline.rooms.event_checks import StoredColumns, check_edges, check_event
from synrepl.pipeline.rooms.lookup import LookupSource, RoomLookup
from synrepl.pipeline.rooms.page.document import ResultPage
from synrepl.pipeline.rooms.page.result import kinds_page
from synrepl.pipeline.rooms.parts.cutting import (
    PART_SIZE,
    TaskSizes,
    cut_rooms,
    outliers_of,
    packed_parts,
    whole_rooms,
)
from synrepl.pipeline.rooms.parts.judging import (
    JudgedRow,
    PartJudging,
    PartRow,
)
from synrepl.pipeline.rooms.parts.source import RoomPart
from synrepl.pipeline.rooms.parts.tasks import PartTasks, cores_of, part_rows
from synrepl.pipeline.rooms.parts.view import JudgingVersions, PartView
from synrepl.pipeline.rooms.spark_room_job import JobSetting, SettingKind, SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import (
    CANNOT_JUDGE,
    BadEvent,
    DifferingEntry,
    Event,
    Keys,
    UnknownRoomVersion,
    auth_dependencies,
    differing_entries,
    entries_of_verdict,
    judge_outlier,
    keys_of,
)

#: Entries of a state that are named one by one; of a larger difference, the first.
_MAX_ENTRIES = 20

#: What several parts of a room may find.
NAMED_ONCE = (
    DifferenceKind.MISSING_EVENT,
    DifferenceKind.BROKEN_GROUP,
    DifferenceKind.OTHER_ROOM,
)

_STORED_COLUMNS = ("event_id", "type", "state_key", "sender", "depth", "erased", "prev_event_ids")


class VerifyOptions:
    """What is verified, and how. It is pickled for the tasks.

    :param what_if: the room version by whose rules events are judged instead of their room's, for which
        rooms are not cut: only verdicts and states are compared then
    :param signatures: check signatures, with the keys that the database has; events of servers
        without known keys count as signed
    :param published: further keys in unpadded Base64, by server name and key ID, such as those of a Synapse
        itself, which it does not store
    """

    def __init__(
        self,
        what_if: str | None = None,
        *,
        signatures: bool = False,
        published: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self.what_if = what_if
        self.signatures = signatures
        self.published = published or {}


def verify_rooms(
    frames: RoomFrames, options: VerifyOptions | None = None, size: int = PART_SIZE
) -> DataFrame:
    """One row for each difference (:class:`.DifferenceKind`); an event that is missing is named once in each room.

    :param size: see :func:`.state_at_every_event.state_at_every_event`
    :raises UnknownRoomVersion: there is no version ``what_if``
    """
    chosen = options or VerifyOptions()
    spark, source = frames.events.sparkSession, frames.parts
    rooms = source.rooms()
    sizes = TaskSizes.of(rooms, size, cores_of(spark))
    if chosen.what_if is None:
        parts = cut_rooms(spark, source, rooms, sizes.part)
    else:
        JudgingVersions.of(chosen.what_if)
        parts = whole_rooms(rooms)
    bins = packed_parts(parts, sizes.task) + packed_parts(outliers_of(rooms), sizes.task)
    work = partial(part_differences, frames.lookup, chosen)
    rows = PartTasks(source, bins, work, verified=True).frame(spark, DIFFERENCES)
    # Several parts may depend on the same missing event or broken group.
    named = [each.value for each in NAMED_ONCE]
    twice = Window.partitionBy("room_id", "kind", "state_group", "computed").orderBy("event_id")
    return (
        rows.withColumn("nth", f.row_number().over(twice))
        .where(~f.col("kind").isin(*named) | (f.col("nth") == 1))
        .drop("nth")
    )


def part_differences(
    source: LookupSource, options: VerifyOptions, part: RoomPart, table: pa.Table
) -> Iterator[pa.RecordBatch]:
    """The differences of a part; runs in a task.

    :param table: its events (:data:`.tables.VERIFIED_EVENTS`)
    """
    room_id = part.room.room_id
    rows = part_rows(table)
    try:
        versions = JudgingVersions.of(part.room.version, options.what_if)
    except UnknownRoomVersion as error:
        unknown = RoomDifference(
            rows[0].event_id, DifferenceKind.NOT_JUDGED, "room_version", stored=str(error)
        )
        yield differences_batch(room_id, [unknown])
        return
    columns = {
        event_id: StoredColumns(*values)
        for event_id, *values in zip(
            *(table.column(name).to_pylist() for name in _STORED_COLUMNS),
            strict=True,
        )
    }
    verification = _PartVerification(room_id, versions, columns, source.open(), options)
    if part.is_outliers:
        found = verification.outliers(rows, table.column("out_of_band").to_pylist())
    else:
        found = verification.events(rows)
    if named := list(found):
        yield differences_batch(room_id, named)


class _PartVerification:
    """Verifies a part, or outliers, of one room."""

    def __init__(
        self,
        room_id: str,
        versions: JudgingVersions,
        columns: Mapping[str, StoredColumns],
        lookup: RoomLookup,
        options: VerifyOptions,
    ) -> None:
        self._room_id = room_id
        self._versions = versions
        self._columns = columns
        self._lookup = lookup
        self._is_what_if = options.what_if is not None
        self._signatures = options.signatures and not self._is_what_if
        self._given = keys_of(options.published)
        self._keys: dict[str, Mapping[str, Any]] = {}
        # By event, the entries in which the stored state differs.
        self._differing: dict[str, frozenset[DifferingEntry]] = {}
        self._named_groups: set[int] = set()
        self._named_missing: set[str] = set()

    def events(self, rows: Sequence[PartRow]) -> Iterator[RoomDifference]:
        """The differences of a part."""
        judging = PartJudging(self._room_id, self._versions, rows, self._lookup)

        def prepare(some: Sequence[PartRow]) -> None:
            judging.view.groups.read({row.group for row in some if row.group is not None})

        for each in judging.run(prepare):
            yield from self._event(each, judging.view)

    def outliers(
        self, rows: Sequence[PartRow], out_of_band: Sequence[bool]
    ) -> Iterator[RoomDifference]:
        """The differences of outliers, which are judged by their auth events alone."""
        view = PartView(self._room_id, self._versions, self._lookup)
        for row, is_out_of_band in zip(rows, out_of_band, strict=True):
            try:
                if row.raw is None:
                    raise BadEvent(version="", reason="")
                event = self._versions.parse(row.raw, row.event_id, self._room_id)
            except BadEvent:
                yield from self._unparsed(row)
                continue
            yield from self._alone(event)
            try:
                judged = judge_outlier(event, view)
            except CANNOT_JUDGE as error:
                # Of a room that the server has not joined, it has few events.
                if not is_out_of_band:
                    yield from self._missing(row, event, view, str(error))
                continue
            yield from _verdict(row, judged.refusal)

    def _event(self, each: JudgedRow, view: PartView) -> Iterator[RoomDifference]:
        row, event = each.row, each.event
        if event is None:
            yield from self._unparsed(row)
            return
        yield from self._alone(event)
        if not self._is_what_if:
            yield from check_edges(event, self._columns[event.event_id].prev_event_ids)
        if each.judged is None:
            if self._needs_group(row, event, view):
                yield RoomDifference(row.event_id, DifferenceKind.NO_STATE_GROUP)
                return
            yield from self._missing(row, event, view, each.problem or "")
            return
        if each.given:
            yield from self._gap(row, event, view)
        agrees = True
        for difference in _verdict(row, each.judged.refusal):
            agrees = False
            yield difference
        if not each.given:
            yield from self._state(each, view, agrees)

    def _needs_group(self, row: PartRow, event: Event, view: PartView) -> bool:
        """Whether an event cannot be judged because it lacks the state group that a missing prev event makes necessary."""
        if (
            self._is_what_if
            or row.rejected
            or row.group is not None
            or row.group_before is not None
        ):
            return False
        with_state = view.states_at(event.prev_event_ids)
        missing = [each for each in event.prev_event_ids if each not in with_state]
        expected = self._lookup.known_missing(self._room_id, missing) if missing else ()
        return bool(missing) and all(each in expected for each in missing)

    def _alone(self, event: Event) -> Iterator[RoomDifference]:
        if self._is_what_if:
            return
        keys: Keys | None = None
        if self._signatures:
            keys = self._keys_for(event)
        columns = self._columns[event.event_id]
        yield from check_event(event, columns, self._versions.format, keys)

    def _keys_for(self, event: Event) -> Keys:
        missing = [each for each in event.signatures if each not in self._keys]
        if missing:
            # Anybody can write anything into ``signatures``; PostgreSQL has no text with a NUL.
            found = self._lookup.keys([each for each in missing if "\0" not in each])
            for server in missing:
                self._keys[server] = {**found.get(server, {}), **self._given.get(server, {})}
        return self._keys

    def _unparsed(self, row: PartRow) -> Iterator[RoomDifference]:
        if self._is_what_if:
            return
        if row.raw is None:
            yield RoomDifference(row.event_id, DifferenceKind.NO_JSON)
            return
        try:
            # The same without the IDs that it should have.
            event = self._versions.parse_any(row.raw)
        except BadEvent as error:
            yield RoomDifference(row.event_id, DifferenceKind.BAD_JSON, stored=str(error))
            return
        what, stored, computed = "event_id", row.event_id, event.event_id
        if event.room_id != self._room_id:
            what, stored, computed = "room_id", self._room_id, event.room_id
        yield RoomDifference(
            row.event_id, DifferenceKind.WRONG_ID, what, stored=stored, computed=computed
        )

    def _missing(
        self, row: PartRow, event: Event, view: PartView, problem: str
    ) -> Iterator[RoomDifference]:
        """Why an event could not be judged: events are missing; what is corrupt is named by itself."""
        cited = auth_dependencies(event)
        for each in view.absent - view.corrupt - self._named_missing:
            self._named_missing.add(each)
            yield _missing_event(row, "auth_events" if each in cited else "state", each)
        yield from self._gap(row, event, view)
        if not (view.absent or view.corrupt or self._named_missing):
            yield RoomDifference(row.event_id, DifferenceKind.NOT_JUDGED, stored=problem)

    def _gap(self, row: PartRow, event: Event, view: PartView) -> Iterator[RoomDifference]:
        """Prev events that are missing without being known to be."""
        with_state = view.states_at(event.prev_event_ids)
        missing = [
            each
            for each in event.prev_event_ids
            if each not in with_state
            and each not in view.events
            and each not in view.corrupt
            and each not in self._named_missing
        ]
        if missing:
            expected = self._lookup.known_missing(self._room_id, missing)
            for each in missing:
                self._named_missing.add(each)
                if each not in expected:
                    yield _missing_event(row, "prev_events", each)

    def _state(self, each: JudgedRow, view: PartView, agrees: bool) -> Iterator[RoomDifference]:
        """Compare the state after an event with the stored one."""
        row, judged = each.row, each.judged
        assert judged is not None
        ours = judged.state_after
        assert ours is not None
        assert judged.state_before is not None
        if row.group is None:
            if not row.rejected and not self._is_what_if:
                yield RoomDifference(row.event_id, DifferenceKind.NO_STATE_GROUP)
            return
        if row.group in view.groups.misplaced and row.group not in self._named_groups:
            self._named_groups.add(row.group)
            yield RoomDifference(
                row.event_id,
                DifferenceKind.OTHER_ROOM,
                "state_group",
                group=row.group,
                stored=view.groups.misplaced[row.group],
                computed=self._room_id,
            )
        theirs = view.groups.state(row.group)
        if theirs is None:
            if row.group not in self._named_groups:
                self._named_groups.add(row.group)
                yield RoomDifference(row.event_id, DifferenceKind.BROKEN_GROUP, group=row.group)
            return
        if ours == theirs:
            view.groups.adopt(row.group, ours)
            return
        entries = differing_entries(theirs, ours)
        fresh = entries.difference(
            *(self._differing.get(parent, ()) for parent in judged.prev_event_ids)
        )
        if not agrees:
            # The verdict was named; what follows from it alone is not named again.
            fresh -= entries_of_verdict(judged)
        self._differing[row.event_id] = entries
        for key, their, our in sorted(fresh, key=str)[:_MAX_ENTRIES]:
            yield RoomDifference(
                row.event_id, DifferenceKind.STATE, None, key, row.group, their, our
            )


def _verdict(row: PartRow, refusal: Any) -> Iterator[RoomDifference]:
    if (refusal is not None) != row.rejected:
        yield RoomDifference(
            row.event_id,
            DifferenceKind.VERDICT,
            stored="rejected" if row.rejected else "accepted",
            computed="accepted"
            if refusal is None
            else f"rejected ({refusal.code}: {refusal.sentence})",
        )


def _missing_event(row: PartRow, what: str, event_id: str) -> RoomDifference:
    return RoomDifference(row.event_id, DifferenceKind.MISSING_EVENT, what, computed=event_id)


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    signatures = settings.get("signatures") == "yes"
    options = VerifyOptions(settings.get("what_if"), signatures=signatures)
    return verify_rooms(frames, options, int(settings.get("part_events", PART_SIZE)))


def _page(rows: DataFrame) -> ResultPage:
    text = "Differences of each kind. Without any, the database has what follows from its events."
    return kinds_page(VERIFY_ROOMS.title, rows, "kind", text)


VERIFY_ROOMS = SparkRoomJob(
    "verify-rooms",
    "What differs from what follows from the events",
    from_arrow_schema(DIFFERENCES),
    _run,
    {
        "signatures": JobSetting(
            SettingKind.FLAG, "whether signatures are checked, with the keys in the database (no)"
        ),
        "what_if": JobSetting(
            SettingKind.ROOM_VERSION,
            "judge by the rules of this room version, not of the room's own",
        ),
        "part_events": JobSetting(
            SettingKind.NUMBER,
            f"events after which a part of a room ends where it can ({PART_SIZE:,})",
        ),
    },
    page=_page,
    nothing="Nothing differs.",
)
