"""Redactions among the events of a room that were judged again: they apply by the full states before them."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.rooms import effect_of_redaction
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.rejudging import RejudgeBatch
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.pending_rows import array_text

#: The entries of a state that decide whether a redaction applies.
_NEEDED = (("m.room.create", ""), ("m.room.power_levels", ""))


def correct_redactions(txn: Transaction, batch: RejudgeBatch) -> int:
    """Apply redactions of a room that were judged again, or take them back; the outcomes are not in effect yet.

    :returns: the change of the number of redactions that apply to no event that is here
    """
    room_no, view = batch.room.room_no, batch.view
    txn.execute(
        "SELECT e.event_id, d.redaction_no IS NOT NULL, coalesce(d.applied, false)"
        " FROM synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)"
        " JOIN synrepl._event_types t USING (type_no)"
        " LEFT JOIN synrepl._redactions d ON d.redaction_no = e.event_no"
        " WHERE r.room_no = %s AND e.stream_id IS NOT NULL AND t.type = 'm.room.redaction'",
        (room_no,),
    )
    stored = {event_id: (is_there, applied) for event_id, is_there, applied in txn.fetchall()}
    if not stored:
        return 0
    events = view.known_events(stored).events
    targets = {each: events[each].redacts for each in stored}
    rows = view.rows([*stored, *[t for t in targets.values() if t is not None and "\0" not in t]])
    unapplied = 0
    touched: set[str] = set()
    for event_id, (is_there, was_applied) in stored.items():
        target_id, row = targets[event_id], rows[event_id]
        if target_id is None or "\0" in target_id:
            continue
        may = row.passed_all_checks
        target = rows.get(target_id)
        applies = may and target is not None and _applies(batch, row, target)
        if may == is_there and applies == was_applied:
            continue
        touched.add(target_id)
        unapplied += (may and not applies) - (is_there and not was_applied)
        txn.execute("DELETE FROM synrepl._redactions WHERE redaction_no = %s", (row.event_no,))
        if may:
            txn.execute(
                "INSERT INTO synrepl._redactions (redaction_no, room_no, applied, redacts)"
                " VALUES (%s, %s, %s, %s)",
                (row.event_no, room_no, applies, target_id),
            )
    _flag(txn, room_no, touched)
    return unapplied


def _applies(batch: RejudgeBatch, redaction: StoredEvent, target: StoredEvent) -> bool:
    if redaction.group_before is None:
        return False
    view = batch.view
    events = view.known_events([redaction.event_id, target.event_id]).events
    state = view.state_events(batch.memory.handle(redaction.group_before), _NEEDED)
    effect = effect_of_redaction(events[redaction.event_id], events[target.event_id], state)
    return effect.why.applies


def _flag(txn: Transaction, room_no: int, targets: Collection[str]) -> None:
    """Flag targets with a redaction that applies; the one that they have stays if it still does."""
    if not targets:
        return
    txn.execute(
        "UPDATE synrepl._room_events e SET redacted_by = n.redaction_no"
        " FROM (SELECT w.event_id, (SELECT d.redaction_no FROM synrepl._redactions d"
        "   JOIN synrepl._room_events o ON o.event_id = w.event_id"
        "   WHERE d.redacts = w.event_id AND d.room_no = %s AND d.applied"
        "   ORDER BY d.redaction_no = o.redacted_by DESC NULLS LAST, d.redaction_no LIMIT 1) AS redaction_no"
        "  FROM unnest(%s::text[]) AS w (event_id)) AS n"
        " WHERE e.event_id = n.event_id AND e.room_no = %s"
        " AND e.redacted_by IS DISTINCT FROM n.redaction_no",
        (room_no, array_text(sorted(targets)), room_no),
    )
