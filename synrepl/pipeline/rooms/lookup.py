"""What a task looks up of a room besides the rows that it is given: single events, places and state groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from synrepl.rooms import Keys, StateKey


class FoundEvent(NamedTuple):
    """An event that others depend on.

    :ivar raw: its JSON as stored
    :ivar rejected: the server's verdict
    """

    event_id: str
    raw: bytes
    rejected: bool


class FoundPlace(NamedTuple):
    """An event that has a state.

    :ivar group: the state group after it
    """

    event_id: str
    topological: int
    group: int


class FoundGroup(NamedTuple):
    """A state group as stored.

    :ivar room_id: the room that it is of, by its own row
    :ivar prev: the group that it is a delta to; None if it is stored in full
    :ivar entries: event IDs of the stored entries; None where one is removed
    """

    room_id: str
    prev: int | None
    entries: Mapping[StateKey, str | None]


class RoomLookup(Protocol):
    """Looks up what is missing, in sets. What is not there is missing from the answer."""

    def events(self, room_id: str, event_ids: Collection[str]) -> list[FoundEvent]:
        """Events of a room."""

    def places(self, room_id: str, event_ids: Collection[str]) -> list[FoundPlace]:
        """Events of a room that have a state."""

    def chains(
        self, room_id: str, groups: Collection[int], known: Collection[int]
    ) -> dict[int, FoundGroup]:
        """Groups, and those that they are deltas to, down to groups that are known."""

    def known_missing(self, room_id: str, event_ids: Collection[str]) -> set[str]:
        """Those of the events that the database knows to be missing."""

    def keys(self, servers: Collection[str]) -> Keys:
        """The keys of servers, as far as the database has them."""


class LookupSource(Protocol):
    """Opens a lookup in a task. It is pickled."""

    def open(self) -> RoomLookup:
        """The lookup of this process."""
