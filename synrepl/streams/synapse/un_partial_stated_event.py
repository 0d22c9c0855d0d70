"""Events of rooms joined by a partial-state join whose full state has arrived."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.row import Row


class UnPartialStatedEventRow(Row, frozen=True):
    """An event has its full state now, which may have changed its rejection status."""

    event_id: str
    rejection_status_changed: bool


UN_PARTIAL_STATED_EVENT = Stream(
    "un_partial_stated_event",
    {UNTAGGED: UnPartialStatedEventRow},
    generations=Generation.since(Generation.CURRENT),
)
