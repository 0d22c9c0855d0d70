"""New events in rooms, and changes to rooms' current state.

Source of the columns: recordings of 1.0, 1.11, 1.20, 1.43 and 1.163.
"""

from __future__ import annotations

from synrepl.streams.definition import Generation, Stream
from synrepl.streams.effects import Invalidates, Marks, columns_key, entity
from synrepl.streams.row import Row
from synrepl.streams.synapse.current_state import ALL_STATE, STATE_ENTRY


class EventRow(Row, frozen=True):
    """There is a new event.

    :ivar redacts: the event it redacts
    :ivar relates_to: the event it relates to
    :ivar membership: of a membership event; not known before 1.22, then None
    :ivar rejected: it failed authorisation; not known before 1.22, then False
    :ivar outlier: it is outside the room's graph; not known before 1.5x, then False
    """

    event_id: str
    room_id: str
    type: str
    state_key: str | None
    redacts: str | None
    relates_to: str | None
    membership: str | None = None
    rejected: bool = False
    outlier: bool = False


class StateRow(Row, frozen=True):
    """One entry of a room's current state has changed.

    :ivar event_id: the event that is the entry now; None when there is none any more
    """

    room_id: str
    type: str
    state_key: str
    event_id: str | None


class AllStateRow(Row, frozen=True):
    """So much of a room's current state has changed that all of it must be read again."""

    room_id: str


_LEGACY_EVENT = EventRow.__struct_fields__[:6]
_MODERN_EVENT = EventRow.__struct_fields__[:8]

EVENTS = Stream(
    "events",
    {"ev": EventRow, "state": StateRow, "state-all": AllStateRow},
    shapes={
        **{each: {"ev": _LEGACY_EVENT} for each in Generation.until(Generation.TRANSITIONAL)},
        Generation.MODERN: {"ev": _MODERN_EVENT},
    },
    effects={
        EventRow: (
            Invalidates("get_latest_event_ids_in_room", columns_key("room_id")),
            Marks("room_events", entity("room_id")),
        ),
        StateRow: STATE_ENTRY,
        AllStateRow: ALL_STATE,
    },
)
