"""Makes stored rooms partial, for events that come with partial state."""

from __future__ import annotations

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import lock_room, require_room
from synrepl.storage.rooms.tables.partial_rooms import (
    PartialRoomRow,
    add_partial_room,
    partial_room,
)


def make_partial(txn: Transaction, room_id: str) -> None:
    """Make a room partial, unless it is."""
    room = lock_room(txn, require_room(txn, room_id).room_no)
    if partial_room(txn, room.room_no) is None:
        row = PartialRoomRow(room.room_no, room.epoch + 1, 0, "$join", "a")
        add_partial_room(txn, row, ["a"])
