"""Types for the state of a room: one event per type and state key."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.rooms.event import Event

#: Type and state key.
StateKey = tuple[str, str]

#: Event IDs by state key.
StateMap = Mapping[StateKey, str]

#: Events by state key.
StateEvents = Mapping[StateKey, Event]
