"""What a room of ours would be if it had never been partial: its events, judged again in memory, with full states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from simulator.federation.own_server import PartialStretch
from simulator.rooms.comparison import Kept, compare_room
from synrepl.rooms import (
    Event,
    Room,
    StateMap,
    auth_dependencies,
    parse_event,
    room_version,
    server_of,
    topological_sort,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import events_by_id, raw_json
from synrepl.storage.rooms.tables.numbers import require_room

#: The full state before an event of a room, as servers know it that have all of it.
StateBefore = Callable[[str, str], Mapping[tuple[str, str], str]]


class ReplayedRoom(Room):
    """A room in which also check 6 applies to an event with a state that another server reported."""

    def receive_reported(self, event: Event, state: StateMap, *, live: bool) -> None:
        """Judge an event by a full state.

        :param live: whether check 6 applies
        """
        self._check_room(event)
        event = self._first_received(event)
        self._judge(event, self.state_of(event.event_id, state), live=live)
        self._waiting.forget(event.event_id)
        self._release(event.event_id)


class _Stored(NamedTuple):
    event: Event
    stream_id: int | None


def expected_room(
    txn: Transaction,
    room_id: str,
    stretches: Sequence[PartialStretch],
    state_before: StateBefore,
    own: str,
) -> Room:
    """The room that has the events of ours, in the order in which they came.

    :param stretches: in which the room was partial: there check 6 never applies
    :param own: the name of our server, whose joins come with the state before them
    """
    row = require_room(txn, room_id)
    version = room_version(row.version)
    stored = _stored(txn, row.room_no, version.name)
    room = ReplayedRoom(version)
    by_id = {each.event.event_id: each.event for each in stored}
    for event, stream_id in stored:
        if stream_id is None:
            continue
        _add_outliers(room, by_id, auth_dependencies(event))
        live = not any(
            each.first <= stream_id and (each.last is None or stream_id <= each.last)
            for each in stretches
        )
        if all(room.has_state(each) for each in event.prev_event_ids):
            room.receive(event, live=live)
        else:
            state = state_before(room_id, event.event_id)
            _add_outliers(room, by_id, state.values())
            joins = event.membership == "join" and server_of(event.sender) == own
            room.receive_reported(event, dict(state), live=live and not joins)
    _add_outliers(room, by_id, [each.event.event_id for each in stored if each.stream_id is None])
    return room


def _add_outliers(room: Room, by_id: Mapping[str, Event], wanted: Iterable[str]) -> None:
    """Add events as outliers, with those that they cite, as far as they are not there yet."""
    new: dict[str, Event] = {}
    ahead = list(wanted)
    while ahead:
        event_id = ahead.pop()
        if event_id in by_id and event_id not in room and event_id not in new:
            new[event_id] = by_id[event_id]
            ahead += auth_dependencies(new[event_id])
    for event in topological_sort(new.values(), dependencies=auth_dependencies).events:
        room.receive_outlier(event)


def _stored(txn: Transaction, room_no: int, version: str) -> list[_Stored]:
    txn.execute(
        "SELECT event_id, stream_id FROM synrepl._room_events WHERE room_no = %s"
        " ORDER BY stream_id NULLS FIRST, event_no",
        (room_no,),
    )
    found = txn.fetchall()
    rows = events_by_id(txn, [event_id for event_id, _ in found])
    raws = raw_json(txn, rows.values())
    return [
        _Stored(parse_event(raws[event_id], room_version(version)), stream_id)
        for event_id, stream_id in found
    ]


def compare_with_expected(
    txn: Transaction,
    room_id: str,
    stretches: Sequence[PartialStretch],
    state_before: StateBefore,
    own: str,
) -> Room:
    """Compare a room that is not partial with what it would be; returns that.

    :raises AssertionError: they differ
    """
    expected = expected_room(txn, room_id, stretches, state_before, own)
    # The topological ordering depends on which prev events had come before.
    kept = Kept(unordered={each.event.event_id for each in expected})
    compare_room(txn, expected, room_id, False, kept)
    return expected
