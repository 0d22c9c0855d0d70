"""States of rooms as other servers get them: in pages, so that no more than a page is in memory.

A page is looked up on the state line, and the pages of a whole state are compared with its digest together. Each page is
read in a transaction of its own: numbers keep their meaning as long as the room has the same epoch, which each checks.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Sequence
from io import StringIO
from typing import NamedTuple

from synrepl.core.errors import Unavailable
from synrepl.rooms import room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.served_json import served_json
from synrepl.storage.rooms.reading.state_reading import StateAtEvent, locate_states
from synrepl.storage.rooms.states.named_entries import named_entries
from synrepl.storage.rooms.states.state_line import look_up, read_lines, read_places
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow, room_by_number
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql

#: Events of an auth chain that are served at most.
MAX_CHAIN_SERVED = 1_000_000

#: Members whose memberships are served with a state without members, where the room has no name.
#: Source: https://spec.matrix.org/v1.16/client-server-api/#calculating-the-display-name-for-a-room
MAX_HEROES = 5

_MEMBER = "m.room.member"

#: Numbers of a long array that are made text at once.
_TEXT_PAGE = 1_000


class RoomChangedMeanwhile(Unavailable):
    """room {room_no} was purged or removed while its state was read; ask again"""


class ServedState(NamedTuple):
    """A state of a room.

    :ivar epoch: of the room, for which ``group`` is valid
    :ivar slots: number of keys that the room has given out
    :ivar size: number of entries of the state
    :ivar digest: of the entries
    """

    room_no: int
    room_id: str
    version: str
    epoch: int
    group: int
    slots: int
    size: int
    digest: bytes


class StatePage(NamedTuple):
    """A part of a state.

    :ivar event_nos: of its events
    :ivar event_ids: in the same order
    :ivar total: sum of the hashes of the entries
    """

    event_nos: Sequence[int]
    event_ids: Sequence[str]
    total: int


class PublicEvent(NamedTuple):
    """An event, and whether it is served as it came. See :class:`~.served_json.Serving`."""

    event_no: int
    event_id: str
    is_whole: bool


def state_before_event(txn: Transaction, room_id: str, event_id: str) -> ServedState:
    """The state before an event of a room.

    :raises EventNotStored: :raises EventIsOutlier: :raises PartialEvent: :raises EventInOtherRoom:
    """
    wanted = StateAtEvent(event_id, before=True, rejected=True)
    room, (group,) = locate_states(txn, [wanted], room_id)
    txn.execute(
        "SELECT size, digest FROM synrepl._state_groups WHERE room_no = %s AND group_no = %s",
        (room.room_no, group),
    )
    found = txn.fetchone_or_none()
    if found is None:
        raise NumberWithoutRow(what="state group", number=group, room_no=room.room_no)
    return ServedState(
        room.room_no,
        room.room_id,
        room.version,
        room.epoch,
        group,
        room.slots,
        int(found[0]),
        bytes(found[1]),
    )


def stateless(txn: Transaction, room_no: int) -> ServedState:
    """The empty state of a room, for events of which no state is served.

    :raises NumberWithoutRow: the room is not here any more
    """
    room = room_by_number(txn, room_no)
    return ServedState(room_no, room.room_id, room.version, room.epoch, 0, 0, 0, b"")


def state_page(txn: Transaction, state: ServedState, slots: Sequence[int]) -> StatePage:
    """The entries of a state in some slots; slots that it has no entry for are left out.

    :raises RoomChangedMeanwhile: :raises NumberWithoutRow: :raises CorruptState:
    """
    room = _same_room(txn, state)
    place = read_places(txn, room, [state.group]).get(state.group)
    if place is None:
        return StatePage([], [], 0)
    lines = read_lines(txn, [place.line_no])
    numbers = look_up(txn, [(place, slot) for slot in slots], lines)
    there = [number for number in numbers if number is not None]
    entries = named_entries(txn, room, there)
    return StatePage(
        there, [entries[each].event_id for each in there], sum(entries[e].hash for e in there)
    )


def other_slots(txn: Transaction, state: ServedState) -> list[int]:
    """The slots of a room but for memberships, ascending."""
    txn.execute(
        "SELECT slot FROM synrepl._room_keys WHERE room_no = %s AND (type < %s OR type > %s)"
        " AND slot < %s ORDER BY slot",
        (state.room_no, _MEMBER, _MEMBER, state.slots),
    )
    return [int(slot) for (slot,) in txn.fetchall()]


def hero_slots(txn: Transaction, state: ServedState, user_id: str) -> list[int]:
    """The slots of some members, by whom a client calls a room that has no name.

    :param user_id: who is not among them
    """
    txn.execute(
        "SELECT k.slot FROM (SELECT m.room_no, m.user_id FROM synrepl._memberships m"
        "  WHERE m.room_no = %s AND m.user_id <> %s AND m.membership IN ('join', 'invite')"
        "  ORDER BY m.stream_id, m.user_id LIMIT %s) AS m JOIN synrepl._room_keys k"
        " ON k.room_no = m.room_no AND k.type = 'm.room.member' AND k.state_key = m.user_id",
        (state.room_no, user_id, MAX_HEROES),
    )
    return sorted(int(slot) for (slot,) in txn.fetchall())


def slots_of_keys(txn: Transaction, state: ServedState, types: Collection[str]) -> list[int]:
    """The slots of the keys with some types and an empty state key."""
    txn.execute(
        "SELECT slot FROM synrepl._room_keys WHERE room_no = %s AND state_key = ''"
        " AND type = ANY (%s::text[])",
        (state.room_no, array_text(types)),
    )
    return [int(slot) for (slot,) in txn.fetchall()]


def chain_numbers(
    txn: Transaction,
    room_no: int,
    starts: Sequence[int],
    more: Sequence[int] = (),
    *,
    without_starts: bool = False,
) -> array[int]:
    """The numbers of the events in the auth chains of some events, ascending.

    :param more: further events
    :param without_starts: whether ``starts`` are left out
    :raises NumberWithoutRow: there are too many
    """
    txn.execute(
        "WITH RECURSIVE starts AS MATERIALIZED (SELECT unnest(%s::bigint[]) AS event_no),"
        " chain (event_no) AS ("
        " SELECT unnest(e.auth_nos) FROM (TABLE starts UNION SELECT unnest(%s::bigint[])) AS s"
        "  CROSS JOIN LATERAL (SELECT e.auth_nos"
        "   FROM synrepl._room_events e WHERE e.event_no = s.event_no OFFSET 0) AS e"
        " UNION SELECT unnest(e.auth_nos) FROM chain CROSS JOIN LATERAL (SELECT e.auth_nos"
        "  FROM synrepl._room_events e WHERE e.event_no = chain.event_no OFFSET 0) AS e),"
        " wanted AS (SELECT event_no FROM chain WHERE NOT %s OR event_no NOT IN (TABLE starts)"
        "  ORDER BY 1 LIMIT %s)"
        # One value takes much less memory than as many rows.
        " SELECT string_agg(int8send(event_no), '' ORDER BY event_no) FROM wanted",
        (
            numbers_text(starts),
            numbers_text(more),
            without_starts,
            MAX_CHAIN_SERVED + 1,
        ),
    )
    numbers = array("q", txn.fetchone()[0] or b"")
    if sys.byteorder == "little":
        numbers.byteswap()
    if len(numbers) > MAX_CHAIN_SERVED:
        raise NumberWithoutRow(what="too long an auth chain, of", number=0, room_no=room_no)
    return numbers


def numbers_text(numbers: Sequence[int]) -> str:
    """Numbers as the text of an array, made without a string for each of them at the same time."""
    text = StringIO()
    for at in range(0, len(numbers), _TEXT_PAGE):
        text.write("," if at else "{")
        text.write(",".join(map(str, numbers[at : at + _TEXT_PAGE])))
    return f"{text.getvalue()}}}" if numbers else "{}"


def ids_of_numbers(txn: Transaction, state: ServedState, numbers: Sequence[int]) -> list[str]:
    """The IDs of events of a room, in the order of their numbers.

    :raises RoomChangedMeanwhile: :raises NumberWithoutRow:
    """
    return [each.event_id for each in _public_events(txn, state, numbers)]


def events_of_numbers(txn: Transaction, state: ServedState, numbers: Sequence[int]) -> list[bytes]:
    """The JSON of events of a room, in the order of their numbers; redacted where they were.

    State and auth events are served to every server in the room, whatever its history visibility is.

    :raises RoomChangedMeanwhile: :raises NumberWithoutRow: :raises MissingJson: :raises CorruptEvent:
    """
    events = _public_events(txn, state, numbers)
    return served_json(txn, room_version(state.version), events)


def _public_events(
    txn: Transaction, state: ServedState, numbers: Sequence[int]
) -> list[PublicEvent]:
    room = _same_room(txn, state)
    txn.execute(
        "SELECT e.event_no, e.event_id,"
        f" e.redacted_by IS NULL AND NOT {is_erased_sql('e.sender')}"
        " FROM synrepl._room_events e WHERE e.event_no = ANY (%s::bigint[]) AND e.room_no = %s",
        (array_text(numbers), room.room_no),
    )
    found = {row[0]: PublicEvent._make(row) for row in txn.fetchall()}
    for number in numbers:
        if number not in found:
            raise NumberWithoutRow(what="event", number=number, room_no=room.room_no)
    return [found[number] for number in numbers]


def _same_room(txn: Transaction, state: ServedState) -> RoomRow:
    room = room_by_number(txn, state.room_no)
    if room.epoch != state.epoch or room.room_id != state.room_id:
        raise RoomChangedMeanwhile(room_no=state.room_no)
    return room
