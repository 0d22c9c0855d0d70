"""The state of a room: for each type and key, one event."""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.rooms.event import Event

#: Type and state key.
StateKey = tuple[str, str]

#: Which event is the entry, by its ID.
StateMap = Mapping[StateKey, str]

#: The events themselves.
StateEvents = Mapping[StateKey, Event]
