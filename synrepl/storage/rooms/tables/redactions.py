"""Redactions by target. A redaction may come before its target; the flag is on the target's row."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable

REDACTIONS_TABLE = RoomTable("synrepl._redactions", "redaction_no, room_no, applied, redacts")


class StoredRedaction(NamedTuple):
    """A row of ``_redactions``."""

    redaction_no: int
    applied: bool
    redacts: str


def redactions_of(
    txn: Transaction, room_no: int, targets: Collection[str]
) -> list[StoredRedaction]:
    """The redactions of some events that passed all checks, oldest first."""
    txn.execute(
        "SELECT redaction_no, applied, redacts FROM synrepl._redactions"
        " WHERE room_no = %s AND redacts = ANY (%s::text[]) ORDER BY redaction_no",
        (room_no, list(targets)),
    )
    return [StoredRedaction._make(row) for row in txn.fetchall()]


def mark_redacted(rows: PendingRows, target: int, redaction: int) -> None:
    """Flag an event that is in the table; the first redaction that applies stays."""
    rows.run(
        "UPDATE synrepl._room_events SET redacted_by = %s"
        " WHERE event_no = %s AND redacted_by IS NULL",
        (redaction, target),
    )


def mark_applied(rows: PendingRows, redaction: int) -> None:
    """Record that a redaction applies to its target."""
    rows.run("UPDATE synrepl._redactions SET applied = true WHERE redaction_no = %s", (redaction,))
