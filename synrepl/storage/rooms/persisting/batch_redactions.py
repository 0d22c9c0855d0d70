"""Redactions and their targets in a batch, whichever comes first."""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.rooms import effect_of_redaction
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.tables.events import StoredEvent, events_by_number
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.storage.rooms.tables.redactions import (
    REDACTIONS_TABLE,
    StoredRedaction,
    mark_applied,
    mark_redacted,
    redactions_of,
)

#: The entries of a state that decide whether a redaction applies.
_NEEDED = (("m.room.create", ""), ("m.room.power_levels", ""))


def apply_redactions(batch: RoomBatch) -> int:
    """Flag targets of new redactions, and new targets of stored redactions.

    :returns: the change of the number of redactions that apply to no event that is here
    """
    unapplied = 0
    if batch.heads.unapplied:
        unapplied -= _apply_stored(batch, [each.row.event_id for each in batch.pending()])
    for pending in list(batch.pending()):
        target_id = pending.event.redacts
        if target_id is None or "\0" in target_id or not _may_redact(pending.row):
            continue
        row = pending.row
        applied = False
        target = batch.view.rows([target_id]).get(target_id)
        if target is not None and _applies(batch, row, target):
            _flag(batch, target, row.event_no)
            applied = True
        before = _stored_before(batch, pending, target_id)
        if before is None:
            batch.rows.add(REDACTIONS_TABLE, (row.event_no, row.room_no, applied, target_id))
            unapplied += not applied
        elif applied and not before.applied:
            mark_applied(batch.rows, row.event_no)
            unapplied -= 1
    return unapplied


def _stored_before(
    batch: RoomBatch, pending: PendingEvent, target_id: str
) -> StoredRedaction | None:
    """The row of a redaction that comes back: a purge keeps it as an outlier while its target stays."""
    if not pending.was_outlier:
        return None
    stored = redactions_of(batch.txn, batch.room.room_no, [target_id])
    return next((each for each in stored if each.redaction_no == pending.row.event_no), None)


def _apply_stored(batch: RoomBatch, arrived: Iterable[str]) -> int:
    """Flag events that came after their redactions; returns the number of those redactions."""
    waiting = [
        each
        for each in redactions_of(batch.txn, batch.room.room_no, list(arrived))
        if not each.applied
    ]
    redactions = events_by_number(batch.txn, [each.redaction_no for each in waiting])
    count = 0
    for each in waiting:
        row = redactions.get(each.redaction_no)
        target = batch.view.rows([each.redacts])[each.redacts]
        if row is not None and _applies(batch, row, target):
            _flag(batch, target, row.event_no)
            mark_applied(batch.rows, row.event_no)
            count += 1
    return count


def _may_redact(row: StoredEvent) -> bool:
    """Rejected events redact nothing; soft-failed ones are not shown, so their effect is not, either."""
    return row.passed_all_checks and not row.is_outlier


def _applies(batch: RoomBatch, redaction: StoredEvent, target: StoredEvent) -> bool:
    if redaction.group_before is None:
        return False
    events = batch.view.known_events([redaction.event_id, target.event_id]).events
    before = batch.memory.handle(redaction.group_before)
    state = batch.view.state_events(before, _NEEDED)
    effect = effect_of_redaction(events[redaction.event_id], events[target.event_id], state)
    return effect.why.applies


def _flag(batch: RoomBatch, target: StoredEvent, redaction_no: int) -> None:
    """Flag a target; the first redaction that applies stays."""
    current = batch.memory.rows[target.event_id]
    if current.redacted_by is not None:
        return
    flagged = current._replace(redacted_by=redaction_no)
    batch.memory.rows[target.event_id] = flagged
    pending = batch.judged.get(target.event_id)
    if pending is None:
        mark_redacted(batch.rows, target.event_no, redaction_no)
    else:
        batch.judged[target.event_id] = PendingEvent(flagged, *pending[1:])
