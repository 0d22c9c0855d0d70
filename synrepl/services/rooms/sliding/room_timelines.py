"""The timelines of the rooms of an answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, Viewer
from synrepl.services.rooms.sliding.room_lists import LEFT
from synrepl.services.rooms.sliding.room_reading import ReadingKind, ReadingOfRoom
from synrepl.services.rooms.timelines.room_token import RoomToken, lowered
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.activity import ACTIVITY_TYPES, newest_activity
from synrepl.storage.rooms.timelines.room_entries import covered_tokens
from synrepl.storage.rooms.timelines.shown_events import RoomWindow, ShownPart, newest_shown
from synrepl.storage.rooms.visibility.event_filter import EventFilterSql

_NOTHING = ShownPart((), False)

#: Timelines by number of the room.
Parts = Mapping[int, ShownPart]


def read_parts(
    txn: Transaction, viewer: Viewer, rooms: Sequence[ReadingOfRoom], upto: PositionVector
) -> dict[int, ShownPart]:
    """The newest events of rooms, or those since the client was told; empty where there can be none."""
    found = {each.room.room_no: _NOTHING for each in rooms}
    groups: dict[tuple[int, PositionVector], list[RoomWindow]] = defaultdict(list)
    for each in _with_timeline(rooms):
        limit = each.asked.matched.rule.timeline_limit
        # Where a timeline begins at the start, it does not matter what else is read with it.
        since = upto if each.is_from_start else each.since
        groups[limit, since].append(_window(each, upto))
    for limit, since in [key for key in groups if key[1] == upto]:
        other = next((key for key in groups if key[0] == limit and key[1] != since), None)
        if other is not None:
            groups[other] += groups.pop((limit, since))
    for (limit, since), windows in groups.items():
        found |= newest_shown(txn, viewer, windows, since, upto, limit, EventFilterSql())
    return found


def _with_timeline(rooms: Sequence[ReadingOfRoom]) -> Sequence[ReadingOfRoom]:
    return [
        each
        for each in rooms
        if each.kind is ReadingKind.WHOLE
        or (each.kind is ReadingKind.CHANGES and (each.is_expanded or each.has_changed))
    ]


def _window(reading: ReadingOfRoom, upto: PositionVector) -> RoomWindow:
    room = reading.room
    last = room.stream_id if room.membership in LEFT else upto.highest
    return RoomWindow(room, reading.is_from_start, last, reading.is_outside)


def history_before(reading: ReadingOfRoom, part: ShownPart, upto: PositionVector) -> RoomToken:
    """Where the history before a timeline begins."""
    room = reading.room
    stream_id = room.stream_id if room.membership in LEFT else upto.highest
    if part.events:
        stream_id = part.events[0].ordering.stream - 1
    return RoomToken(lowered(upto, stream_id), EventOrdering(room.topological, stream_id))


@dataclass(frozen=True, slots=True)
class TimelineFacts:
    """What is known of timelines besides their events, by number of the room.

    :ivar stamps: by which clients order rooms; those that have not changed are left out
    :ivar live: number of events at the end of each that have just happened
    :ivar expanded: rooms whose timelines begin with an event that the client was told of before
    """

    stamps: Mapping[int, int]
    live: Mapping[int, int]
    expanded: Collection[int]


def timeline_facts(
    txn: Transaction,
    rooms: Sequence[ReadingOfRoom],
    parts: Parts,
    upto: PositionVector,
    live_since: PositionVector | None,
) -> TimelineFacts:
    """See :class:`TimelineFacts`."""
    return TimelineFacts(
        _stamps(txn, rooms, parts, upto),
        _live(txn, parts, live_since),
        _expanded(txn, rooms, parts),
    )


def _stamps(
    txn: Transaction, rooms: Sequence[ReadingOfRoom], parts: Parts, upto: PositionVector
) -> dict[int, int]:
    found: dict[int, int] = {}
    unknown: list[int] = []
    for each in rooms:
        number = each.room.room_no
        part = parts[number]
        if each.kind is ReadingKind.LABELS:
            continue
        if each.room.membership != "join":
            found[number] = each.room.stream_id
            continue
        active = [e.ordering.stream for e in part.events if e.type in ACTIVITY_TYPES]
        if active and active[-1] > 0:
            found[number] = active[-1]
        elif each.is_from_start or part.is_limited:
            unknown.append(number)
    return found | newest_activity(txn, unknown, upto)


def _expanded(txn: Transaction, rooms: Sequence[ReadingOfRoom], parts: Parts) -> set[int]:
    firsts: dict[PositionVector, dict[int, int]] = defaultdict(dict)
    for each in rooms:
        number = each.room.room_no
        if each.is_expanded and parts[number].events:
            firsts[each.since][number] = parts[number].events[0].ordering.stream
    found: set[int] = set()
    for since, streams in firsts.items():
        told = covered_tokens(txn, set(streams.values()), since)
        found |= {number for number, stream_id in streams.items() if stream_id in told}
    return found


def _live(txn: Transaction, parts: Parts, since: PositionVector | None) -> dict[int, int]:
    if since is None:
        return {}
    streams = {number: [e.ordering.stream for e in part.events] for number, part in parts.items()}
    above = {each for found in streams.values() for each in found if each > since.linear}
    new = above - covered_tokens(txn, above, since)
    live: dict[int, int] = {}
    for number, found in streams.items():
        for each in reversed(found):
            if each not in new:
                break
            live[number] = live.get(number, 0) + 1
    return live
