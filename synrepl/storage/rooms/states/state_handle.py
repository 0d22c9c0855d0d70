"""The handle of a state in the store: a group, with changes on top."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.rooms import CompactStateMap, Delta, Slots, StateKey

#: In an overlay: the entry is removed. No event has this ID.
REMOVED = ""

#: The base of states that were made from nothing.
NO_GROUP = 0


class StoredState:
    """A state of a stored room. An update takes no statement, and as long as a dictionary's.

    Equal handles stand for equal states; two that differ may, too.

    :ivar base: number of the group below; :data:`NO_GROUP` for the empty state
    :ivar overlay: entries that differ from it, :data:`REMOVED` for those that are gone
    :ivar group: number of the group of this very state, once it has one
    """

    __slots__ = ("base", "group", "overlay")

    def __init__(self, base: int, overlay: CompactStateMap, group: int | None = None) -> None:
        self.base = base
        self.overlay = overlay
        self.group = group

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, StoredState):
            return NotImplemented
        if self.group is not None and self.group == other.group:
            return True
        return self.base == other.base and self.overlay == other.overlay

    # Equal states may have handles with different bases, so no part of one tells more.
    def __hash__(self) -> int:
        return hash(StoredState)

    def with_entry(self, key: StateKey, event_id: str, /) -> StoredState:
        """The state with one entry set."""
        overlay = self.overlay.with_entry(key, event_id)
        return self if overlay is self.overlay else StoredState(self.base, overlay)

    def with_delta(self, delta: Delta, /) -> StoredState:
        """The state with several entries set or removed."""
        entries = {**delta.entries, **dict.fromkeys(delta.removed, REMOVED)}
        overlay = self.overlay.with_delta(Delta(entries))
        return self if overlay is self.overlay else StoredState(self.base, overlay)


class EventAt(NamedTuple):
    """The room at an event; see :class:`~synrepl.rooms.StateAt`."""

    state_after: StoredState | None
    partial: bool
    topological: int


def empty_overlay(slots: Slots) -> CompactStateMap:
    """No entries, over the slots that all overlays of a room share."""
    return CompactStateMap(None, slots)
