"""What came of asking servers about partial rooms."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text


class ServerAttempt(NamedTuple):
    """The last outcome of asking a server about a room.

    :ivar code: ``ok``, or a short name of what went wrong
    :ivar attempts: how often it was the same
    :ivar seconds_ago: how long ago it was asked
    """

    destination: str
    code: str
    reason: str
    attempts: int
    seconds_ago: float


def attempts_of_rooms(
    txn: Transaction, room_ids: Collection[str], limit: int
) -> dict[str, list[ServerAttempt]]:
    """By room, the last outcomes of asking its servers, first those of servers that could not help.

    :param limit: servers of each room
    """
    txn.execute(
        "SELECT r.room_id, a.destination, a.code, a.reason, a.attempts,"
        " extract(epoch FROM now() - a.attempted_at)::float"
        " FROM synrepl._rooms r CROSS JOIN LATERAL (SELECT * FROM synrepl._resync_attempts a"
        "  WHERE a.room_no = r.room_no ORDER BY a.code = 'ok', a.attempted_at DESC, a.destination"
        "  LIMIT %s) a WHERE r.room_id = ANY (%s::text[])"
        " ORDER BY a.code = 'ok', a.attempted_at DESC, a.destination",
        (limit, array_text(list(room_ids))),
    )
    found: dict[str, list[ServerAttempt]] = {}
    for room_id, *attempt in txn.fetchall():
        found.setdefault(room_id, []).append(ServerAttempt._make(attempt))
    return found


def attempts(txn: Transaction, room_no: int, limit: int = 1_000) -> list[ServerAttempt]:
    """The last outcomes of asking the servers of a room, the newest first."""
    txn.execute(
        "SELECT destination, code, reason, attempts, extract(epoch FROM now() - attempted_at)::float"
        " FROM synrepl._resync_attempts WHERE room_no = %s ORDER BY attempted_at DESC LIMIT %s",
        (room_no, limit),
    )
    return [ServerAttempt._make(row) for row in txn.fetchall()]
