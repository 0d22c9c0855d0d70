"""Events that wait for missing prev events or auth events, in a table.

The bounds are those of a room in memory: the event that has waited longest is dropped first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable

#: Maximum number and size in bytes of a room's waiting events.
MAX_STORED_WAITING = 10_000
MAX_STORED_WAITING_BYTES = 64 << 20


class StoredWaiting(NamedTuple):
    """A row of ``_waiting_events``.

    :ivar waiting_no: ascending in the order in which they came
    :ivar missing: what it waited for when it came; some of it may be here by now
    """

    waiting_no: int
    event_id: str
    live: bool
    backfilled: bool
    missing: list[str]
    raw: bytes


WAITING_TABLE = RoomTable(
    "synrepl._waiting_events", "room_no, event_id, live, backfilled, missing, raw"
)

_COLUMNS = "w.waiting_no, w.event_id, w.live, w.backfilled, w.missing, w.raw"


def waiting_for(
    txn: Transaction, room_no: int, event_ids: Collection[str], limit: int
) -> list[StoredWaiting]:
    """Events that wait for some events, for those that do, and so on; oldest first.

    :param limit: maximum number
    """
    txn.execute(
        "WITH RECURSIVE after (event_id) AS (SELECT unnest(%s::text[]) UNION"
        " SELECT w.event_id FROM after JOIN synrepl._waiting_events w"
        "  ON w.room_no = %s AND w.missing @> ARRAY[after.event_id])"
        f" SELECT {_COLUMNS} FROM synrepl._waiting_events w JOIN after USING (event_id)"
        " WHERE w.room_no = %s ORDER BY w.waiting_no LIMIT %s",
        (list(event_ids), room_no, room_no, limit),
    )
    return [_waiting(row) for row in txn.fetchall()]


def waiting_events(txn: Transaction, room_no: int, limit: int) -> list[StoredWaiting]:
    """The waiting events of a room, oldest first."""
    txn.execute(
        f"SELECT {_COLUMNS} FROM synrepl._waiting_events w WHERE w.room_no = %s"
        " ORDER BY w.waiting_no LIMIT %s",
        (room_no, limit),
    )
    return [_waiting(row) for row in txn.fetchall()]


def waiting_ids(txn: Transaction, room_no: int, event_ids: Collection[str]) -> set[str]:
    """Those of some events that wait."""
    txn.execute(
        "SELECT event_id FROM synrepl._waiting_events"
        " WHERE room_no = %s AND event_id = ANY (%s::text[])",
        (room_no, list(event_ids)),
    )
    return {str(event_id) for (event_id,) in txn.fetchall()}


def missing_events(txn: Transaction, room_no: int) -> set[str]:
    """Events that others wait for, that do not wait themselves: to be requested from other servers."""
    txn.execute(
        "SELECT DISTINCT m.event_id FROM synrepl._waiting_events w"
        " CROSS JOIN LATERAL unnest(w.missing) AS m (event_id) WHERE w.room_no = %s"
        " AND NOT EXISTS (SELECT FROM synrepl._waiting_events o"
        "  WHERE o.room_no = w.room_no AND o.event_id = m.event_id)"
        " AND NOT EXISTS (SELECT FROM synrepl._room_events e"
        "  WHERE e.event_id = m.event_id AND e.stream_id IS NOT NULL)",
        (room_no,),
    )
    return {str(event_id) for (event_id,) in txn.fetchall()}


def forget_waiting(rows: PendingRows, room_no: int, event_ids: Collection[str]) -> None:
    """Remove waiting events."""
    if event_ids:
        rows.run(
            "DELETE FROM synrepl._waiting_events"
            " WHERE room_no = %s AND event_id = ANY (%s::text[])",
            (room_no, list(event_ids)),
        )


def drop_oldest_waiting(
    txn: Transaction,
    room_no: int,
    max_events: int = MAX_STORED_WAITING,
    max_bytes: int = MAX_STORED_WAITING_BYTES,
) -> int:
    """Drop the waiting events of a room that are beyond its bounds; returns the number that is left."""
    txn.execute(
        "DELETE FROM synrepl._waiting_events w USING (SELECT waiting_no,"
        "  count(*) OVER newest AS events, sum(octet_length(raw)) OVER newest AS bytes"
        "  FROM synrepl._waiting_events WHERE room_no = %s"
        "  WINDOW newest AS (ORDER BY waiting_no DESC)) s"
        " WHERE w.room_no = %s AND w.waiting_no = s.waiting_no AND (s.events > %s OR s.bytes > %s)",
        (room_no, room_no, max_events, max_bytes),
    )
    txn.execute("SELECT count(*) FROM synrepl._waiting_events WHERE room_no = %s", (room_no,))
    return int(txn.fetchone()[0])


def _waiting(row: Record) -> StoredWaiting:
    return StoredWaiting._make((*row[:5], bytes(row[5])))
