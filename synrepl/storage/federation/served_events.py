"""Single events, auth chains and times as other servers ask for them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.rooms import room_version
from synrepl.storage.database import Transaction
from synrepl.storage.federation.served_states import chain_numbers
from synrepl.storage.rooms.reading.event_access import (
    EventInOtherRoom,
    EventNotStored,
    read_events,
    require_event,
)
from synrepl.storage.rooms.reading.served_json import served_json
from synrepl.storage.rooms.tables.numbers import require_room, room_by_number
from synrepl.storage.rooms.visibility.event_visibility import seen_by_server

#: Events of an auth chain in one answer.
MAX_AUTH_EVENTS = 10_000

#: Events that are looked at around a time.
MAX_AROUND = 200

#: Steps of a search by time; 2^60 is more than a stream has.
_STEPS = 62


class NoEventAtTime(InputError):
    """room {room_id} has no event {direction} that time"""


class EventAtTime(NamedTuple):
    """An event close to a time.

    :ivar origin_server_ts: of the event, in milliseconds since 1970
    """

    event_id: str
    origin_server_ts: int


class PlaceOfEvent(NamedTuple):
    """Where an event is, and whose it is."""

    room_id: str
    sender: str


def place_of_event(txn: Transaction, event_id: str) -> PlaceOfEvent:
    """The room and the sender of an event.

    :raises EventNotStored:
    """
    event = require_event(txn, event_id)
    return PlaceOfEvent(room_by_number(txn, event.room_no).room_id, event.sender)


def event_for_server(txn: Transaction, event_id: str, server: str) -> bytes:
    """The JSON of an event as a server may see it.

    An outlier is here because others cite it; who is in the room may see it as others do.

    :raises EventNotStored: it is not here, or nobody may see it
    """
    event = require_event(txn, event_id)
    room = room_by_number(txn, event.room_no)
    if event.is_outlier:
        return read_events(txn, [event_id])[event_id].json
    found = seen_by_server(txn, room, server, [event.event_no])
    if event.event_no not in found:
        raise EventNotStored(event_id=event_id)
    (json,) = served_json(txn, room_version(room.version), list(found.values()))
    return json


def auth_chain_of(txn: Transaction, room_id: str, event_id: str) -> tuple[int, array[int]]:
    """The number of an event's room, and the numbers of the events in its auth chain.

    :raises EventNotStored: :raises EventInOtherRoom:
    """
    event = require_event(txn, event_id)
    room = room_by_number(txn, event.room_no)
    if room.room_id != room_id:
        raise EventInOtherRoom(event_id=event_id, room_id=room.room_id, expected=room_id)
    numbers = chain_numbers(txn, room.room_no, [event.event_no])
    return room.room_no, numbers[:MAX_AUTH_EVENTS]


def event_at_time(txn: Transaction, room_id: str, ts: int, *, forwards: bool) -> EventAtTime:
    """The event closest to a time, at or after it, or at or before it.

    Events are looked for in the order in which they came. Where their times are out of order by far, a close one is found,
    not always the closest.

    :param ts: milliseconds since 1970
    :raises UnknownRoom: :raises NoEventAtTime:
    """
    room_no = require_room(txn, room_id).room_no
    low, high = _ends(txn, room_no)
    for _ in range(_STEPS):
        if low >= high:
            break
        middle = (low + high) // 2
        found = _first_after(txn, room_no, middle)
        if found is None or found[1] >= ts:
            high = middle
        else:
            low = found[0]
    candidates = _around(txn, room_no, low)
    wanted = [each for each in candidates if (each[1] >= ts if forwards else each[1] <= ts)]
    if not wanted:
        direction = "at or after" if forwards else "at or before"
        raise NoEventAtTime(room_id=room_id, direction=direction)
    event_id, at = min(wanted, key=lambda each: abs(each[1] - ts))
    return EventAtTime(event_id, at)


def _ends(txn: Transaction, room_no: int) -> tuple[int, int]:
    txn.execute(
        "SELECT coalesce(min(stream_id), 0) - 1, coalesce(max(stream_id), 0)"
        " FROM synrepl._room_events WHERE room_no = %s AND stream_id IS NOT NULL",
        (room_no,),
    )
    low, high = txn.fetchone()
    return int(low), int(high)


def _first_after(txn: Transaction, room_no: int, stream_id: int) -> tuple[int, int] | None:
    """Stream ordering and time of the first event after a place."""
    txn.execute(
        "SELECT stream_id, origin_server_ts FROM synrepl._room_events"
        " WHERE room_no = %s AND stream_id > %s ORDER BY stream_id LIMIT 1",
        (room_no, stream_id),
    )
    found = txn.fetchone_or_none()
    return None if found is None else (int(found[0]), int(found[1]))


def _around(txn: Transaction, room_no: int, stream_id: int) -> Sequence[tuple[str, int]]:
    """IDs and times of events around a place that are part of the room."""
    query = (
        "SELECT event_id, origin_server_ts FROM synrepl._room_events"
        " WHERE room_no = %s AND flags & 6 = 0 AND stream_id {0} %s ORDER BY stream_id {1} LIMIT %s"
    )
    found: list[tuple[str, int]] = []
    for compares, order in (("<=", "DESC"), (">", "")):
        txn.execute(query.format(compares, order), (room_no, stream_id, MAX_AROUND // 2))
        found += [(str(event_id), int(at)) for event_id, at in txn.fetchall()]
    return found
