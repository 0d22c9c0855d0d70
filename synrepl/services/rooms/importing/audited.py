"""The result of verifying a batch of events: what is imported, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.rooms import topological_sort
from synrepl.services.rooms.importing.findings import ImportCounts, ImportFinding, Quarantined
from synrepl.services.rooms.importing.sink import ImportedEvent
from synrepl.storage.foreign.rooms.events import BEFORE_ALL, RoomPosition

#: Less than every stream ordering.
_FIRST = BEFORE_ALL.stream


class AuditedBatch(NamedTuple):
    """The result of verifying some events.

    :ivar events: to be imported, causes first
    :ivar last: the position of the last event that was read; None if there was none
    """

    events: list[ImportedEvent]
    quarantined: list[Quarantined]
    findings: list[ImportFinding]
    counts: ImportCounts
    last: RoomPosition | None


def as_arrived(events: Sequence[ImportedEvent]) -> list[ImportedEvent]:
    """The events in the order in which they arrived at the source, but causes first.

    A store gives them stream orderings in this order. It cannot be the source's for all events: one that was
    an outlier at first keeps its stream ordering, and those that it follows have larger ones.
    """
    arrivals = [_arrival(each) for each in events]
    if arrivals == sorted(arrivals) and _are_causes_first(events):
        return list(events)
    by_id = {each.event.event_id: each for each in events}
    arrived = topological_sort(
        [each.event for each in events],
        tie_break=lambda event: _arrival(by_id[event.event_id]),
        dependencies=lambda event: (*event.prev_event_ids, *event.auth_event_ids),
    )
    return [by_id[each.event_id] for each in arrived.events + arrived.in_cycles]


def _are_causes_first(events: Sequence[ImportedEvent]) -> bool:
    """Whether no event follows or cites a later one."""
    later = {each.event.event_id for each in events}
    for each in events:
        event = each.event
        later.discard(event.event_id)
        if not later.isdisjoint(event.prev_event_ids) or not later.isdisjoint(event.auth_event_ids):
            return False
    return True


def _arrival(imported: ImportedEvent) -> tuple[int, int | str]:
    """Sorts outliers first, because the state before an event may consist of them."""
    stream = imported.position.stream
    return (stream, imported.event.event_id) if not imported.outlier else (_FIRST, stream)
