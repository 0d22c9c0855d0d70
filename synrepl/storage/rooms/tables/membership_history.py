"""The history of memberships, as far as membership events do not tell it; see the migration."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable, array_text

_HISTORY_TABLE = RoomTable(
    "synrepl._membership_history", "room_no, user_id, stream_id, membership, is_purged"
)


class PastMembership(NamedTuple):
    """A membership that counts from a fact on.

    :ivar membership: None: the user has none
    :ivar is_purged: whether its event was purged
    """

    user_id: str
    stream_id: int
    membership: str | None
    is_purged: bool = False


def write_past_memberships(
    rows: PendingRows, room_no: int, changes: Collection[PastMembership]
) -> None:
    """Record memberships that no event tells."""
    rows.extend(_HISTORY_TABLE, [(room_no, *each) for each in changes])


def purged_memberships(
    txn: Transaction, room_no: int, users: Collection[str]
) -> list[PastMembership]:
    """The current memberships of users whose events were purged, unless they are recorded."""
    txn.execute(
        "SELECT m.user_id, m.stream_id, m.membership, true FROM synrepl._memberships m"
        " JOIN synrepl._room_events e USING (event_no)"
        " WHERE m.room_no = %s AND m.user_id = ANY (%s::text[]) AND e.stream_id IS NULL"
        "  AND NOT EXISTS (SELECT FROM synrepl._membership_history h WHERE h.room_no = m.room_no"
        "   AND h.user_id = m.user_id AND h.stream_id = m.stream_id)",
        (room_no, array_text(users)),
    )
    return [PastMembership._make(row) for row in txn.fetchall()]
