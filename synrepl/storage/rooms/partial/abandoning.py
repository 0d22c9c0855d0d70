"""Partial rooms that no user of this server is in any more: nobody needs their full state.

Their events keep the states that are known of them, but nothing is built on these any more. A later join makes the room
partial again, and then these events are judged again, too.
"""

from __future__ import annotations

from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.partial.device_list_pokes import note_device_lists
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.numbers import lock_room
from synrepl.storage.rooms.tables.partial_rooms import (
    ResyncPhase,
    end_resync,
    partial_room,
    servers_at_join,
)
from synrepl.streams.row import Json
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.un_partial_stated_room import PARTIAL_ROOM_CACHES

_PARTIAL, _ABANDONED = int(EventFlags.PARTIAL), int(EventFlags.ABANDONED)

#: Rounds through the servers after which a room is left alone that, by what other servers did, this one is not in.
MAX_REFUSED = 3

_SERVER = "substr({0}, strpos({0}, ':') + 1) = %(server)s"

# Whether all users of a server have left a room. They must have done so themselves: that somebody else removed them is
# known by partial state only, and may be wrong, as long as other servers do not refuse to answer.
_IS_LEFT = f"""
    NOT EXISTS (SELECT FROM synrepl._memberships m WHERE m.room_no = p.room_no
        AND m.membership = 'join' AND {_SERVER.format("m.user_id")})
    AND (EXISTS (SELECT FROM synrepl._memberships m
             JOIN synrepl._room_events e USING (event_no)
             JOIN synrepl._room_events j ON j.event_id = p.join_event_id
            WHERE m.room_no = p.room_no AND m.user_id = j.sender AND e.sender = m.user_id)
         AND NOT EXISTS (SELECT FROM synrepl._memberships m
             JOIN synrepl._room_events e USING (event_no)
             JOIN synrepl._resync_events r USING (event_no)
            WHERE m.room_no = p.room_no AND m.membership IN ('leave', 'ban')
              AND {_SERVER.format("m.user_id")} AND NOT {_SERVER.format("e.sender")})
         OR EXISTS (SELECT FROM synrepl._resync_jobs b JOIN synrepl._resync_attempts a USING (room_no)
             WHERE b.room_no = p.room_no AND b.failures >= {MAX_REFUSED}
               AND a.code = 'refused-403'))"""


def rooms_without_users(txn: Transaction, server_name: str) -> list[tuple[int, str]]:
    """Numbers and IDs of partial rooms that all users of a server have left."""
    txn.execute(
        "SELECT p.room_no, r.room_id FROM synrepl._partial_rooms p JOIN synrepl._rooms r USING (room_no)"
        f" WHERE r.epoch = p.epoch AND {_IS_LEFT} ORDER BY 1",
        {"server": server_name},
    )
    return [(int(room_no), str(room_id)) for room_no, room_id in txn.fetchall()]


def abandon_room(txn: Transaction, outbox: Outbox, room_no: int, server_name: str) -> bool:
    """Let a room be partial no more, although its full state is not known, if all users have left it.

    :returns: whether it was done
    """
    room = lock_room(txn, room_no)
    txn.execute(
        f"SELECT {_IS_LEFT} FROM synrepl._partial_rooms p"
        " WHERE p.room_no = %(room)s AND p.epoch = %(epoch)s",
        {"server": server_name, "room": room_no, "epoch": room.epoch},
    )
    found = txn.fetchone_or_none()
    if found is None or not found[0] or partial_room(txn, room_no) is None:
        return False
    told = servers_at_join(txn, room_no)
    note_device_lists(txn, room_no, told, server_name, has_left=True)
    txn.execute(
        f"UPDATE synrepl._room_events e SET flags = e.flags & ~{_PARTIAL} | {_ABANDONED}"
        " FROM synrepl._partial_events p WHERE p.room_no = %s AND e.event_no = p.event_no",
        (room_no,),
    )
    txn.execute(
        "UPDATE synrepl._resync_events SET full_before = NULL, full_after = NULL, full_flags = NULL,"
        " full_audience = NULL, full_refusal = NULL WHERE room_no = %s",
        (room_no,),
    )
    txn.execute("UPDATE synrepl._room_heads SET partial = 0 WHERE room_no = %s", (room_no,))
    remove_partial_rows(txn, room_no)
    end_resync(txn, room_no, ResyncPhase.ABANDONED)
    txn.execute(
        "UPDATE synrepl._rooms SET revision = revision + 1, reworked = reworked + 1 WHERE room_no = %s"
        " RETURNING (extract(epoch FROM now()) * 1000)::bigint",
        (room_no,),
    )
    (now_ms,) = txn.fetchone()
    key: list[Json] = [room.room_id]
    outbox.append(CACHES, [CachesRow(name, key, int(now_ms)) for name in PARTIAL_ROOM_CACHES])
    return True


def remove_partial_rows(txn: Transaction, room_no: int) -> None:
    """Remove what makes a room partial, but not the outcomes."""
    for table in (
        "_partial_events",
        "_partial_rooms",
        "_listed_events",
        "_fetched_events",
    ):
        txn.execute(f"DELETE FROM synrepl.{table} WHERE room_no = %s", (room_no,))
