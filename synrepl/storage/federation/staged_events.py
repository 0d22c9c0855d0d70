"""Events that wait to be judged by the process that their room is assigned to.

They have passed checks 1 to 3. Where more wait than a room may have, further ones are not taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, array_text

#: Maximum number and size in bytes of a room's staged events.
MAX_STAGED = 10_000
MAX_STAGED_BYTES = 64 << 20


class StagedEvent(NamedTuple):
    """An event on its way to the process that judges it.

    :ivar origin: the server that sent it
    """

    room_no: int
    origin: str
    event_id: str
    raw: bytes


def stage_events(txn: Transaction, events: Sequence[StagedEvent]) -> set[str]:
    """Stage events; those that are staged already stay as they are.

    :returns: the IDs of events that were not taken, because too much is staged in their room
    """
    full = _full_rooms(txn, {each.room_no for each in events})
    taken = [each for each in events if each.room_no not in full]
    if taken:
        txn.insert_many(
            "INSERT INTO synrepl._staged_events (room_no, origin, event_id, raw) VALUES %s"
            " ON CONFLICT (room_no, event_id) DO NOTHING",
            taken,
        )
    return {each.event_id for each in events if each.room_no in full}


def _full_rooms(txn: Transaction, room_nos: Collection[int]) -> set[int]:
    txn.execute(
        "SELECT room_no FROM synrepl._staged_events WHERE room_no = ANY (%s::int[])"
        " GROUP BY room_no HAVING count(*) >= %s OR sum(octet_length(raw)) >= %s",
        (array_text(room_nos), MAX_STAGED, MAX_STAGED_BYTES),
    )
    return {int(room_no) for (room_no,) in txn.fetchall()}


def staged_page(txn: Transaction, room_no: int, limit: int) -> list[StagedEvent]:
    """The staged events of a room that have waited longest."""
    txn.execute(
        "SELECT room_no, origin, event_id, raw FROM synrepl._staged_events WHERE room_no = %s"
        " ORDER BY staged_no LIMIT %s",
        (room_no, limit),
    )
    return [StagedEvent._make((*row[:3], bytes(row[3]))) for row in txn.fetchall()]


def staged_ids(txn: Transaction, room_no: int, event_ids: Collection[str]) -> set[str]:
    """Those of some events that are staged."""
    txn.execute(
        "SELECT event_id FROM synrepl._staged_events"
        " WHERE room_no = %s AND event_id = ANY (%s::text[])",
        (room_no, array_text(event_ids)),
    )
    return {str(event_id) for (event_id,) in txn.fetchall()}


def rooms_with_staged_events(txn: Transaction) -> dict[str, int]:
    """The rooms with staged events: numbers by ID. The cost goes with the number of rooms."""
    txn.execute(
        "WITH RECURSIVE found (room_no) AS ("
        " SELECT min(room_no) FROM synrepl._staged_events"
        " UNION ALL SELECT (SELECT min(s.room_no) FROM synrepl._staged_events s"
        "  WHERE s.room_no > found.room_no) FROM found WHERE found.room_no IS NOT NULL)"
        " SELECT r.room_id, r.room_no FROM found JOIN synrepl._rooms r USING (room_no)"
    )
    return {str(room_id): int(room_no) for room_id, room_no in txn.fetchall()}


def unstage(rows: PendingRows, room_no: int, event_ids: Iterable[str]) -> None:
    """Delete staged events, with what else is written."""
    gone = list(event_ids)
    if gone:
        rows.run(
            "DELETE FROM synrepl._staged_events WHERE room_no = %s AND event_id = ANY (%s::text[])",
            (room_no, gone),
        )


def staged_count(txn: Transaction) -> tuple[int, float]:
    """The number of staged events, and for how many seconds the first of them has waited."""
    txn.execute(
        "SELECT count(*), coalesce(extract(epoch FROM now() - min(received_at)), 0)::float"
        " FROM synrepl._staged_events"
    )
    count, seconds = txn.fetchone()
    return int(count), float(seconds)
