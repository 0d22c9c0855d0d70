"""Rooms joined by a partial-state join whose full state has arrived."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Effects, Invalidates, columns_key
from synrepl.streams.row import Row
from synrepl.streams.synapse.current_state import every_entry

#: The cache of whether a room has partial state, by room.
IS_PARTIAL_CACHE = "is_partial_state_room"

#: Caches by room about partial state.
PARTIAL_ROOM_CACHES = (IS_PARTIAL_CACHE, "get_partial_state_servers_at_join")


class UnPartialStatedRoomRow(Row, frozen=True):
    """A room has its full state now."""

    room_id: str


#: What is known of the members of a partial room is nearly nothing, so all that was cached of them is stale.
_EFFECTS: Effects = (
    *(Invalidates(name, columns_key("room_id")) for name in PARTIAL_ROOM_CACHES),
    *every_entry(columns_key("room_id")),
)

UN_PARTIAL_STATED_ROOM = Stream(
    "un_partial_stated_room",
    {UNTAGGED: UnPartialStatedRoomRow},
    generations=Generation.since(Generation.CURRENT),
    effects={UnPartialStatedRoomRow: _EFFECTS},
)
