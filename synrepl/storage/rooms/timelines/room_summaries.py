"""What a client shows of rooms without loading their members.

Source: https://spec.matrix.org/v1.16/client-server-api/#get_matrixclientv3sync, "RoomSummary".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction, planned
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Other members that stand for a room without a name.
MAX_HEROES = 5


class StoredSummary(NamedTuple):
    """The members of a room in short.

    :ivar first: the first members, one more than a room has heroes; None where the room has a name
    """

    first: Sequence[str] | None
    joined: int
    invited: int

    def heroes(self, user: str) -> Sequence[str] | None:
        """The members other than a user that stand for the room; None where it has a name."""
        if self.first is None:
            return None
        return [each for each in self.first if each != user][:MAX_HEROES]


def room_summaries(txn: Transaction, room_nos: Collection[int]) -> dict[int, StoredSummary]:
    """The summaries of rooms, by number."""
    if not room_nos:
        return {}
    txn.execute(_SUMMARIES, (array_text(room_nos),))
    return {
        row[0]: StoredSummary(None if row[3] else list(row[4] or ()), int(row[1]), int(row[2]))
        for row in txn.fetchall()
    }


_SUMMARIES = planned(
    f"""
        SELECT w.room_no, counts.joined, counts.invited, named.is_named,
               CASE WHEN NOT named.is_named THEN ARRAY(
                   SELECT h.user_id FROM synrepl._memberships h
                    WHERE h.room_no = w.room_no
                      AND (h.membership IN ('join', 'invite') OR counts.joined + counts.invited <= 1)
                    ORDER BY h.stream_id, h.user_id LIMIT {MAX_HEROES + 1}) END
          FROM unnest(%s::int[]) AS w (room_no)
         CROSS JOIN LATERAL (
               SELECT count(*) FILTER (WHERE m.membership = 'join') AS joined,
                      count(*) FILTER (WHERE m.membership = 'invite') AS invited
                 FROM synrepl._memberships m WHERE m.room_no = w.room_no) AS counts
         CROSS JOIN LATERAL (
               SELECT EXISTS (
                   SELECT FROM synrepl._room_keys k JOIN synrepl._current_state c USING (room_no, slot)
                    WHERE k.room_no = w.room_no AND k.state_key = ''
                      AND k.type IN ('m.room.name', 'm.room.canonical_alias')) AS is_named) AS named"""
)
