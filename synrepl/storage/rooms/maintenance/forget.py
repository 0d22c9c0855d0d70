"""Removes a room with all its rows.

First the room is renamed, in one transaction: from then on nobody finds it, and if it comes again, it gets another
number. Then its rows go, in batches. A removal that is killed is gone on with by removing the room again.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.marks import announce_room
from synrepl.storage.rooms.tables.numbers import RoomRow, UnknownRoom, lock_room
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase, end_resync

#: What other processes call the caches that a removal makes stale.
FORGOTTEN_CACHE = "dr_cache_fake"

#: The same for rooms with partial state; the room's own row goes last.
PARTIAL_TABLES = (
    "_partial_events",
    "_partial_room_servers",
    "_partial_rooms",
    "_resync_events",
    "_resync_attempts",
    "_resync_jobs",
    "_listed_events",
    "_fetched_events",
    "_room_joins",
)

#: Tables with the rooms' numbers, in the order in which their rows go. Events go before, with their JSON and
#: redactions, because these two have no index by room.
ROOM_TABLES = (
    "_memberships",
    "_current_state",
    "_forward_extremities",
    "_backward_extremities",
    "_waiting_events",
    "_branch_memberships",
    "_membership_history",
    "_receipts",
    "_state_group_lines",
    "_state_groups",
    "_room_keys",
    "_room_heads",
    *PARTIAL_TABLES,
    "_staged_events",
    "_failed_fetches",
    "_remote_memberships",
)


class LocalMembers(Refused):
    """room {room_id} is not removed: {count} users of {server} are in it, such as {example}; let them leave first, or force it"""


class ForgottenRoom(NamedTuple):
    """A room that is being removed.

    :ivar rooms: the numbers of rooms with this ID that were renamed, the newest last
    """

    room_id: str
    rooms: tuple[int, ...]


def _renamed(room_no: int, room_id: str) -> str:
    """No ID of a room begins like this."""
    return f"forgotten {room_no} {room_id}"


def local_members(txn: Transaction, room_no: int, server_name: str) -> tuple[int, str]:
    """The number of users of a server that are joined to a room, and one of them."""
    txn.execute(
        "SELECT count(*), coalesce(min(user_id), '') FROM synrepl._memberships"
        " WHERE room_no = %s AND membership = 'join'"
        "  AND substr(user_id, strpos(user_id, ':') + 1) = %s",
        (room_no, server_name),
    )
    count, example = txn.fetchone()
    return int(count), str(example)


def rename_room(txn: Transaction, room_id: str, server_name: str, *, force: bool) -> ForgottenRoom:
    """Make a room unknown, with everything that is left of one with this ID.

    :param server_name: whose users must not be in it
    :raises LocalMembers: some are, and it is not forced
    :raises UnknownRoom: nothing is here of it
    """
    txn.execute("SELECT room_no FROM synrepl._rooms WHERE room_id = %s", (room_id,))
    found = txn.fetchone_or_none()
    if found is not None:
        room: RoomRow = lock_room(txn, int(found[0]))
        if room.room_id == room_id:
            count, example = local_members(txn, room.room_no, server_name)
            if count and not force:
                raise LocalMembers(
                    room_id=room_id, count=count, server=server_name, example=example
                )
            txn.execute(
                "UPDATE synrepl._rooms SET room_id = %s, epoch = epoch + 1,"
                " revision = revision + 1, reworked = reworked + 1 WHERE room_no = %s",
                (_renamed(room.room_no, room_id), room.room_no),
            )
            end_resync(txn, room.room_no, ResyncPhase.ABANDONED)
            announce_room(txn, FORGOTTEN_CACHE, room_id)
    txn.execute(
        "SELECT room_no FROM synrepl._rooms WHERE room_id = 'forgotten ' || room_no || ' ' || %s"
        " ORDER BY room_no",
        (room_id,),
    )
    rooms = tuple(int(room_no) for (room_no,) in txn.fetchall())
    if not rooms:
        raise UnknownRoom(room_id=room_id)
    return ForgottenRoom(room_id, rooms)


def remove_events(txn: Transaction, room_no: int, limit: int) -> int:
    """Remove some events of a renamed room with their JSON and redactions; returns the number of rows."""
    txn.execute(
        "(SELECT event_no FROM synrepl._room_events WHERE room_no = %s AND stream_id IS NOT NULL"
        "  LIMIT %s)"
        " UNION ALL (SELECT event_no FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NULL LIMIT %s) LIMIT %s",
        (room_no, limit, room_no, limit, limit),
    )
    numbers = [int(number) for (number,) in txn.fetchall()]
    rows = 0
    for table, column in (
        ("_redactions", "redaction_no"),
        ("_room_event_json", "event_no"),
        ("_room_events", "event_no"),
    ):
        txn.execute(f"DELETE FROM synrepl.{table} WHERE {column} = ANY (%s::bigint[])", (numbers,))
        rows += txn.rowcount
    return rows


def remove_versions(txn: Transaction, room_no: int, limit: int) -> int:
    """Remove some rows of the lines of a renamed room, lines with the last of theirs; returns the number."""
    txn.execute(
        "DELETE FROM synrepl._state_line v USING (SELECT s.line_no, s.slot, s.pos"
        "  FROM synrepl._state_lines l JOIN synrepl._state_line s USING (line_no)"
        "  WHERE l.room_no = %s LIMIT %s) d"
        " WHERE v.line_no = d.line_no AND v.slot = d.slot AND v.pos = d.pos",
        (room_no, limit),
    )
    rows = txn.rowcount
    if rows < limit:
        txn.execute("DELETE FROM synrepl._state_lines WHERE room_no = %s", (room_no,))
        rows += txn.rowcount
    return rows


def remove_rows(txn: Transaction, room_no: int, table: str, limit: int) -> int:
    """Remove some rows of a table of a renamed room; returns their number.

    :param table: one of :data:`ROOM_TABLES`
    """
    txn.execute(
        f"DELETE FROM synrepl.{table} WHERE ctid = ANY (ARRAY("
        f"SELECT ctid FROM synrepl.{table} WHERE room_no = %s LIMIT %s))",
        (room_no, limit),
    )
    return txn.rowcount


def room_leftovers(txn: Transaction, room_no: int) -> dict[str, int]:
    """The number of rows that each table has of a room; all 0 once it is removed."""
    found = {}
    for table in (*ROOM_TABLES, "_room_events", "_redactions", "_state_lines"):
        txn.execute(f"SELECT count(*) FROM synrepl.{table} WHERE room_no = %s", (room_no,))
        found[table] = int(txn.fetchone()[0])
    return found


def end_removal(txn: Transaction, room_no: int) -> dict[str, int]:
    """Remove the row of a renamed room, if nothing else is left of it; returns what is left."""
    left = room_leftovers(txn, room_no)
    if not any(left.values()):
        txn.execute("DELETE FROM synrepl._rooms WHERE room_no = %s", (room_no,))
    return left
