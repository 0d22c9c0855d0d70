"""Compaction of state groups: fewer rows and fewer entries, the same states.

- *Merging*: groups with the same state become one. Events and deltas that refer to the others refer to the first.
- *Splicing*: a group that is only a step between others goes, if they are no larger without it.
- *Rewriting*: a group that was stored in full, or as a large delta, becomes a delta to a group that is closer.

Each batch proves, in its transaction, that every group it touches has the state that it had. No batch adds a row, so
at no moment there are more than before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.collect import BatchDone
from synrepl.storage.rooms.maintenance.kept_groups import find_kept_groups
from synrepl.storage.rooms.maintenance.marks import RoomMark, lock_marked, reworked
from synrepl.storage.rooms.maintenance.proven_states import ProvenStates
from synrepl.storage.rooms.maintenance.rebase import RebasedGroup, delta_to, write_rebased
from synrepl.storage.rooms.states.state_groups import (
    LEVELS,
    KnownGroups,
    PlannedDelta,
    StoredGroup,
    chain_of,
    delta_between,
    plan_change,
    read_chains,
)
from synrepl.storage.rooms.tables.numbers import room_by_number
from synrepl.storage.rooms.visibility.audience import FIRST_BIT

#: Entries that rewriting a group must save.
MIN_SAVED = 4

#: Groups on top of a rewritten one, which get other places in their lines.
MAX_MOVED = 500

#: The highest place: as many groups as a line of skip levels has.
MAX_PLACE = LEVELS.line - 1

#: Maximum number of groups in the chain of a group after others below it were rewritten.
MAX_CHAIN = 2 * LEVELS.max_hops

#: Groups before a group that it is compared with.
COMPARED_GROUPS = 4


class GroupTotals(NamedTuple):
    """The size of a room's state groups.

    :ivar entries: slots in all rows
    :ivar bytes: of the rows, without index
    """

    groups: int
    entries: int
    bytes: int


def group_totals(txn: Transaction, room_no: int) -> GroupTotals:
    """The size of a room's state groups."""
    txn.execute(
        "SELECT count(*), coalesce(sum(length(g.changes) / 8), 0),"
        " coalesce(sum(pg_column_size(g)), 0) FROM synrepl._state_groups g WHERE g.room_no = %s",
        (room_no,),
    )
    return GroupTotals(*map(int, txn.fetchone()))


class MergedGroup(NamedTuple):
    """A group with the same state as an earlier one.

    :ivar place: of the earlier one in its line of skip levels
    """

    group_no: int
    same_as: int
    place: int


def plan_merges(txn: Transaction, room_no: int, limit: int) -> list[MergedGroup]:
    """Groups that have the state of an earlier one, and that events, the heads or deltas refer to.

    A group whose first event tells where on the main line it begins stays: its events would be looked for where
    the other one begins.

    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a group is damaged
    """
    txn.execute(
        "SELECT min(g.group_no), array_agg(g.group_no ORDER BY g.group_no) FILTER (WHERE NOT f.begins)"
        " FROM synrepl._state_groups g CROSS JOIN LATERAL (SELECT EXISTS ("
        "  SELECT FROM synrepl._room_events e WHERE e.room_no = g.room_no"
        f"   AND (e.audience & {FIRST_BIT}) <> 0 AND e.group_after = g.group_no) AS begins) f"
        " WHERE g.room_no = %s GROUP BY g.digest HAVING count(*) > 1"
        "  AND max(g.group_no) FILTER (WHERE NOT f.begins) > min(g.group_no) ORDER BY 1 LIMIT %s",
        (room_no, limit),
    )
    equal = txn.fetchall()
    states = ProvenStates(txn, room_by_number(txn, room_no))
    found: list[MergedGroup] = []
    for first, groups in equal:
        others = [int(each) for each in groups if each != first]
        state = states.state(first)
        place = states.row(first).place
        found += [
            MergedGroup(other, first, place) for other in others if states.state(other) == state
        ]
    return found


def referring_events(
    txn: Transaction, room_no: int, merged: Sequence[MergedGroup], limit: int
) -> list[int]:
    """Events that have one of the groups that are to be merged. The room need not be locked."""
    groups = [each.group_no for each in merged]
    txn.execute(
        "SELECT event_no FROM synrepl._room_events WHERE room_no = %s AND stream_id IS NOT NULL"
        " AND (group_before = ANY (%s::bigint[]) OR group_after = ANY (%s::bigint[]))"
        " ORDER BY event_no LIMIT %s",
        (room_no, groups, groups, limit),
    )
    return [int(number) for (number,) in txn.fetchall()]


def merge_groups(
    txn: Transaction, mark: RoomMark, merged: Sequence[MergedGroup], events: Sequence[int]
) -> BatchDone:
    """Let events, the heads and deltas refer to the first of the groups with the same state.

    The others are left, to be collected.

    :param events: some of :func:`referring_events`
    :raises ReworkedMeanwhile: the plan is void
    :raises CorruptState: a group would have another state; the transaction must be rolled back
    """
    lock = lock_marked(txn, mark)
    groups = [each.group_no for each in merged]
    firsts = [each.same_as for each in merged]
    places = [each.place for each in merged]
    rows = 0
    for column in ("group_before", "group_after"):
        txn.execute(
            f"UPDATE synrepl._room_events e SET {column} = m.same_as"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS m (group_no, same_as)"
            f" WHERE e.event_no = ANY (%s::bigint[]) AND e.{column} = m.group_no",
            (groups, firsts, list(events)),
        )
        rows += txn.rowcount
    txn.execute(
        "UPDATE synrepl._room_heads h SET current_group = m.same_as"
        " FROM unnest(%s::bigint[], %s::bigint[]) AS m (group_no, same_as)"
        " WHERE h.room_no = %s AND h.current_group = m.group_no",
        (groups, firsts, mark.room_no),
    )
    # A delta to one state is a delta to any group that has it.
    txn.execute(
        "UPDATE synrepl._state_groups g SET prev_group = m.same_as"
        " FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS m (group_no, same_as, place)"
        " WHERE g.room_no = %s AND g.prev_group = m.group_no AND g.place > m.place"
        " RETURNING g.group_no",
        (groups, firsts, places, mark.room_no),
    )
    states = ProvenStates(txn, lock.room)
    for (group,) in txn.fetchall():
        states.state(int(group))
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, rows, True)


class SplicePlan(NamedTuple):
    """Groups to store in another way, so that steps between them can go.

    :ivar next_group: where to go on; None at the end
    """

    rebased: Sequence[RebasedGroup]
    next_group: int | None


def plan_splices(txn: Transaction, room_no: int, after: int, limit: int) -> SplicePlan:
    """Find groups that only others are deltas to, and that can go without more entries.

    :param after: the number of a group, where to begin
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a group is damaged
    """
    find_kept_groups(txn, room_no, with_chains=False)
    txn.execute(
        "SELECT u.group_no, array_agg(d.group_no ORDER BY d.group_no)"
        " FROM synrepl._state_groups u JOIN synrepl._state_groups d"
        "  ON d.room_no = u.room_no AND d.prev_group = u.group_no"
        " WHERE u.room_no = %s AND u.group_no > %s"
        "  AND NOT EXISTS (SELECT FROM _kept_groups k WHERE k.group_no = u.group_no)"
        " GROUP BY u.group_no ORDER BY u.group_no LIMIT %s",
        (room_no, after, limit),
    )
    found = [(int(group), [int(each) for each in on_top]) for group, on_top in txn.fetchall()]
    states = ProvenStates(txn, room_by_number(txn, room_no))
    touched: set[int] = set()
    rebased: list[RebasedGroup] = []
    for group, on_top in found:
        step = states.row(group)
        if touched & {group, step.prev_group, *on_top}:
            continue
        below = {} if step.prev_group is None else states.state(step.prev_group)
        options = []
        for each in on_top:
            state = states.state(each)
            row = states.row(each)
            options.append(delta_to(each, row.place, state, step.prev_group, below))
        before = _cost(states, [group, *on_top])
        if sum(each.cost for each in options) <= before:
            rebased += options
            touched.update([group, *on_top])
    return SplicePlan(rebased, found[-1][0] if len(found) == limit else None)


class RewritePlan(NamedTuple):
    """Groups to store in another way, one after the other: each is planned on top of those before it.

    :ivar moved: by rewritten group, the groups on top of it
    :ivar next_group: where to go on; None at the end
    """

    rebased: Sequence[RebasedGroup]
    moved: Sequence[Sequence[int]]
    next_group: int | None


def plan_rewrites(txn: Transaction, room_no: int, after: int, limit: int) -> RewritePlan:
    """Find groups that are much smaller as deltas to other groups.

    They are compared with the groups just before them, and with those that events tell they were made from, and
    stored as a new group would be: so chains stay short. A group that changes no more than one entry for each
    group that it skips is as it should be.

    :param after: the number of a group, where to begin
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a group is damaged
    """
    txn.execute(
        "SELECT g.group_no FROM synrepl._state_groups g LEFT JOIN synrepl._state_groups p"
        "  ON p.room_no = g.room_no AND p.group_no = g.prev_group"
        " WHERE g.room_no = %s AND g.group_no > %s"
        "  AND length(g.changes) / 8 >= %s + coalesce(g.place - p.place, 0)"
        " ORDER BY g.group_no LIMIT %s",
        (room_no, after, MIN_SAVED, limit),
    )
    found = [int(group) for (group,) in txn.fetchall()]
    states = ProvenStates(txn, room_by_number(txn, room_no))
    planned = _PlannedGroups(txn, room_no)
    rebased: list[RebasedGroup] = []
    moved: list[Sequence[int]] = []
    for group in found:
        plan = _planned(txn, planned, group)
        if plan is None:
            continue
        on_top = _on_top(txn, room_no, group)
        place = planned.rows[group].place
        above = max(plan.place - place, 0)
        highest = max([place, *[each.place + planned.lifted(each.group_no) for each in on_top]])
        chain = planned.chain(plan.prev_group) + max([0, *[each.hops for each in on_top]])
        if len(on_top) > MAX_MOVED or highest + above > MAX_PLACE or chain > MAX_CHAIN:
            continue
        on_top_numbers = sorted(each.group_no for each in on_top) if above else []
        made = plan._replace(place=place + above)
        rebased.append(RebasedGroup(group, *made, states.state(group)))
        moved.append(on_top_numbers)
        planned.rewrite(group, made, on_top_numbers, above)
    return RewritePlan(rebased, moved, found[-1] if len(found) == limit else None)


class _PlannedGroups:
    """The rows of groups as they will be when what is planned so far is done.

    :ivar rows: those that were read, with their chains
    """

    def __init__(self, txn: Transaction, room_no: int) -> None:
        self._txn = txn
        self.room_no = room_no
        self.rows: dict[int, StoredGroup] = {}
        self._lifted: Counter[int] = Counter()

    def read(self, groups: Collection[int]) -> None:
        """Read groups with their chains."""
        missing = [each for each in groups if each not in self.rows]
        for number, row in read_chains(self._txn, self.room_no, missing).items():
            if number not in self.rows:
                self.rows[number] = row._replace(place=row.place + self._lifted[number])

    def chain(self, group: int) -> int:
        """The number of groups in the chain of a group that was read."""
        return sum(1 for _ in chain_of(group, self.rows))

    def lifted(self, group: int) -> int:
        """By how many places a group is moved up."""
        return self._lifted[group]

    def rewrite(self, group: int, plan: PlannedDelta, on_top: Collection[int], above: int) -> None:
        """A group is to be stored in another way, and those on top of it are to be moved up."""
        prev_group, place, changes = plan
        old = self.rows[group]
        self.rows[group] = old._replace(prev_group=prev_group, place=place, changes=changes)
        for each in on_top:
            self._lifted[each] += above
            if each in self.rows:
                row = self.rows[each]
                self.rows[each] = row._replace(place=row.place + above)


def _planned(txn: Transaction, planned: _PlannedGroups, group: int) -> PlannedDelta | None:
    """How to store a group as a new one would be, if that saves enough."""
    txn.execute(
        "(SELECT g.group_no FROM synrepl._state_groups g WHERE g.room_no = %s AND g.group_no < %s"
        "  ORDER BY g.group_no DESC LIMIT %s)"
        " UNION (SELECT max(e.group_before) FROM synrepl._room_events e WHERE e.room_no = %s"
        "  AND e.group_after = %s AND e.group_before < e.group_after)",
        (planned.room_no, group, COMPARED_GROUPS, planned.room_no, group),
    )
    candidates = [int(each) for (each,) in txn.fetchall() if each is not None]
    planned.read([group, *candidates])
    deltas = {each: delta_between(each, group, planned.rows) for each in candidates}
    if not deltas:
        return None
    # Only the closest: what is planned on top of it goes by the levels. The cheapest plan would avoid them.
    closest = min(deltas, key=lambda each: (len(deltas[each]), -each))
    row = planned.rows[group]
    plan = plan_change(closest, deltas[closest], row.size, KnownGroups(planned.rows))
    return None if plan is None or len(plan.changes) + MIN_SAVED > len(row.changes) else plan


class _GroupOnTop(NamedTuple):
    """A group whose chain leads through another one.

    :ivar hops: from it to the other one
    """

    group_no: int
    place: int
    hops: int


def _on_top(txn: Transaction, room_no: int, group: int) -> list[_GroupOnTop]:
    """The groups whose chains lead through another one; not many more than are moved."""
    txn.execute(
        "WITH RECURSIVE on_top (group_no, place, hops) AS ("
        " SELECT g.group_no, g.place, 1 FROM synrepl._state_groups g"
        "  WHERE g.room_no = %s AND g.prev_group = %s"
        " UNION ALL SELECT g.group_no, g.place, t.hops + 1 FROM on_top t"
        "  JOIN synrepl._state_groups g ON g.room_no = %s AND g.prev_group = t.group_no)"
        " SELECT group_no, place, hops FROM on_top LIMIT %s",
        (room_no, group, room_no, MAX_MOVED + 1),
    )
    return [_GroupOnTop._make(map(int, row)) for row in txn.fetchall()]


def rewrite_group(
    txn: Transaction, mark: RoomMark, rebased: RebasedGroup, moved: Collection[int]
) -> BatchDone:
    """Store a group in another way, and move those on top of it up in their lines.

    :raises ReworkedMeanwhile: the plan is void, as it is when another group was made on top meanwhile
    :raises CorruptState: :raises BrokenChain: a group would have another state; the transaction must be rolled back
    """
    lock = lock_marked(txn, mark)
    room_no = mark.room_no
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._state_groups g WHERE g.room_no = %s AND g.group_no > %s"
        " AND g.prev_group = ANY (%s::bigint[]))",
        (room_no, mark.group_no, [rebased.group_no, *moved]),
    )
    if txn.fetchone()[0]:  # its place was found by the places as they were
        mark = reworked(txn, mark, lock)
        return BatchDone(mark, lock.since, 0, False)
    if moved:
        txn.execute(
            "UPDATE synrepl._state_groups g SET place = g.place + (%s - o.place)"
            " FROM synrepl._state_groups o WHERE o.room_no = g.room_no AND o.group_no = %s"
            "  AND g.room_no = %s AND g.group_no = ANY (%s::bigint[])",
            (rebased.place, rebased.group_no, room_no, list(moved)),
        )
    write_rebased(txn, room_no, [rebased])
    known = read_chains(txn, room_no, [*moved])
    for each in moved:
        for _ in chain_of(each, known):  # only places are new, so whole chains prove the states
            pass
    mark = reworked(txn, mark, lock)
    return BatchDone(mark, lock.since, 0, True)


def _cost(states: ProvenStates, groups: Sequence[int]) -> int:
    return sum(len(row.changes) for row in states.rows(groups).values())
