"""Makes a state group that is stored in full, from a statement: a large state never is in Python's memory as a whole.

:class:`.GroupWriter` makes groups that differ from others in a few entries.
"""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import digest_of_total, entry_hash
from synrepl.storage.rooms.states.state_groups import (
    GROUPS_TABLE,
    packed_changes,
)
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import copy_rows

# What the line does not have yet at its head: the entries that differ, and those that are gone.
_VERSIONS = """
    INSERT INTO synrepl._state_line (line_no, slot, pos, event_no)
    SELECT %(line)s, coalesce(n.slot, o.slot), %(group)s, n.event_no
      FROM (SELECT c.* FROM synrepl._state_groups g
             CROSS JOIN LATERAL synrepl.state_changes(g.changes) AS c
             WHERE g.room_no = %(room)s AND g.group_no = %(group)s) AS n
      FULL JOIN (SELECT o.slot, o.event_no FROM (
                   SELECT DISTINCT ON (slot) slot, event_no FROM synrepl._state_line
                    WHERE line_no = %(line)s ORDER BY slot, pos DESC) AS o
                  WHERE o.event_no IS NOT NULL) AS o USING (slot)
     WHERE n.event_no IS DISTINCT FROM o.event_no"""


def make_whole_group(
    txn: Transaction, room: RoomRow, group: int, entries: str, params: Mapping[str, object]
) -> None:
    """Make a group of a room that has groups already, as the new head of its main line.

    The caller holds the room's lock, and raises its revision.

    :param group: the number of the group, which is higher than those of all others of the room
    :param entries: a SELECT of slot, event number, type, state key and event ID
    :raises NumberTooLarge: a number is too large to be stored
    """
    txn.execute(f"SELECT * FROM ({entries}) AS e ORDER BY 1", params)
    key, total, changes = room.digest_key, 0, bytearray()
    for slot, event_no, kind, state_key, event_id in txn:
        named: StateKey = kind, state_key
        total += entry_hash(key, (named, event_id))
        changes += packed_changes(room.room_no, {slot: event_no})
    digest = digest_of_total(total)
    size = len(changes) // 8
    copy_rows(txn, GROUPS_TABLE, [(group, None, room.room_no, size, 0, digest, bytes(changes))])
    params = {"line": room.main_line, "room": room.room_no, "group": group}
    txn.execute(_VERSIONS, params)
    txn.execute("UPDATE synrepl._state_lines SET head = %(group)s WHERE line_no = %(line)s", params)
