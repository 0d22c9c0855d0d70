"""Rooms joined by a partial-state join whose full state has arrived."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Effects, Invalidates, columns_key
from synrepl.streams.row import Row

#: The cache of whether a room has partial state, by room.
IS_PARTIAL_CACHE = "is_partial_state_room"

#: Caches by room about partial state.
PARTIAL_ROOM_CACHES = (IS_PARTIAL_CACHE, "get_partial_state_servers_at_join")


class UnPartialStatedRoomRow(Row, frozen=True):
    """A room has its full state now."""

    room_id: str


#: What changed of the current state is told by rows of ``events``, before this row.
_EFFECTS: Effects = tuple(Invalidates(name, columns_key("room_id")) for name in PARTIAL_ROOM_CACHES)

UN_PARTIAL_STATED_ROOM = Stream(
    "un_partial_stated_room",
    {UNTAGGED: UnPartialStatedRoomRow},
    generations=Generation.since(Generation.CURRENT),
    effects={UnPartialStatedRoomRow: _EFFECTS},
)
