"""Events of rooms joined by a partial-state join whose full state has arrived."""

from __future__ import annotations

from synrepl.streams.definition import UNTAGGED, Generation, Stream
from synrepl.streams.effects import Effects, Invalidates, columns_key
from synrepl.streams.row import Row

#: The cache of whether an event has partial state, by event.
IS_PARTIAL_EVENT_CACHE = "is_partial_state_event"

#: Caches by event in which something of a partial event may be, which its full state makes stale.
PARTIAL_EVENT_CACHES = (IS_PARTIAL_EVENT_CACHE, "_get_state_group_for_event")

#: Those that are stale only if the event was rejected and is accepted now, or the other way round.
VERDICT_CACHES = ("_get_event_cache", "get_event")


class UnPartialStatedEventRow(Row, frozen=True):
    """An event has its full state now, which may have changed its rejection status."""

    event_id: str
    rejection_status_changed: bool


def _if_changed(row: UnPartialStatedEventRow) -> tuple[tuple[str], ...]:
    return ((row.event_id,),) if row.rejection_status_changed else ()


_EFFECTS: Effects = (
    *(Invalidates(name, columns_key("event_id")) for name in PARTIAL_EVENT_CACHES),
    *(Invalidates(name, _if_changed) for name in VERDICT_CACHES),
)

UN_PARTIAL_STATED_EVENT = Stream(
    "un_partial_stated_event",
    {UNTAGGED: UnPartialStatedEventRow},
    generations=Generation.since(Generation.CURRENT),
    effects={UnPartialStatedEventRow: _EFFECTS},
)
