"""An event that was judged, before it has its stream ordering."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.rooms import Event, Refusal
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.incoming import EventOutcome, PersistedEvent


class PendingEvent(NamedTuple):
    """An event that was judged.

    :ivar was_outlier: whether its row is in the table
    """

    row: StoredEvent
    event: Event
    backfilled: bool
    was_outlier: bool
    refusal: Refusal | None

    def outcome(self) -> PersistedEvent:
        """The outcome of the event."""
        row = self.row
        outcome = EventOutcome.ACCEPTED
        if row.is_rejected:
            outcome = EventOutcome.REJECTED
        elif not row.passed_all_checks:
            outcome = EventOutcome.SOFT_FAILED
        return PersistedEvent(
            row.event_id, outcome, row.event_no, row.stream_id, row.topological, self.refusal
        )
