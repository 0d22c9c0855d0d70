"""Reads the rooms of an answer of sliding sync: many rooms in few statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from synrepl.positions.vector import PositionVector
from synrepl.rooms import Viewer
from synrepl.services.rooms.sliding.connection_state import WHOLE, RoomRecord, ToldOf
from synrepl.services.rooms.sliding.required_state import RequiredState
from synrepl.services.rooms.sliding.room_labels import RoomLabels
from synrepl.services.rooms.sliding.room_reading import ReadingKind, ReadingOfRoom, readings
from synrepl.services.rooms.sliding.room_results import NO_ROOMS, RoomHero, RoomResult, SlidingRooms
from synrepl.services.rooms.sliding.room_states import RoomState, StatesOfRooms, final_changes
from synrepl.services.rooms.sliding.room_timelines import (
    TimelineFacts,
    last_shown,
    read_parts,
    timeline_facts,
)
from synrepl.services.rooms.sliding.sliding_plan import RoomToRead
from synrepl.services.rooms.timelines.client_events import (
    ClientEventMaker,
    EntryOfRoom,
    EventOfRoom,
    in_order,
    stripped_events,
)
from synrepl.services.rooms.timelines.room_answers import history_before
from synrepl.services.rooms.timelines.updates import ClientEvent, TimelineReader
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.shown_events import ShownPart

#: Maximum number of patterns that the states which a client has are remembered by.
MAX_PATTERNS = 200


class _NamingContent(msgspec.Struct):
    name: object = None
    url: object = None
    displayname: object = None
    avatar_url: object = None


class _NamingEvent(msgspec.Struct):
    content: _NamingContent


_EVENT = msgspec.json.Decoder(_NamingEvent)
_NO_CONTENT = _NamingContent()

#: Members of the content that name a room.
_NAMED_BY = {"name": "name", "avatar": "url"}


@dataclass(frozen=True, slots=True)
class ReadAs:
    """By whom rooms are read, and as of when.

    :ivar live_since: events that it does not cover have just happened; None: all have happened before
    :ivar upto: what the process has applied
    :ivar members: numbers of membership events that the client has, as far as that is known
    """

    reader: TimelineReader
    live_since: PositionVector | None
    upto: PositionVector
    labels: RoomLabels
    members: Collection[int]
    now_ms: int


def read_results(txn: Transaction, to_read: Sequence[RoomToRead], read_as: ReadAs) -> SlidingRooms:
    """What there is to tell of rooms; those of which there is nothing have a record only."""
    if not to_read:
        return NO_ROOMS
    rooms = readings(txn, read_as.reader.user_id, to_read, read_as.upto)
    reader, upto = read_as.reader, read_as.upto
    viewer = Viewer(reader.user_id, ignored=reader.ignored)
    parts = read_parts(txn, viewer, rooms, upto)
    states = StatesOfRooms(txn, reader.user_id, upto, read_as.members).read(rooms, parts)
    facts = timeline_facts(txn, rooms, parts, upto, read_as.live_since)
    shown, entries, invitations = [], [], []
    for each in rooms:
        number, version = each.room.room_no, each.room.version
        shown += [EventOfRoom(number, version, event) for event in parts[number].events]
        state = states[number]
        entries += [EntryOfRoom(number, version, event_no) for event_no in state.event_nos()]
        invitations += [EntryOfRoom(number, version, event_no) for event_no in state.stripped]
    made = ClientEventMaker(txn, reader, read_as.now_ms).make(shown, entries)
    stripped, damaged_invitations = stripped_events(txn, invitations)
    results: dict[int, RoomResult] = {}
    records: dict[int, RoomRecord] = {}
    damaged: dict[str, str] = {}
    members: set[int] = set()
    for each in rooms:
        number = each.room.room_no
        part, state = parts[number], states[number]
        reason = made.damaged.get(number) or damaged_invitations.get(number)
        if reason is not None:
            damaged[each.room.room_id] = reason
            if each.asked.record is not None:
                records[number] = each.asked.record._replace(behind=str(each.asked.since))
            continue
        records[number] = _record(each, part, read_as.labels)
        members |= state.members
        result = _Result(each, part, state, facts, read_as).made(made.events, stripped)
        if not result.is_empty:
            results[number] = result
    return SlidingRooms(results, records, damaged, members)


class _Result:
    """Makes what is told of one room."""

    def __init__(
        self,
        reading: ReadingOfRoom,
        part: ShownPart,
        state: RoomState,
        facts: TimelineFacts,
        read_as: ReadAs,
    ) -> None:
        self._reading = reading
        self._part = part
        self._state = state
        self._facts = facts
        self._as = read_as

    def made(self, events: Mapping[int, ClientEvent], stripped: Mapping[int, bytes]) -> RoomResult:
        """The result.

        :param events: by number
        """
        reading, state, room = self._reading, self._state, self._reading.room
        result = RoomResult(
            room.membership,
            is_initial=reading.kind in (ReadingKind.WHOLE, ReadingKind.STRIPPED),
            lists=reading.asked.matched.lists,
            is_direct=self._is_direct(),
            bump_stamp=self._facts.stamps.get(room.room_no),
        )
        if reading.kind is ReadingKind.STRIPPED:
            return replace(result, stripped=[stripped[no] for no in state.stripped])
        if reading.kind is ReadingKind.LABELS:
            return result
        summary = state.summary
        result = replace(
            result,
            names={name: self._name(name, no, events) for name, no in state.naming.items()},
            heroes=self._heroes(events),
            joined=None if summary is None else summary.joined,
            invited=None if summary is None else summary.invited,
            state=in_order(events, state.entries.values()),
            removed=state.removed,
        )
        if not (reading.is_from_start or self._part.events or self._part.is_limited):
            return result
        is_expanded = room.room_no in self._facts.expanded
        return replace(
            result,
            is_expanded=is_expanded,
            timeline=in_order(events, [each.event_no for each in self._part.events]),
            # A client that adds events to the end of its timeline has to begin a new one.
            is_limited=self._part.is_limited or is_expanded,
            prev_batch=history_before(
                self._part,
                self._as.upto,
                last_shown(reading.room, self._as.upto),
                reading.room.topological,
            ),
            num_live=self._facts.live.get(room.room_no, 0),
        )

    def _is_direct(self) -> bool | None:
        """Whether the room is a direct chat; None if that is as the client knows it."""
        is_direct = self._reading.room.room_id in self._as.labels.direct
        record = self._reading.asked.record
        if self._reading.kind in (ReadingKind.WHOLE, ReadingKind.STRIPPED) or record is None:
            return True if is_direct else None
        return None if is_direct == (ToldOf.DIRECT in record.told) else is_direct

    def _name(
        self, name: str, event_no: int | None, events: Mapping[int, ClientEvent]
    ) -> str | None:
        return _text(getattr(_content(events, event_no), _NAMED_BY[name]))

    def _heroes(self, events: Mapping[int, ClientEvent]) -> Sequence[RoomHero] | None:
        summary = self._state.summary
        users = None if summary is None else summary.heroes(self._as.reader.user_id)
        if users is None:
            return None
        found = []
        for user in users:
            content = _content(events, self._state.heroes.get(user))
            found.append(RoomHero(user, _text(content.displayname), _text(content.avatar_url)))
        return found


def _record(reading: ReadingOfRoom, part: ShownPart, labels: RoomLabels) -> RoomRecord:
    """What the client has been told of a room, with this answer."""
    required = reading.asked.matched.rule.required
    direct = ToldOf.DIRECT if reading.room.room_id in labels.direct else ToldOf.NOTHING
    before = reading.asked.record
    if before is None or reading.kind in (ReadingKind.WHOLE, ReadingKind.STRIPPED):
        return RoomRecord(required, _depth(part), direct)
    depth = before.depth
    if part.is_limited:
        depth = _depth(part)
    elif reading.is_expanded:
        depth = WHOLE
    told = (before.told & ~ToldOf.DIRECT) | direct
    return RoomRecord(_known(before, required, reading), depth, told)


def _depth(part: ShownPart) -> int:
    """How many events of a timeline the client has; ``WHOLE`` if a higher limit would not give it more."""
    if not part.is_limited or (part.events and part.events[0].is_after_gap):
        return WHOLE
    return len(part.events)


def _known(
    before: RoomRecord, required: RequiredState, reading: ReadingOfRoom
) -> RequiredState | bytes:
    """The entries that the client has now: those that it had, unless one of them changed and was not wanted any more."""
    known = before.known
    if isinstance(known, bytes):
        return known if before.knows(required) else required
    both = known if known.covers(required) else known | required
    is_stale = any(
        both.matches(key) and not required.matches(key) for key in final_changes(reading)
    )
    return required if is_stale or len(both.patterns) > MAX_PATTERNS else both


def _content(events: Mapping[int, ClientEvent], event_no: int | None) -> _NamingContent:
    event = events.get(event_no) if event_no is not None else None
    return _NO_CONTENT if event is None else _EVENT.decode(event.json).content


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
