"""Missing events that no server gave: they are asked for again after ever longer times."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Seconds until the second attempt, and the longest time between two attempts. Each one doubles it.
FIRST_DELAY_S = 60
LONGEST_DELAY_S = 24 * 3600

#: Failures of one room that are remembered; those that are due longest are forgotten first.
MAX_REMEMBERED = 10_000


def not_due(txn: Transaction, room_no: int, event_ids: Collection[str]) -> set[str]:
    """Those of some missing events that are not to be asked for yet."""
    if not event_ids:
        return set()
    txn.execute(
        "SELECT event_id FROM synrepl._failed_fetches"
        " WHERE room_no = %s AND event_id = ANY (%s::text[]) AND next_try > now()",
        (room_no, array_text(event_ids)),
    )
    return {str(event_id) for (event_id,) in txn.fetchall()}


def note_failures(txn: Transaction, room_no: int, event_ids: Collection[str], reason: str) -> None:
    """Remember that no server gave some events.

    :param reason: of the last server
    """
    txn.execute(
        "INSERT INTO synrepl._failed_fetches AS f (room_no, event_id, failures, next_try, reason)"
        " SELECT %s, unnest(%s::text[]), 1, now() + make_interval(secs => %s), %s"
        " ON CONFLICT (room_no, event_id) DO UPDATE SET failures = f.failures + 1,"
        "  reason = excluded.reason, next_try = now() + make_interval(secs =>"
        "   least(%s * 2.0 ^ least(f.failures, 30), %s) * (1 - 0.25 * random()))",
        (
            room_no,
            array_text(sorted(event_ids)),
            FIRST_DELAY_S,
            reason[:500].replace("\0", "\ufffd"),
            FIRST_DELAY_S,
            LONGEST_DELAY_S,
        ),
    )
    txn.execute(
        "DELETE FROM synrepl._failed_fetches WHERE room_no = %s AND event_id IN ("
        " SELECT event_id FROM synrepl._failed_fetches WHERE room_no = %s"
        " ORDER BY next_try DESC OFFSET %s)",
        (room_no, room_no, MAX_REMEMBERED),
    )


def forget_failures(txn: Transaction, at_most: int) -> int:
    """Delete some failures of events that have come after all; returns their number."""
    txn.execute(
        "DELETE FROM synrepl._failed_fetches WHERE ctid = ANY (ARRAY("
        "SELECT f.ctid FROM synrepl._failed_fetches f"
        " JOIN synrepl._room_events e USING (event_id) LIMIT %s))",
        (at_most,),
    )
    return txn.rowcount


def failures_count(txn: Transaction) -> int:
    """The number of events that no server gave."""
    return int(txn.execute("SELECT count(*) FROM synrepl._failed_fetches").fetchone()[0])
