"""Rooms joined by a partial-state join whose full state has arrived."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Invalidates, columns_key
from synrepl.streams.row import Row


class UnPartialStatedRoomRow(Row, frozen=True):
    """A room has its full state now."""

    room_id: str


UN_PARTIAL_STATED_ROOM = Stream(
    "un_partial_stated_room",
    {UNTAGGED: UnPartialStatedRoomRow},
    generations=Generation.since(Generation.CURRENT),
    effects={
        UnPartialStatedRoomRow: (
            Invalidates("get_current_state_ids", columns_key("room_id")),
            Invalidates("get_partial_current_state_ids", columns_key("room_id")),
        )
    },
)
