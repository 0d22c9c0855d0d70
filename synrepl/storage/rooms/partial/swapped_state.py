"""The current state of a room that becomes complete: many new memberships at once, without names in Python's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import RoomTable, array_text, copy_rows
from synrepl.storage.rooms.visibility.audience import MEMBERSHIPS, NEVER_BITS
from synrepl.storage.rooms.visibility.audience_sql import membership_set

_CURRENT_TABLE = RoomTable("synrepl._current_state", "room_no, slot, event_no")

_MEMBERSHIP = f"(ARRAY{list(MEMBERSHIPS)!r}::text[])[{membership_set('e.audience')} + 1]"

# A fact of the room that others know already stands for the stream ID of the fact that is about to be written: there
# may be very many rows, and while they are written, positions must not wait. Those of local users get the right one.
#
# In both statements entries are looked up one by one (OFFSET 0): the tables have just grown, and a plan by what
# PostgreSQL knows of them could read all keys of a room for each member.
_WRITE_MEMBERS = f"""
    INSERT INTO synrepl._memberships (room_no, user_id, event_no, membership, stream_id)
    SELECT c.room_no, k.state_key, c.event_no, coalesce({_MEMBERSHIP}, 'leave'), h.stream_id
      FROM synrepl._room_heads h JOIN synrepl._current_state c USING (room_no)
     CROSS JOIN LATERAL (SELECT type, state_key FROM synrepl._room_keys
                          WHERE room_no = c.room_no AND slot = c.slot OFFSET 0) AS k
     CROSS JOIN LATERAL (SELECT audience FROM synrepl._room_events
                          WHERE event_no = c.event_no OFFSET 0) AS e
     WHERE h.room_no = %(room)s AND k.type = 'm.room.member'
       AND NOT EXISTS (SELECT FROM synrepl._memberships m
                        WHERE m.room_no = c.room_no AND m.user_id = k.state_key
                          AND m.event_no = c.event_no OFFSET 0)
    ON CONFLICT (room_no, user_id) DO UPDATE SET event_no = excluded.event_no,
        membership = excluded.membership, stream_id = excluded.stream_id"""

_REMOVE_MEMBERS = """
    WITH gone AS (
        DELETE FROM synrepl._memberships m
         WHERE m.room_no = %(room)s AND NOT EXISTS (
               SELECT FROM (SELECT slot FROM synrepl._room_keys
                             WHERE room_no = m.room_no AND type = 'm.room.member'
                               AND state_key = m.user_id OFFSET 0) AS k
                      JOIN synrepl._current_state c ON c.room_no = m.room_no AND c.slot = k.slot
               OFFSET 0)
        RETURNING m.user_id)
    SELECT user_id FROM gone"""

# Users whose history has to tell the membership (:mod:`~synrepl.storage.rooms.tables.membership_history`). It is another
# one now, and the user is of this server, or has such a history. Or the newest event in the stream is not what counts:
# events may be judged otherwise than before also where the current state stays as it was.
_CHANGED_MEMBERS = f"""
    SELECT k.state_key FROM synrepl._room_keys k
     WHERE k.room_no = %(room)s AND k.type = 'm.room.member' AND k.slot = ANY (%(slots)s::int[])
       AND (substr(k.state_key, strpos(k.state_key, ':') + 1) = %(server)s
            OR EXISTS (SELECT FROM synrepl._membership_history h
                        WHERE h.room_no = k.room_no AND h.user_id = k.state_key))
    UNION
    SELECT k.state_key FROM synrepl._room_keys k
     CROSS JOIN LATERAL (
           SELECT e.event_no FROM synrepl._room_events e
            WHERE e.room_no = k.room_no AND e.slot = k.slot AND e.stream_id > 0
              AND e.audience & {NEVER_BITS} = 0
            ORDER BY e.stream_id DESC LIMIT 1) AS e
      LEFT JOIN synrepl._current_state c ON c.room_no = k.room_no AND c.slot = k.slot
     WHERE k.room_no = %(room)s AND k.type = 'm.room.member'
       AND c.event_no IS DISTINCT FROM e.event_no"""


class StateSwap(NamedTuple):
    """How the current state changed.

    :ivar change: by slot, the number of the new event; None where the entry is gone
    :ivar members: users of whose memberships no event tells as of now, and users of this server whose membership is another one
    :ivar removed_members: users who have none any more
    """

    change: Mapping[int, int | None]
    members: Sequence[str]
    removed_members: Sequence[str]


def swap_current_state(
    txn: Transaction, room_no: int, state: Mapping[int, int], server_name: str
) -> StateSwap:
    """Replace the current state of a room and its memberships.

    :param state: the new one, event numbers by slot
    :param server_name: of this server
    """
    txn.execute("SELECT slot, event_no FROM synrepl._current_state WHERE room_no = %s", (room_no,))
    old: dict[int, int] = dict(txn.fetchall())
    change: dict[int, int | None] = {
        slot: number for slot, number in state.items() if old.get(slot) != number
    }
    change |= dict.fromkeys(old.keys() - state.keys())
    touched = [slot for slot in change if slot in old]
    txn.execute(
        "DELETE FROM synrepl._current_state WHERE room_no = %s AND slot = ANY (%s::int[])",
        (room_no, array_text(touched)),
    )
    copy_rows(
        txn,
        _CURRENT_TABLE,
        ((room_no, slot, number) for slot, number in change.items() if number is not None),
    )
    txn.execute(_REMOVE_MEMBERS, {"room": room_no})
    removed = [str(user) for (user,) in txn.fetchall()]
    txn.execute(_WRITE_MEMBERS, {"room": room_no})
    txn.execute(
        _CHANGED_MEMBERS,
        {"room": room_no, "slots": array_text(list(change)), "server": server_name},
    )
    members = [str(user) for (user,) in txn.fetchall()]
    return StateSwap(change, members, removed)
