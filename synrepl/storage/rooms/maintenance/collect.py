"""Collection of state groups and state lines that nothing refers to.

A group goes only with proof that no event, no head of the room, no line and no other group refers to it. The
proof is made for the whole room without its lock, and again under the lock for what came since. Before, the
indexes that the proof relies on are checked against their tables (:mod:`.index_check`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.rooms import BrokenChain, UnknownStateGroup
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.kept_groups import (
    find_kept_groups,
    groups_to_rebase,
    unneeded_groups,
    unneeded_lines,
)
from synrepl.storage.rooms.maintenance.marks import (
    RoomLock,
    RoomMark,
    lock_marked,
    mark_params,
    references_since,
    reworked,
)
from synrepl.storage.rooms.maintenance.rebase import (
    RebasedGroup,
    prepare_rebase,
    prove_rebased,
    write_proven,
)
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Groups that are found in one go.
PLANNED_GROUPS = 20_000

#: Groups that are rebased in one go: each may be a whole state in memory.
PLANNED_REBASES = 16


class CollectionPlan(NamedTuple):
    """What can be collected of a room now.

    :ivar rebased: groups to be stored in another way first; while there are any, nothing else is planned
    :ivar lines: state lines that no group is on
    :ivar groups: groups that nothing refers to but others of them, the newest first
    """

    rebased: Sequence[RebasedGroup]
    lines: Sequence[int]
    groups: Sequence[int]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.rebased or self.lines or self.groups)


class BatchDone(NamedTuple):
    """The outcome of a batch under the lock.

    :ivar mark: to go on with
    :ivar since: when the room was locked, as the time of a monotonic clock, in seconds
    :ivar rows: rows that were removed
    :ivar is_complete: whether all of the batch was done; otherwise something refers to it now, and it is to
        be planned again
    """

    mark: RoomMark
    since: float
    rows: int
    is_complete: bool


def plan_collection(
    txn: Transaction, room_no: int, *, rebase: bool, near: Sequence[int] = ()
) -> CollectionPlan:
    """Find what can be collected. The room need not be locked, but a mark must have been taken before.

    :param rebase: whether groups that others are deltas to go, too, unless events have them
    :param near: groups that others were rebased to before
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a group is damaged
    """
    find_kept_groups(txn, room_no, with_chains=not rebase)
    if rebase:
        groups = groups_to_rebase(txn, room_no, PLANNED_REBASES)
        if groups:
            return CollectionPlan(prepare_rebase(txn, room_no, groups, near), (), ())
    return CollectionPlan(
        (), unneeded_lines(txn, room_no), unneeded_groups(txn, room_no, PLANNED_GROUPS)
    )


def rebase_group(txn: Transaction, mark: RoomMark, rebased: RebasedGroup) -> BatchDone:
    """Store a group in another way, as planned.

    :raises ReworkedMeanwhile: the plan is void
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: it would have another state; then nothing
        is changed
    """
    # Large states are compared before the room is locked. Only what voids the mark could change the rows then.
    try:
        rows = prove_rebased(txn, mark.room_no, [rebased])
    except (CorruptState, UnknownStateGroup, BrokenChain):
        lock_marked(txn, mark)
        raise
    lock = lock_marked(txn, mark)
    write_proven(txn, mark.room_no, rows)
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, 0, True)


def retire_lines(txn: Transaction, mark: RoomMark, lines: Sequence[int]) -> BatchDone:
    """Mark state lines that no group needs: from then on, the groups that are on them may go.

    :raises ReworkedMeanwhile: the plan is void
    """
    lock = lock_marked(txn, mark)
    came_later = references_since(txn, mark, lock, ())
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._state_group_lines p WHERE p.room_no = %(room)s"
        "  AND p.line_no = ANY (%(lines)s::int[]) AND (p.group_no > %(m_group)s"
        "  OR p.group_no = ANY (%(groups)s::bigint[])))"
        " OR EXISTS (SELECT FROM synrepl._rooms r WHERE r.room_no = %(room)s"
        "  AND r.main_line = ANY (%(lines)s::int[]))",
        {**mark_params(mark), "lines": list(lines), "groups": list(came_later.groups)},
    )
    (is_used,) = txn.fetchone()
    if not is_used:
        txn.execute(
            "UPDATE synrepl._state_lines SET depth = -1 WHERE line_no = ANY (%s::int[])",
            (list(lines),),
        )
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, 0, not is_used)


def remove_line(txn: Transaction, mark: RoomMark, line_no: int, limit: int) -> BatchDone:
    """Remove a retired line that no group is on any more, or some of its versions.

    :param limit: maximum number of versions; the line itself goes with the last of them
    :raises ReworkedMeanwhile: the plan is void
    """
    lock = lock_marked(txn, mark)
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._state_group_lines p"
        "  WHERE p.room_no = %(room)s AND p.line_no = %(line)s)"
        " OR EXISTS (SELECT FROM synrepl._state_lines l"
        "  WHERE l.room_no = %(room)s AND l.parent = %(line)s)"
        " OR NOT EXISTS (SELECT FROM synrepl._state_lines l"
        "  WHERE l.room_no = %(room)s AND l.line_no = %(line)s AND l.depth < 0)",
        {"room": mark.room_no, "line": line_no},
    )
    (is_used,) = txn.fetchone()
    rows = 0
    if not is_used:
        txn.execute(
            "DELETE FROM synrepl._state_line v USING (SELECT slot, pos FROM synrepl._state_line"
            "  WHERE line_no = %s LIMIT %s) d"
            " WHERE v.line_no = %s AND v.slot = d.slot AND v.pos = d.pos",
            (line_no, limit, line_no),
        )
        rows = txn.rowcount
        if rows < limit:
            txn.execute("DELETE FROM synrepl._state_lines WHERE line_no = %s", (line_no,))
            rows += txn.rowcount
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, rows, not is_used)


def remove_groups(txn: Transaction, mark: RoomMark, groups: Sequence[int]) -> BatchDone:
    """Remove state groups that nothing refers to.

    :param groups: some of a plan's, in its order, after its lines were retired
    :raises ReworkedMeanwhile: the plan is void
    """
    lock = lock_marked(txn, mark)
    room_no = mark.room_no
    doomed = set(groups)
    is_used = lock.came_later and _came_into_use(txn, mark, lock, doomed)
    rows = 0
    if not is_used:
        for table in ("_state_group_lines", "_state_groups"):
            txn.execute(
                f"DELETE FROM synrepl.{table} WHERE room_no = %s AND group_no = ANY (%s::bigint[])",
                (room_no, array_text(groups)),
            )
            rows += txn.rowcount
        _check_current_state(txn, room_no)
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, rows, not is_used)


def _came_into_use(txn: Transaction, mark: RoomMark, lock: RoomLock, groups: set[int]) -> bool:
    """Whether something that came after a mark refers to a group."""
    if groups & references_since(txn, mark, lock, ()).groups:
        return True
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._state_groups g WHERE g.room_no = %(room)s"
        "  AND g.group_no > %(m_group)s AND g.prev_group = ANY (%(groups)s::bigint[]))"
        " OR EXISTS (SELECT FROM synrepl._state_lines l WHERE l.room_no = %(room)s"
        "  AND l.depth >= 0 AND l.head = ANY (%(groups)s::bigint[]))"
        " OR EXISTS (SELECT FROM synrepl._room_heads h WHERE h.room_no = %(room)s"
        "  AND h.current_group = ANY (%(groups)s::bigint[]))",
        {**mark_params(mark), "groups": array_text(groups)},
    )
    return bool(txn.fetchone()[0])


def _check_current_state(txn: Transaction, room_no: int) -> None:
    """Whatever went wrong, the current state is there: all groups that it is made of are.

    :raises BrokenChain: one is not; the transaction must be rolled back
    """
    txn.execute(
        "WITH RECURSIVE chain (group_no, prev_group, place) AS ("
        " SELECT h.current_group, h.current_group, 32767::smallint"
        "  FROM synrepl._room_heads h WHERE h.room_no = %s"
        " UNION ALL SELECT g.group_no, g.prev_group, g.place FROM chain c JOIN synrepl._state_groups g"
        "  ON g.room_no = %s AND g.group_no = c.prev_group AND g.place < c.place)"
        " SELECT group_no, prev_group FROM chain ORDER BY place LIMIT 1",
        (room_no, room_no),
    )
    lowest = txn.fetchone_or_none()
    if lowest is not None and lowest[1] is not None:
        raise BrokenChain(group=lowest[0], prev=lowest[1])


def count_uncollected(txn: Transaction, room_no: int) -> int:
    """The number of groups and lines that nothing refers to."""
    find_kept_groups(txn, room_no, with_chains=True)
    return len(unneeded_groups(txn, room_no, PLANNED_GROUPS)) + len(unneeded_lines(txn, room_no))
