"""Which state groups of a room are needed, found in a temporary table that lasts as long as the transaction.

A group is needed by an event, also by one of a partial room that was judged again, by the room's heads, by a line whose
head it is, and, unless it can be rebased, by a group that is a delta to it. A line is needed by the needed groups that are on it, and by
lines on top of it.
"""

from __future__ import annotations

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint

_ROOTS = (
    "INSERT INTO _kept_groups"
    " SELECT e.group_before FROM synrepl._room_events e WHERE e.room_no = %(room)s"
    "  AND e.group_before IS NOT NULL{kept}"
    " UNION SELECT e.group_after FROM synrepl._room_events e WHERE e.room_no = %(room)s"
    "  AND e.group_after IS NOT NULL{kept}"
    " UNION SELECT h.current_group FROM synrepl._room_heads h WHERE h.room_no = %(room)s"
    " UNION SELECT g.group_no FROM synrepl._resync_events r"
    "  CROSS JOIN LATERAL (VALUES (r.full_before), (r.full_after)) AS g (group_no)"
    "  WHERE r.room_no = %(room)s AND g.group_no IS NOT NULL"
)

_CHAINS = (
    "WITH RECURSIVE below (group_no) AS ("
    " SELECT g.prev_group FROM _kept_groups k JOIN synrepl._state_groups g"
    "  ON g.room_no = %(room)s AND g.group_no = k.group_no WHERE g.prev_group IS NOT NULL"
    " UNION SELECT g.prev_group FROM below b JOIN synrepl._state_groups g"
    "  ON g.room_no = %(room)s AND g.group_no = b.group_no WHERE g.prev_group IS NOT NULL)"
    " INSERT INTO _kept_groups SELECT group_no FROM below ON CONFLICT DO NOTHING"
)

_LINES = (
    "WITH RECURSIVE needed (line_no) AS ("
    " SELECT r.main_line FROM synrepl._rooms r"
    "  WHERE r.room_no = %(room)s AND r.main_line IS NOT NULL"
    " UNION SELECT p.line_no FROM synrepl._state_group_lines p JOIN _kept_groups k USING (group_no)"
    "  WHERE p.room_no = %(room)s"
    " UNION SELECT l.parent FROM needed n JOIN synrepl._state_lines l USING (line_no)"
    "  WHERE l.parent IS NOT NULL)"
    " INSERT INTO _kept_lines SELECT line_no FROM needed ON CONFLICT DO NOTHING"
)

_HEADS = (
    "INSERT INTO _kept_groups SELECT l.head FROM _kept_lines k"
    " JOIN synrepl._state_lines l USING (line_no) ON CONFLICT DO NOTHING"
)


def find_kept_groups(
    txn: Transaction, room_no: int, *, with_chains: bool, purged: PurgePoint | None = None
) -> None:
    """Fill the temporary tables ``_kept_groups`` and ``_kept_lines``.

    The cost goes with the number of the room's events, and the room need not be locked.

    :param with_chains: whether the groups below a kept one are kept
    :param purged: as if the events before this point were gone
    """
    params = {"room": room_no} if purged is None else purged.params(room_no)
    kept = "" if purged is None else f" AND NOT {purged.is_before('e')}"
    txn.execute(
        "DROP TABLE IF EXISTS pg_temp._kept_groups, pg_temp._kept_lines;"
        " CREATE TEMP TABLE _kept_groups (group_no bigint PRIMARY KEY) ON COMMIT DROP;"
        " CREATE TEMP TABLE _kept_lines (line_no integer PRIMARY KEY) ON COMMIT DROP"
    )
    txn.execute(_ROOTS.format(kept=kept), params)
    added = 1
    while added:
        txn.execute("ANALYZE _kept_groups")
        if with_chains:
            txn.execute(_CHAINS, params)
        txn.execute(_LINES, params)
        txn.execute(_HEADS, params)
        added = txn.rowcount


def groups_to_rebase(txn: Transaction, room_no: int, limit: int) -> list[int]:
    """Kept groups that are deltas to groups that are not, in their order; after :func:`find_kept_groups`."""
    txn.execute(
        "SELECT g.group_no FROM _kept_groups k JOIN synrepl._state_groups g"
        "  ON g.room_no = %s AND g.group_no = k.group_no"
        " WHERE g.prev_group IS NOT NULL"
        "  AND NOT EXISTS (SELECT FROM _kept_groups p WHERE p.group_no = g.prev_group)"
        " ORDER BY g.group_no LIMIT %s",
        (room_no, limit),
    )
    return [int(group) for (group,) in txn.fetchall()]


def unneeded_groups(txn: Transaction, room_no: int, limit: int) -> list[int]:
    """Groups that are not kept, the newest first; after :func:`find_kept_groups`.

    A group is newer than what it is a delta to, so it goes before.
    """
    txn.execute(
        "SELECT g.group_no FROM synrepl._state_groups g WHERE g.room_no = %s"
        " AND NOT EXISTS (SELECT FROM _kept_groups k WHERE k.group_no = g.group_no)"
        " ORDER BY g.group_no DESC LIMIT %s",
        (room_no, limit),
    )
    return [int(group) for (group,) in txn.fetchall()]


def unneeded_lines(txn: Transaction, room_no: int) -> list[int]:
    """Lines that are not kept, those on top first; after :func:`find_kept_groups`."""
    txn.execute(
        "SELECT l.line_no FROM synrepl._state_lines l WHERE l.room_no = %s"
        " AND NOT EXISTS (SELECT FROM _kept_lines k WHERE k.line_no = l.line_no)"
        " ORDER BY l.line_no DESC",
        (room_no,),
    )
    return [int(line_no) for (line_no,) in txn.fetchall()]


def count_unneeded(txn: Transaction, room_no: int) -> tuple[int, int]:
    """How many groups are not kept, and their bytes; after :func:`find_kept_groups`."""
    txn.execute(
        "SELECT count(*), coalesce(sum(pg_column_size(g)), 0) FROM synrepl._state_groups g"
        " WHERE g.room_no = %s"
        " AND NOT EXISTS (SELECT FROM _kept_groups k WHERE k.group_no = g.group_no)",
        (room_no,),
    )
    count, size = txn.fetchone()
    return int(count), int(size)
