"""The view of a stored room for readers: the rules run over it, and nothing is written."""

from __future__ import annotations

from typing import NoReturn

from synrepl.rooms import RoomVersion, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.persisting.view import StoredRoomView
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import PendingRows


def read_view(txn: Transaction, room: RoomRow) -> tuple[RoomVersion, StoredRoomView]:
    """A room as the rules see it, as of the transaction's snapshot."""
    version = room_version(room.version)
    memory = RoomMemory(room.room_no, room.epoch, room.revision)
    groups = GroupWriter(txn, room, PendingRows(), memory.groups, _no_number)
    view = StoredRoomView(txn, room, version, memory, groups)
    view.forward_extremities = frozenset(forward_extremities(txn, room.room_no).values())
    return version, view


def _no_number() -> NoReturn:
    raise AssertionError("a reader makes no state groups")
