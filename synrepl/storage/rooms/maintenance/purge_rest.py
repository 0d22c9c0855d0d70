"""The last part of a purge: versions on lines, outliers and state keys that nothing needs, and the proof that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.collect import BatchDone, count_uncollected
from synrepl.storage.rooms.maintenance.marks import (
    NEW_EVENTS,
    RoomMark,
    lock_marked,
    mark_params,
    references_since,
    reworked,
)
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.maintenance.unneeded import cited_by_waiting


def lines_of(txn: Transaction, room_no: int) -> list[int]:
    """The state lines of a room."""
    txn.execute(
        "SELECT line_no FROM synrepl._state_lines WHERE room_no = %s ORDER BY line_no", (room_no,)
    )
    return [int(line_no) for (line_no,) in txn.fetchall()]


#: The first position of a line that some group, or a line on top of it, needs. A group that is made later
#: is never before the groups that are there.
_FIRST_POSITION = (
    "SELECT min(pos) FROM ("
    " SELECT min(p.pos) AS pos FROM synrepl._state_group_lines p"
    "  WHERE p.room_no = %(room)s AND p.line_no = %(line)s"
    " UNION ALL SELECT min(l.parent_pos) FROM synrepl._state_lines l"
    "  WHERE l.room_no = %(room)s AND l.parent = %(line)s"
    " UNION ALL SELECT min(g.group_no) FROM synrepl._state_groups g"
    "  JOIN synrepl._rooms r ON r.room_no = g.room_no AND r.main_line = %(line)s"
    "  WHERE g.room_no = %(room)s AND NOT EXISTS (SELECT FROM synrepl._state_group_lines p"
    "   WHERE p.room_no = g.room_no AND p.group_no = g.group_no)) x"
)

#: Versions that a newer one supersedes for every group, and removals that nothing is below of.
_SUPERSEDED = (
    "SELECT s.slot, s.pos FROM (SELECT v.slot, v.pos, v.event_no,"
    "  lead(v.pos) OVER (PARTITION BY v.slot ORDER BY v.pos) AS next_pos,"
    "  lag(v.pos) OVER (PARTITION BY v.slot ORDER BY v.pos) AS last_pos"
    "  FROM synrepl._state_line v WHERE v.line_no = %(line)s AND v.slot >= %(slot)s"
    "  AND v.pos <= %(first)s) s"
    " WHERE s.next_pos IS NOT NULL OR (s.event_no IS NULL AND s.last_pos IS NULL"
    "  AND NOT EXISTS (SELECT FROM synrepl._state_lines l"
    "   WHERE l.line_no = %(line)s AND l.parent IS NOT NULL))"
    " ORDER BY s.slot, s.pos LIMIT %(limit)s"
)


class TrimmedLine(NamedTuple):
    """Versions of a line that went.

    :ivar slot: where to go on; None at the end of the line
    """

    rows: int
    slot: int | None


def trim_line(txn: Transaction, room_no: int, line_no: int, slot: int, limit: int) -> TrimmedLine:
    """Remove versions of a line that are no group's entries any more.

    It needs no lock: what goes is nobody's entry, whatever others do meanwhile.

    :param slot: where to begin
    """
    params = {"room": room_no, "line": line_no, "slot": slot, "limit": limit}
    txn.execute(_FIRST_POSITION, params)
    (first,) = txn.fetchone()
    if first is None:
        return TrimmedLine(0, None)
    txn.execute(_SUPERSEDED, {**params, "first": first})
    found = txn.fetchall()
    if found:
        txn.execute(
            "DELETE FROM synrepl._state_line v USING unnest(%s::int[], %s::bigint[]) AS d (slot, pos)"
            " WHERE v.line_no = %s AND v.slot = d.slot AND v.pos = d.pos",
            ([each[0] for each in found], [each[1] for each in found], line_no),
        )
    return TrimmedLine(len(found), int(found[-1][0]) if len(found) == limit else None)


def remove_outliers(
    txn: Transaction,
    mark: RoomMark,
    numbers: Sequence[int],
    unneeded: Set[int],
    waiting_no: int,
) -> BatchDone:
    """Remove outliers that nothing refers to.

    Nothing is removed if what came since the search refers to one of those that were found: what that one cites is
    needed, too.

    :param numbers: those to remove
    :param unneeded: all that were found
    :param waiting_no: the last waiting event that was looked at
    :raises ReworkedMeanwhile: what was found out is void
    """
    lock = lock_marked(txn, mark)
    is_used = bool(references_since(txn, mark, lock, unneeded).auth_nos)
    while not is_used and lock.came_later:
        waiting = cited_by_waiting(txn, lock.room, waiting_no)
        is_used, waiting_no = not unneeded.isdisjoint(waiting.numbers), waiting.last_no
        if waiting.is_last:
            break
    rows = 0 if is_used else _remove_outliers(txn, mark.room_no, numbers)
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, rows, not is_used)


def _remove_outliers(txn: Transaction, room_no: int, numbers: Sequence[int]) -> int:
    txn.execute(
        "DELETE FROM synrepl._room_events WHERE event_no = ANY (%s::bigint[]) AND flags & 1 <> 0"
        " RETURNING event_no, event_id, redacted_by",
        (list(numbers),),
    )
    removed = txn.fetchall()
    numbers_gone = [int(row[0]) for row in removed]
    txn.execute(
        "DELETE FROM synrepl._room_event_json WHERE event_no = ANY (%s::bigint[])", (numbers_gone,)
    )
    redacted = [str(row[1]) for row in removed if row[2] is not None]
    txn.execute(
        "UPDATE synrepl._redactions SET applied = false"
        " WHERE redacts = ANY (%s::text[]) AND room_no = %s AND applied",
        (redacted, room_no),
    )
    unapplied = txn.rowcount
    txn.execute(
        "DELETE FROM synrepl._redactions WHERE redaction_no = ANY (%s::bigint[]) RETURNING applied",
        (numbers_gone,),
    )
    unapplied -= sum(not applied for (applied,) in txn.fetchall())
    txn.execute(
        "UPDATE synrepl._room_heads SET outliers = outliers - %s, unapplied = unapplied + %s"
        " WHERE room_no = %s",
        (len(numbers_gone), unapplied, room_no),
    )
    return 2 * len(numbers_gone)


def remove_keys(txn: Transaction, mark: RoomMark, slots: Sequence[int]) -> BatchDone:
    """Remove state keys that nothing uses. Their slots are not given out again.

    :raises ReworkedMeanwhile: what was found out is void
    """
    lock = lock_marked(txn, mark)
    txn.execute(
        f"SELECT e.slot FROM synrepl._room_events e WHERE e.event_no IN {NEW_EVENTS}"
        "  AND e.slot IS NOT NULL"
        " UNION SELECT c.slot FROM synrepl._state_groups g"
        "  CROSS JOIN LATERAL synrepl.state_changes(g.changes) AS c"
        "  WHERE g.room_no = %(room)s AND g.group_no > %(m_group)s",
        mark_params(mark),
    )
    used = {int(slot) for (slot,) in txn.fetchall()}
    gone = [slot for slot in slots if slot not in used]
    txn.execute(
        "DELETE FROM synrepl._room_keys WHERE room_no = %s AND slot = ANY (%s::int[])",
        (mark.room_no, gone),
    )
    rows = txn.rowcount
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, rows, len(gone) == len(slots))


def purge_leftovers(txn: Transaction, room_no: int, point: PurgePoint) -> dict[str, int]:
    """What a purge has left of what it should have removed, each by its own statement: all 0 after a purge.

    Outliers and state keys are not among it: see :mod:`.unneeded`.
    """
    params = point.params(room_no)
    queries = {
        "events": "SELECT count(*) FROM synrepl._room_events e"
        f" WHERE e.room_no = %(room)s AND {point.is_before('e')}",
        "edges": "SELECT count(*) FROM synrepl._room_events e"
        " CROSS JOIN LATERAL unnest(e.prev_nos) AS n (event_no) WHERE e.room_no = %(room)s"
        "  AND e.stream_id IS NOT NULL AND NOT EXISTS (SELECT FROM synrepl._room_events p"
        "   WHERE p.event_no = n.event_no AND p.stream_id IS NOT NULL)",
        "backward extremities": "SELECT count(*) FROM synrepl._backward_extremities b"
        " WHERE b.room_no = %(room)s AND NOT EXISTS (SELECT FROM synrepl._room_events e"
        "  WHERE e.event_no = b.child_no AND e.stream_id IS NOT NULL)",
        "redactions": "SELECT count(*) FROM synrepl._redactions r WHERE r.room_no = %(room)s"
        " AND NOT EXISTS (SELECT FROM synrepl._room_events e WHERE e.event_no = r.redaction_no)",
    }
    found = {}
    for name, query in queries.items():
        txn.execute(query, params)
        found[name] = int(txn.fetchone()[0])
    found["state groups and lines"] = count_uncollected(txn, room_no)
    return found
