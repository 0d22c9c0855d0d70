"""Job ``visibility``: which events of rooms each local user may see, as intervals of the stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from synrepl.core.errors import InputError
from synrepl.pipeline.rooms.group_forest import ROOT, Entries, ForestBuilder, GroupForest
from synrepl.pipeline.rooms.group_stream import (
    EntryNumbers,
    StreamedEvent,
    each_rooms_groups,
    events_of,
)
from synrepl.pipeline.rooms.page.charts import MAX_ROWS, Bar, Span, bars, spans
from synrepl.pipeline.rooms.page.document import Page, Section
from synrepl.pipeline.rooms.page.result import rows_table
from synrepl.pipeline.rooms.spark_room_job import SparkRoomJob
from synrepl.pipeline.rooms.tables import RoomFrames
from synrepl.rooms import (
    EventAudience,
    HistoryVisibility,
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

    - ``first_ordering``, ``last_ordering``, ``events``: the stream orderings of its first and last event, and
      how many events it has. Each event that has a state is in one interval of each user
    - ``sight``: ``full``, ``redacted`` or ``hidden``; ``reason``: the code of the rule
      (:class:`~synrepl.rooms.VisibilityReason`)

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
        before = _Befores(events, states)
        visibility = states.over((_VISIBILITY, ""))
        audiences = [
            self._audience(event, visibility, before.of(event), states) for event in events
        ]
        # Events for which the rules decide in the same way are of one class.
        classes: dict[tuple[EventAudience, bool], int] = {}
        class_of = np.array(
            [
                classes.setdefault((_without_names(each), event.erased), len(classes))
                for each, event in zip(audiences, events, strict=True)
            ]
        )
        orderings = np.array([event.stream_ordering or 0 for event in events])
        targets: dict[str, list[int]] = defaultdict(list)
        for nth, audience in enumerate(audiences):
            if audience.target is not None:
                targets[audience.target].append(nth)
        for user in states.users(self._servers):
            memberships = states.over((_MEMBER, user))
            values, numbers = np.unique(memberships, return_inverse=True)
            viewer = Viewer(user, is_peeking=_JOIN not in values)
            verdicts = _Verdicts()
            table = np.array(
                [
                    [verdicts.number(audience, viewer, str(value), erased) for value in values]
                    for audience, erased in classes
                ]
            )
            seen = table[class_of, numbers[places]]
            for nth in targets.get(user, ()):
                seen[nth] = verdicts.number(
                    audiences[nth], viewer, str(memberships[places[nth]]), events[nth].erased
                )
            for first, last in _runs(seen):
                verdict = verdicts.all[seen[first]]
                yield (
                    *(self._room_id, user, int(orderings[first]), int(orderings[last])),
                    *(last - first + 1, verdict.sight.value, verdict.reason.code),
                )

    def _audience(
        self,
        event: StreamedEvent,
        visibility: npt.NDArray[Any],
        before: int,
        states: _StateValues,
    ) -> EventAudience:
        """The audience as :func:`synrepl.rooms.audience_of` has it."""
        old = _visibility_of(_at(visibility, before))
        new = old
        target, target_before = None, _LEAVE
        if event.type == _VISIBILITY and event.state_key == "":
            new = _visibility_of(event.value)
        elif event.type == _MEMBER and event.state_key is not None:
            target = event.state_key
            target_before = _at(states.over((_MEMBER, target)), before) or _LEAVE
        hidden = _HIDDEN_TYPES.get(event.type)
        if event.soft_failed:
            hidden = VisibilityReason.SOFT_FAILED
        return EventAudience(
            event.event_id,
            event.sender or "",
            new,
            max(old, new),
            event.state_key is not None,
            target,
            target_before,
            hidden,
        )


class _Verdicts:
    """Numbers for verdicts."""

    def __init__(self) -> None:
        self.all: list[VisibilityVerdict] = []
        self._numbers: dict[VisibilityVerdict, int] = {}

    def number(self, audience: EventAudience, viewer: Viewer, membership: str, erased: bool) -> int:
        """The verdict of the rules for one event and one membership."""
        found = visible_to_user(
            audience, viewer, membership, (audience.sender,) if erased else ()
        )._replace(erased=False)
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
    """

    def __init__(
        self, forest: GroupForest, numbers: EntryNumbers, values: Mapping[str, str | None]
    ) -> None:
        self.places = {number: place for place, number in enumerate(forest.numbers)}
        above: list[list[int]] = [[] for _ in forest.bases]
        roots = []
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
        self._changes: dict[tuple[str, str], list[tuple[int, int, str | None]]] = defaultdict(list)
        for first, place in enumerate(ordered):
            for key, event in forest.changes[place].items():
                value = values.get(numbers.event(event))
                self._changes[numbers.key(key)].append((first, first + behind[place], value))

    def over(self, key: tuple[str, str]) -> npt.NDArray[Any]:
        """The value of a key at each group; an empty text where it has none."""
        found = np.full(self._size, "", dtype="U16")
        for first, end, value in self._changes.get(key, ()):
            found[first:end] = value or ""
        return found

    def users(self, servers: frozenset[str]) -> list[str]:
        """The users of some servers that have an entry anywhere."""
        return sorted(
            user
            for kind, user in self._changes
            if kind == _MEMBER and user.partition(":")[2] in servers
        )


class _Befores:
    """Where the state before an event is found, as a number of a group."""

    def __init__(self, events: list[StreamedEvent], states: _StateValues) -> None:
        self._states = states
        self._groups = {event.event_id: event.group for event in events}

    def of(self, event: StreamedEvent) -> int:
        """A group whose state is the one before the event, as far as the event changes it.

        Where states were resolved before it, that is the group which its own group changes.
        """
        states = self._states
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


def _at(values: npt.NDArray[Any], number: int) -> str | None:
    return None if number == ROOT else str(values[number])


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """The first and last index of each run of equal numbers."""
    ends = np.flatnonzero(values[1:] != values[:-1])
    firsts = [0, *(ends + 1).tolist()]
    lasts = [*ends.tolist(), len(values) - 1]
    yield from zip(firsts, lasts, strict=True)


def _run(frames: RoomFrames, settings: Mapping[str, str]) -> DataFrame:
    return visible_events(frames, [name for name in settings.get("servers", "").split(",") if name])


def _page(rows: DataFrame) -> Page:
    cost = (f.sum("events").alias("events"), f.count("*").alias("intervals"))
    reasons = rows.groupBy("sight", "reason").agg(*cost).orderBy(f.desc("events")).collect()
    users = rows.groupBy("room_id", "user_id").agg(
        f.count("*").alias("intervals"),
        f.sum(f.when(f.col("sight") == "full", f.col("events")).otherwise(0)).alias("seen_in_full"),
        f.sum("events").alias("events"),
    )
    most = users.orderBy(f.desc("intervals"), "room_id", "user_id").limit(MAX_ROWS + 1)
    shown = rows.join(f.broadcast(most.select("room_id", "user_id")), ["room_id", "user_id"])
    intervals = [
        Span(f"{row.user_id} in {row.room_id}", row.first_ordering, row.last_ordering, row.sight)
        for row in shown.orderBy("room_id", "user_id", "first_ordering").collect()
    ]
    return Page(
        VISIBILITY.title,
        {
            "users in rooms": f"{users.count():,}",
            "intervals": f"{sum(row.intervals for row in reasons):,}",
            "verdicts": f"{sum(row.events for row in reasons):,}",
        },
        [
            Section(
                "Rules",
                "Verdicts by the rule that decided. The axis begins at 0.",
                bars(
                    [Bar(f"{row.sight}: {row.reason}", row.events) for row in reasons], "verdicts"
                ),
            ),
            Section(
                "Users with the most intervals",
                "What each may see along the stream of the server.",
                spans(intervals, "stream ordering"),
            ),
            Section(
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
    {"servers": "The servers whose users are meant, such as example.org; several with commas."},
    _page,
)
