"""The history of memberships, as far as membership events do not tell it; see the migration."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable, array_text
from synrepl.storage.rooms.visibility.audience import MEMBERSHIPS, NEVER_BITS
from synrepl.storage.rooms.visibility.audience_sql import membership_set

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


#: The text of the membership that an event ``e`` sets.
MEMBERSHIP_TEXT = f"('{{{','.join(MEMBERSHIPS)}}}'::text[])[{membership_set('e.audience')} + 1]"


def newest_membership_sql(key: str, user: str, is_covered: Callable[[str], str]) -> str:
    """The newest membership of a user in a room, as ``membership``, ``stream_id`` and ``event_no``; no row if none is known.

    :param key: what has the ``room_no`` and the ``slot`` of the user's membership
    :param user: the user's ID, as an expression
    :param is_covered: whether a stream ID counts, from an expression to another
    """
    return (
        f"(SELECT {MEMBERSHIP_TEXT} AS membership, e.stream_id, e.event_no, 1 AS rank"
        "  FROM synrepl._room_events e"
        f"  WHERE e.room_no = {key}.room_no AND e.slot = {key}.slot AND e.stream_id > 0"
        f"   AND e.audience & {NEVER_BITS} = 0 AND {is_covered('e.stream_id')}"
        "  ORDER BY e.stream_id DESC LIMIT 1)"
        " UNION ALL"
        " (SELECT h.membership, h.stream_id, NULL, 0 FROM synrepl._membership_history h"
        f"  WHERE h.room_no = {key}.room_no AND h.user_id = {user} AND {is_covered('h.stream_id')}"
        "  ORDER BY h.stream_id DESC LIMIT 1)"
        " ORDER BY stream_id DESC, rank LIMIT 1"
    )
