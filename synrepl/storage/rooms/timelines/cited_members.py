"""Memberships of users that a partial state lacks: those that their events cite."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.room_entries import MEMBER


def cited_members(txn: Transaction, event_nos: Collection[int]) -> dict[tuple[int, str], int]:
    """The numbers of the membership events that the first of some events of each sender cites, by room and sender."""
    if not event_nos:
        return {}
    txn.execute(
        "SELECT DISTINCT ON (e.room_no, e.sender) e.room_no, e.sender, m.event_no"
        " FROM unnest(%s::bigint[]) AS w (event_no) JOIN synrepl._room_events e USING (event_no)"
        " CROSS JOIN LATERAL unnest(e.auth_nos) AS a (event_no)"
        " JOIN synrepl._room_events m ON m.event_no = a.event_no"
        " JOIN synrepl._room_keys k ON k.room_no = m.room_no AND k.slot = m.slot"
        f" WHERE k.type = '{MEMBER}' AND k.state_key = e.sender"
        " ORDER BY e.room_no, e.sender, e.stream_id, m.event_no",
        (array_text(event_nos),),
    )
    return {(int(row[0]), str(row[1])): int(row[2]) for row in txn.fetchall()}
