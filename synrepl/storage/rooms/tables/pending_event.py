"""An event that was judged, before it has its stream ordering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.rooms import Event, Refusal
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.incoming import EventOutcome, PersistedEvent


class PendingEvent(NamedTuple):
    """An event that was judged.

    :ivar was_outlier: whether its row is in the table
    :ivar left_out: rejected events that are no part of the full state before it which another server reported, but may
        be accepted when they are judged again; None if no server reported one
    """

    row: StoredEvent
    event: Event
    backfilled: bool
    was_outlier: bool
    refusal: Refusal | None
    left_out: Sequence[int] | None = None

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
