"""Job ``visibility``: which events of rooms each local user may see, as intervals of the stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.groups.forest import ROOT, Entries, ForestBuilder, GroupForest
from synrepl.pipeline.rooms.groups.stream import (
    EntryNumbers,
    StreamedEvent,
    each_rooms_groups,
    events_of,
)
from synrepl.pipeline.rooms.page.charts import MAX_ROWS, Bar, ChartSpan, bars, spans
from synrepl.pipeline.rooms.page.document import PageSection, ResultPage
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.spark_room_job import JobSetting, SettingKind, SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import (
    EventAudience,
    HistoryVisibility,
    StateKey,
    Viewer,
    VisibilityReason,
    VisibilityVerdict,
    visible_to_user,
)

RESULT = pa.schema(
    [
        pa.field("room_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("first_ordering", pa.int64()),
        pa.field("last_ordering", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("sight", pa.string()),
        pa.field("reason", pa.string()),
    ]
)

_MEMBER, _VISIBILITY = "m.room.member", "m.room.history_visibility"
_LEAVE, _JOIN = "leave", "join"
_VISIBILITIES = {each.name.lower(): each for each in HistoryVisibility}
_HIDDEN_TYPES = {
    "m.room.aliases": VisibilityReason.ALIASES,
    "org.matrix.dummy_event": VisibilityReason.DUMMY,
}

_Numbers = npt.NDArray[np.int32]


class NoServers(InputError):
    """visibility is computed for the users of some servers, and none was named; name yours"""


def visible_events(frames: RoomFrames, servers: Collection[str]) -> DataFrame:
    """One row for each interval of a room's stream in which the same rule decides for a user.

    docs/rooms-on-spark.md has the columns. Each event that has a state is in one interval of each user.

    Users are those who are, or were, in a state of the room. Whom they ignore is not known here. A task holds the
    events of one room, some 600 bytes each, and for one user at a time two numbers an event.

    :param servers: the servers whose users are meant, by name
    :raises NoServers:
    """
    if not servers:
        raise NoServers
    server = f.expr("substring(state_key, locate(':', state_key) + 1)")
    is_local = (f.col("type") == _MEMBER) & server.isin(sorted(servers))
    shows = (f.col("type") == _VISIBILITY) & (f.col("state_key") == "")
    return each_rooms_groups(
        frames,
        partial(_Seeing, frozenset(servers)),
        RESULT,
        events=events_of(frames),
        only=is_local | shows,
    )


class _Seeing:
    """The groups of one room, with the entries that decide for some users."""

    def __init__(self, servers: frozenset[str], room_id: str, numbers: EntryNumbers) -> None:
        self._servers = servers
        self._room_id = room_id
        self._numbers = numbers
        self._builder = ForestBuilder(numbers.hashes)
        self._values: dict[str, str | None] = {}
        self._events: list[StreamedEvent] = []

    def group(self, number: int, prev: int | None, entries: Entries) -> None:
        """Add a group."""
        self._builder.add(number, prev, entries)

    def event(self, event: StreamedEvent) -> None:
        """Add an event."""
        if event.value is not None:
            self._values[event.event_id] = event.value
        if event.group is not None:
            self._events.append(event)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The intervals of the room."""
        states = _StateValues(self._builder.finish(), self._numbers, self._values)
        events = [event for event in self._events if event.group in states.places]
        if not events:
            return
        places = np.array([states.order[states.places[each.group or 0]] for each in events])
        audiences = self._audiences(events, states)
        orderings = [event.stream_ordering or 0 for event in events]
        targets: dict[str, list[int]] = defaultdict(list)
        for nth, audience in enumerate(audiences):
            if audience.target is not None:
                targets[audience.target].append(nth)
        verdicts = _Verdicts(audiences, [event.erased for event in events], states.names)
        for user in states.users(self._servers):
            at_events = states.over((_MEMBER, user))[places]
            if not at_events.any():
                continue  # only in states of events that were not stored
            is_peeking = not (at_events == states.number(_JOIN)).any()
            seen = verdicts.of_all(at_events, is_peeking)
            for nth in targets.get(user, ()):
                seen[nth] = verdicts.of(nth, Viewer(user, is_peeking), int(at_events[nth]))
            for first, last in _runs(seen):
                verdict = verdicts.all[seen[first]]
                yield (
                    *(self._room_id, user, orderings[first], orderings[last]),
                    *(last - first + 1, verdict.sight.value, verdict.reason.code),
                )

    def _audiences(
        self, events: Sequence[StreamedEvent], states: _StateValues
    ) -> list[EventAudience]:
        """The audiences, as :func:`synrepl.rooms.audience_of` has them."""
        befores = _Befores(events, states)
        visibility = states.over((_VISIBILITY, ""))
        found = []
        for event in events:
            before = befores.of(event)
            old = new = _visibility_of("" if before == ROOT else states.names[visibility[before]])
            target, target_before = None, _LEAVE
            if event.type == _VISIBILITY and event.state_key == "":
                new = _visibility_of(event.value)
            elif event.type == _MEMBER and event.state_key is not None:
                target = event.state_key
                target_before = states.value((_MEMBER, target), before) or _LEAVE
            found.append(
                EventAudience(
                    event.event_id,
                    event.sender or "",
                    new,
                    max(old, new),
                    event.state_key is not None,
                    target,
                    target_before,
                    VisibilityReason.SOFT_FAILED
                    if event.soft_failed
                    else _HIDDEN_TYPES.get(event.type),
                )
            )
        return found


class _Verdicts:
    """The verdicts of the rules on the events of a room, as numbers.

    Events on which the rules decide in the same way, for all but their targets, are of one class.

    :ivar all: the verdicts by number
    """

    def __init__(
        self, audiences: Sequence[EventAudience], erased: Sequence[bool], memberships: Sequence[str]
    ) -> None:
        self.all: list[VisibilityVerdict] = []
        self._numbers: dict[VisibilityVerdict, int] = {}
        self._audiences = audiences
        self._erased = erased
        self._memberships = memberships
        classes: dict[tuple[EventAudience, bool], int] = {}
        self._class_of = np.array(
            [
                classes.setdefault((_without_names(audience), is_erased), len(classes))
                for audience, is_erased in zip(audiences, erased, strict=True)
            ]
        )
        self._tables = {
            is_peeking: np.array(
                [
                    [
                        self._number(audience, Viewer("", is_peeking), membership, is_erased)
                        for membership in memberships
                    ]
                    for audience, is_erased in classes
                ]
            )
            for is_peeking in (False, True)
        }

    def of_all(self, memberships: _Numbers, is_peeking: bool) -> _Numbers:
        """The verdicts on all events for a user with these memberships, who is the target of none."""
        found: _Numbers = self._tables[is_peeking][self._class_of, memberships]
        return found

    def of(self, nth: int, viewer: Viewer, membership: int) -> int:
        """The verdict on one event."""
        name = self._memberships[membership]
        return self._number(self._audiences[nth], viewer, name, self._erased[nth])

    def _number(
        self, audience: EventAudience, viewer: Viewer, membership: str, is_erased: bool
    ) -> int:
        erased = (audience.sender,) if is_erased else ()
        found = visible_to_user(audience, viewer, membership or _LEAVE, erased)
        found = found._replace(erased=False)
        number = self._numbers.setdefault(found, len(self.all))
        if number == len(self.all):
            self.all.append(found)
        return number


class _StateValues:
    """What the entries of a room's states say, at all its groups.

    Groups are numbered so that those above a group follow it; so a value that a group changes holds over a
    range.

    :ivar places: by group, its place in the forest
    :ivar order: by place, the number
    :ivar names: all values that entries have; values are given as places in it
    """

    def __init__(
        self, forest: GroupForest, numbers: EntryNumbers, values: Mapping[str, str | None]
    ) -> None:
        self.places = {number: place for place, number in enumerate(forest.numbers)}
        above: list[list[int]] = [[] for _ in forest.bases]
        roots: list[int] = []
        for place, base in enumerate(forest.bases):
            (roots if base == ROOT else above[base]).append(place)
        self.order: _Numbers = np.zeros(len(forest), np.int32)
        behind = [1] * len(forest)
        for place in range(len(forest) - 1, -1, -1):
            if forest.bases[place] != ROOT:
                behind[forest.bases[place]] += behind[place]
        todo = roots[::-1]
        ordered: list[int] = []
        while todo:
            place = todo.pop()
            self.order[place] = len(ordered)
            ordered.append(place)
            todo += above[place][::-1]
        self.bases = [ROOT if base == ROOT else int(self.order[base]) for base in forest.bases]
        self._size = len(forest)
        self._name_numbers: dict[str, int] = {"": 0}
        self._changes: dict[StateKey, list[tuple[int, int, int]]] = defaultdict(list)
        for first, place in enumerate(ordered):
            for key, event in forest.changes[place].items():
                value = values.get(numbers.event(event)) or ""
                number = self._name_numbers.setdefault(value, len(self._name_numbers))
                self._changes[numbers.key(key)].append((first, first + behind[place], number))
        self.names = tuple(self._name_numbers)

    def number(self, name: str) -> int:
        """The number of a value; -1 if no entry has it."""
        return self._name_numbers.get(name, -1)

    def over(self, key: StateKey) -> _Numbers:
        """The value of a key at each group; the number of the empty text where it has none."""
        found: _Numbers = np.zeros(self._size, np.int32)
        for first, end, number in self._changes.get(key, ()):
            found[first:end] = number
        return found

    def value(self, key: StateKey, number: int) -> str:
        """The value of a key at one group, given by its number in the order; empty where it has none."""
        holding = [
            value for first, end, value in self._changes.get(key, ()) if first <= number < end
        ]
        return self.names[holding[-1]] if holding else ""

    def users(self, servers: frozenset[str]) -> list[str]:
        """The users of some servers that have an entry anywhere."""
        return sorted(
            user
            for kind, user in self._changes
            if kind == _MEMBER and user.partition(":")[2] in servers
        )


class _Befores:
    """Where the state before an event is found, as a number of a group."""

    def __init__(self, events: Sequence[StreamedEvent], states: _StateValues) -> None:
        self._states = states
        self._groups = {event.event_id: event.group for event in events}

    def of(self, event: StreamedEvent) -> int:
        """A group whose state is the one before the event, as far as the event changes it.

        Where states were resolved before it, and the database does not record the group before it, that is the
        group which its own group changes.
        """
        states = self._states
        if event.group_before in states.places:
            return int(states.order[states.places[event.group_before or 0]])
        place = states.places[event.group or 0]
        if event.state_key is None or not event.accepted:
            return int(states.order[place])
        groups = {self._groups.get(prev) for prev in event.prev_event_ids}
        if len(groups) == 1 and (group := groups.pop()) in states.places:
            return int(states.order[states.places[group or 0]])
        return states.bases[place]


def _without_names(audience: EventAudience) -> EventAudience:
    """What the rules use of an audience for everybody but its target."""
    return EventAudience(
        "",
        "",
        audience.visibility,
        audience.widest,
        audience.is_state,
        None,
        _LEAVE,
        audience.hidden_because,
    )


def _visibility_of(value: str | None) -> HistoryVisibility:
    return _VISIBILITIES.get(value or "", HistoryVisibility.SHARED)


def _runs(values: _Numbers) -> Iterator[tuple[int, int]]:
    """The first and last index of each run of equal numbers."""
    ends = np.flatnonzero(values[1:] != values[:-1])
    firsts = [0, *(ends + 1).tolist()]
    lasts = [*ends.tolist(), len(values) - 1]
    yield from zip(firsts, lasts, strict=True)


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return visible_events(frames, [name for name in settings.get("servers", "").split(",") if name])


def _page(rows: DataFrame) -> ResultPage:
    cost = (f.sum("events").alias("events"), f.count("*").alias("intervals"))
    reasons = rows.groupBy("sight", "reason").agg(*cost).orderBy(f.desc("events")).collect()
    users = rows.groupBy("room_id", "user_id").agg(
        f.count("*").alias("intervals"),
        f.sum(f.when(f.col("sight") == "full", f.col("events")).otherwise(0)).alias("seen_in_full"),
        f.sum("events").alias("events"),
    )
    most = users.orderBy(f.desc("intervals"), "room_id", "user_id").limit(MAX_ROWS)
    shown = rows.join(f.broadcast(most.select("room_id", "user_id")), ["room_id", "user_id"])
    intervals = [
        ChartSpan(
            f"{row.user_id} in {row.room_id}", row.first_ordering, row.last_ordering, row.sight
        )
        for row in shown.orderBy("room_id", "user_id", "first_ordering").collect()
    ]
    count = users.count()
    return ResultPage(
        VISIBILITY.title,
        {
            "users in rooms": f"{count:,}",
            "intervals": f"{sum(row.intervals for row in reasons):,}",
            "verdicts": f"{sum(row.events for row in reasons):,}",
        },
        [
            PageSection(
                "Rules",
                "Verdicts by the rule that decided. The axis begins at 0.",
                bars(
                    [Bar(f"{row.sight}: {row.reason}", row.events) for row in reasons], "verdicts"
                ),
            ),
            PageSection(
                "Users with the most intervals",
                "What each may see along the stream of the server.",
                spans(intervals, "stream ordering", count),
            ),
            PageSection(
                "Users",
                "By room.",
                rows_table(users.orderBy("room_id", "user_id")),
            ),
        ],
    )


VISIBILITY = SparkRoomJob(
    "visibility",
    "Which events each local user may see",
    from_arrow_schema(RESULT),
    _run,
    {"servers": JobSetting(SettingKind.NAMES, "the servers whose users are meant (needed)")},
    _page,
)
