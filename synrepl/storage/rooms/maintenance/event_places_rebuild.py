"""The places of a room's events, found again from its events and its lines."""

from __future__ import annotations

from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import copy_rows
from synrepl.storage.rooms.visibility.audience import PLACE_BITS as _BITS
from synrepl.storage.rooms.visibility.event_places import (
    BRANCHES_TABLE,
    EventPlace,
    EventPlaces,
    PlacedEvent,
)

#: Events whose places are found together.
PAGE_EVENTS = 5_000


def rebuild_event_places(txn: Transaction, room: RoomRow) -> int:
    """Find the places of all events of a room again, as after its lines were rebuilt.

    The caller holds the room's lock.

    :returns: the number of events whose place is another one now
    """
    txn.execute("DELETE FROM synrepl._branch_memberships WHERE room_no = %s", (room.room_no,))
    txn.execute("UPDATE synrepl._rooms SET purged_group = 0 WHERE room_no = %s", (room.room_no,))
    return place_events_from(txn, room, EventPlaces(), -(1 << 63))


def place_events_from(txn: Transaction, room: RoomRow, places: EventPlaces, after: int) -> int:
    """Find the places of a room's newest events again. The caller holds the room's lock.

    :param places: before them
    :param after: the stream ordering after which they begin; their rows of ``_branch_memberships`` are gone
    :returns: the number of events whose place is another one now
    """
    relevant = relevant_slots(txn, room.room_no)
    changed = 0
    while True:
        txn.execute(_PAGE, (room.main_line, room.room_no, after, PAGE_EVENTS))
        page = txn.fetchall()
        if not page:
            return changed
        placed = [(row, places.place(_placed_event(row), relevant)) for row in page]
        changed += _write(txn, room.room_no, placed)
        after = page[-1][1]


def relevant_slots(txn: Transaction, room_no: int) -> set[int]:
    """The slots of the memberships and of the history visibility of a room."""
    txn.execute(
        "SELECT slot FROM synrepl._room_keys WHERE room_no = %s"
        " AND (type = 'm.room.member' OR type = 'm.room.history_visibility' AND state_key = '')",
        (room_no,),
    )
    return {slot for (slot,) in txn.fetchall()}


_PAGE = f"""
    SELECT e.event_no, e.stream_id, e.audience & {_BITS}, e.reach, e.topological, e.slot,
           e.group_before, e.group_after, coalesce(l.line_no = %s, true),
           coalesce(l.pos, e.group_after), coalesce(l.slots, '{{}}')
      FROM synrepl._room_events e
      LEFT JOIN synrepl._state_group_lines l ON l.room_no = e.room_no AND l.group_no = e.group_after
     WHERE e.room_no = %s AND e.stream_id > %s AND e.group_after IS NOT NULL
     ORDER BY e.stream_id LIMIT %s"""


def _placed_event(row: Record) -> PlacedEvent:
    return PlacedEvent(row[1] > 0, *row[4:])


def _write(txn: Transaction, room_no: int, placed: list[tuple[Record, EventPlace]]) -> int:
    moved = [
        (row[0], place.bits, place.reach)
        for row, place in placed
        if (place.bits, place.reach) != row[2:4]
    ]
    if moved:
        txn.insert_many(
            f"UPDATE synrepl._room_events e SET audience = e.audience & ~{_BITS} | m.bits, reach = m.reach"
            " FROM (VALUES %s) AS m (event_no, bits, reach) WHERE e.event_no = m.event_no",
            moved,
            "(%s, %s, %s::bigint)",
        )
    branches = [
        (room_no, slot, row[4], row[1], row[0]) for row, place in placed for slot in place.different
    ]
    if branches:
        copy_rows(txn, BRANCHES_TABLE, branches)
    return len(moved)
