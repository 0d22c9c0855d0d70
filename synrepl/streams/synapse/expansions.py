"""Names in the ``caches`` stream that stand for many caches.

Source: seed "TCP replication, Synapse 1.43", 'Cache Invalidation Stream', and
``docs/protocol.md``, "Cache names with a meaning of their own".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from synrepl.streams.effects import Expansion, Group, Invalidates, Key, whole
from synrepl.streams.synapse.current_state import CURRENT_STATE, every_entry

#: Caches with one entry per event, whose keys do not contain the room.
PER_EVENT = Group("per_event")

#: Caches whose keys begin with the room.
PER_ROOM = Group("per_room")


def _room(keys: list[Any]) -> Iterable[Key]:
    return ((keys[0],),)


#: Part of a room's history was purged. The row does not name the events.
PURGED_HISTORY = Expansion("ph_cache_fake", (Invalidates(PER_EVENT, whole),))

#: A room was deleted.
DELETED_ROOM = Expansion(
    "dr_cache_fake",
    (Invalidates(PER_EVENT, whole), Invalidates(PER_ROOM, _room), *every_entry(_room)),
)

SYNAPSE_EXPANSIONS = (CURRENT_STATE, PURGED_HISTORY, DELETED_ROOM)
