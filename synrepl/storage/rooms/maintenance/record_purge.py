"""Records what a purge removes from the stream of a room, for clients that sync from before it."""

from __future__ import annotations

from collections.abc import Collection

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.visibility.audience import NEVER_BITS
from synrepl.storage.rooms.visibility.newest_membership import MEMBERSHIP_TEXT

_RECORD = f"""
    WITH purged AS (
        SELECT e.slot, e.stream_id, e.audience, {MEMBERSHIP_TEXT} AS membership FROM synrepl._room_events e
         WHERE e.event_no = ANY (%(events)s::bigint[]) AND e.stream_id > 0
    ), last AS (
        SELECT DISTINCT ON (k.state_key) k.state_key AS user_id, p.stream_id,
               p.membership
          FROM purged p JOIN synrepl._room_keys k ON k.room_no = %(room)s AND k.slot = p.slot
         WHERE k.type = 'm.room.member' AND p.audience & {NEVER_BITS} = 0
         ORDER BY k.state_key, p.stream_id DESC
    ), older AS (
        DELETE FROM synrepl._membership_history h USING last
         WHERE h.room_no = %(room)s AND h.user_id = last.user_id AND h.stream_id < last.stream_id
    ), recorded AS (
    INSERT INTO synrepl._membership_history (room_no, user_id, stream_id, membership, is_purged)
    SELECT %(room)s, last.user_id, last.stream_id, last.membership, true FROM last
     WHERE NOT EXISTS (SELECT FROM synrepl._memberships m WHERE m.room_no = %(room)s
                        AND m.user_id = last.user_id AND m.stream_id <= last.stream_id)
       AND NOT EXISTS (SELECT FROM synrepl._membership_history h WHERE h.room_no = %(room)s
                        AND h.user_id = last.user_id AND h.is_purged AND h.stream_id > last.stream_id)
    ON CONFLICT (room_no, user_id, stream_id) DO UPDATE SET is_purged = true
    )
    SELECT coalesce(max(p.stream_id), 0) FROM purged p"""


def record_purge(txn: Transaction, room_no: int, event_nos: Collection[int]) -> int:
    """Record the last memberships that events set which are purged, of users who have had another one since.

    The events are still there, and the room is locked.

    :returns: the highest of their stream orderings; 0 if none came live
    """
    txn.execute(_RECORD, {"room": room_no, "events": array_text(event_nos)})
    return int(txn.fetchone()[0])
