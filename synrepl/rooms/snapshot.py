"""A room as plain data, to be stored, sent, and loaded without judging again.

A snapshot has the events with their verdicts, and the states before and after them as state groups. It may be
of a whole room, or of some events only: those, the events of their states, and the auth chains of all.
Events that are not in a snapshot are unknown to the room that is loaded from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from synrepl.rooms.chains import auth_dependencies
from synrepl.rooms.checks import Check
from synrepl.rooms.event import parse_event
from synrepl.rooms.extremities import ForwardExtremities
from synrepl.rooms.judged import Judged
from synrepl.rooms.lookups import run
from synrepl.rooms.ordering import EventOrdering, StreamOrder
from synrepl.rooms.refusal import Refusal
from synrepl.rooms.room import Room, RoomContents, RoomJudged
from synrepl.rooms.state_groups import StateGroup, StateGroups, lookup_plan, lookup_states
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots
from synrepl.rooms.versions import room_version
from synrepl.rooms.waiting import MAX_WAITING, WaitingEvent


class StateGroupRecord(msgspec.Struct, frozen=True):
    """A state group; see :class:`~synrepl.rooms.state_groups.StateGroup`.

    :ivar entries: type, state key and event ID
    :ivar removed: type and state key
    """

    number: int
    prev: int | None
    place: int
    entries: list[tuple[str, str, str]]
    removed: list[tuple[str, str]] = []


class EventRecord(msgspec.Struct, frozen=True):
    """An event and its verdict; see :class:`~synrepl.rooms.judged.Judged`.

    :ivar raw: the JSON as received
    :ivar before: the state group before it; None for an outlier
    :ivar after: the state group after it; None for an outlier
    """

    raw: bytes
    topological: int
    stream: int
    before: int | None = None
    after: int | None = None
    refusal: Refusal | None = None
    failed: Check | None = None
    soft_failure: Refusal | None = None
    partial: bool = False


class WaitingRecord(msgspec.Struct, frozen=True):
    """An event that waits; see :class:`~synrepl.rooms.waiting.WaitingEvent`."""

    raw: bytes
    live: bool
    missing: list[str]


class RoomSnapshot(msgspec.Struct, frozen=True):
    """A room as data, which ``msgspec`` encodes as JSON or MessagePack.

    :ivar events: in the order in which they were judged
    :ivar newest: the last stream ordering that was assigned
    :ivar missing_prev_events: unknown events that a known event follows
    """

    version: str
    room_id: str | None
    events: list[EventRecord]
    groups: list[StateGroupRecord]
    forward_extremities: list[str]
    missing_prev_events: list[str] = []
    waiting: list[WaitingRecord] = []
    newest: int = 0


def snapshot_of(room: Room, event_ids: Collection[str] | None = None) -> RoomSnapshot:
    """Take a snapshot of a room.

    :param event_ids: the events to include with their states, such as the forward extremities; the events of
        those states, and the auth chains of all, are included as well. By default, everything
    :raises NotJudged: one of them was not received, or waits
    """
    contents = room.contents()
    chosen = list(contents.judged)
    with_state = None
    if event_ids is not None:
        with_state = set(event_ids)
        needed = _needed(room, [room[each] for each in with_state])
        chosen = [each for each in chosen if each.event.event_id in needed]
    groups = _Groups()
    events = []
    for each in chosen:
        before = after = None
        if with_state is None or each.event.event_id in with_state:
            before = groups.number(each.state_before)
            after = groups.number(each.state_after)
        events.append(
            EventRecord(
                each.event.raw,
                each.ordering.topological,
                each.ordering.stream,
                before,
                after,
                each.refusal,
                each.failed,
                each.soft_failure,
                each.partial,
            )
        )
    return RoomSnapshot(
        room.version.name,
        room.room_id,
        events,
        groups.rows(),
        sorted(contents.extremities.event_ids),
        sorted(contents.extremities.missing_prev_events),
        [
            WaitingRecord(each.event.raw, each.live, sorted(each.missing))
            for each in contents.waiting
        ],
        contents.order.newest,
    )


def _needed(room: Room, judged: Iterable[RoomJudged]) -> set[str]:
    """The events, the events of the states before and after them, and the auth chains of all."""
    ahead: list[str] = []
    states: dict[int, CompactStateMap] = {}
    for each in judged:
        ahead.append(each.event.event_id)
        for state in (each.state_before, each.state_after):
            if state is not None:
                states[id(state)] = state
    for state in states.values():
        ahead.extend(state.values())
    found: set[str] = set()
    while ahead:
        event_id = ahead.pop()
        if event_id not in found:
            found.add(event_id)
            ahead.extend(auth_dependencies(room[event_id].event))
    return found


class _Groups:
    """Numbers states as state groups; the same object gets the same number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._states: list[CompactStateMap] = []
        self._groups: dict[int, StateGroup] = {}

    def number(self, state: CompactStateMap | None) -> int | None:
        """The group number of a state, a new one if needed."""
        if state is None:
            return None
        number = self._numbers.get(id(state))
        if number is None:
            # The latest states are the likeliest to be close.
            candidates = [(each, self._states[each]) for each in range(len(self._states))[-3:]]
            plan = run(lookup_plan(state, candidates), StateGroups(self._groups))
            if plan.prev is not None and not plan.delta:
                number = plan.prev
            else:
                number = len(self._states)
                self._groups[number] = plan
                self._states.append(state)
            self._numbers[id(state)] = number
        return number

    def rows(self) -> list[StateGroupRecord]:
        """All groups as data."""
        return [
            StateGroupRecord(
                number,
                group.prev,
                group.place,
                [(*key, event_id) for key, event_id in group.delta.entries.items()],
                sorted(group.delta.removed),
            )
            for number, group in self._groups.items()
        ]


def load_room(snapshot: RoomSnapshot, max_waiting: int = MAX_WAITING) -> Room:
    """Load the room of a snapshot.

    :raises UnknownRoomVersion: its room version is not known
    :raises BadEvent: an event in it is malformed
    :raises UnknownStateGroup: a state group is missing
    :raises MissingAuthEvent: an auth event is missing
    """
    version = room_version(snapshot.version)
    slots = Slots()
    states = run(
        lookup_states(
            {
                number
                for row in snapshot.events
                for number in (row.before, row.after)
                if number is not None
            },
            slots=slots,
        ),
        StateGroups({row.number: _group(row) for row in snapshot.groups}),
    )
    judged = [
        Judged(
            parse_event(row.raw, version),
            None if row.before is None else states[row.before],
            None if row.after is None else states[row.after],
            row.refusal,
            row.failed,
            row.soft_failure,
            row.partial,
            EventOrdering(row.topological, row.stream),
        )
        for row in snapshot.events
    ]
    waiting = [
        WaitingEvent(parse_event(row.raw, version), row.live, set(row.missing))
        for row in snapshot.waiting
    ]
    extremities = ForwardExtremities(snapshot.forward_extremities, snapshot.missing_prev_events)
    order = StreamOrder(snapshot.newest)
    contents = RoomContents(snapshot.room_id, slots, judged, extremities, waiting, order)
    return Room.from_contents(version, contents, max_waiting)


def _group(row: StateGroupRecord) -> StateGroup:
    entries = {(kind, state_key): event_id for kind, state_key, event_id in row.entries}
    return StateGroup(row.prev, Delta(entries, frozenset(row.removed)), row.place)
