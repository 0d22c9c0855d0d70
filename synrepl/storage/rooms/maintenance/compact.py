"""Compaction of state groups: fewer rows and fewer entries, the same states.

- *Merging*: groups with the same state become one. Events and deltas that refer to the others refer to the first.
- *Splicing*: a group that is only a step between others goes, if they are no larger without it.
- *Rewriting*: a group that was stored in full, or as a large delta, becomes a delta to a group that is closer.

Each batch proves, in its transaction, that every group it touches has the state that it had. No batch adds a row, so
at no moment there are more than before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.collect import BatchDone
from synrepl.storage.rooms.maintenance.kept_groups import find_kept_groups
from synrepl.storage.rooms.maintenance.marks import RoomMark, lock_marked, reworked
from synrepl.storage.rooms.maintenance.proven_states import ProvenStates
from synrepl.storage.rooms.maintenance.rebase import RebasedGroup, delta_to, write_rebased
from synrepl.storage.rooms.states.state_groups import chain_of, read_chains
from synrepl.storage.rooms.tables.numbers import room_by_number
from synrepl.storage.rooms.visibility.audience import FIRST_BIT

#: Entries that rewriting a group must save.
MIN_SAVED = 4

#: Groups on top of a rewritten one, which get other places in their lines.
MAX_MOVED = 500

#: The highest place: as many groups as a line of skip levels has.
MAX_PLACE = 12**4 - 1

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
        "  AND max(g.group_no) FILTER (WHERE NOT f.begins) > min(g.group_no) LIMIT %s",
        (room_no, limit),
    )
    equal = txn.fetchall()
    states = ProvenStates(txn, room_by_number(txn, room_no))
    found: list[MergedGroup] = []
    for first, groups in equal:
        others = [int(each) for each in groups if each != first]
        state = states.state(first)
        place = states.groups[first].place
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
        states.read([group, *on_top])
        step = states.groups[group]
        if touched & {group, step.prev_group, *on_top}:
            continue
        below = {} if step.prev_group is None else states.state(step.prev_group)
        options = []
        for each in on_top:
            state = states.state(each)
            row = states.groups[each]
            options.append(delta_to(each, row.place, state, step.prev_group, below))
        before = _cost(states, [group, *on_top])
        if sum(each.cost for each in options) <= before:
            rebased += options
            touched.update([group, *on_top])
    return SplicePlan(rebased, found[-1][0] if len(found) == limit else None)


class RewritePlan(NamedTuple):
    """Groups to store in another way.

    :ivar moved: by rewritten group, the groups on top of it
    :ivar next_group: where to go on; None at the end
    """

    rebased: Sequence[RebasedGroup]
    moved: Sequence[Sequence[int]]
    next_group: int | None


def plan_rewrites(txn: Transaction, room_no: int, after: int, limit: int) -> RewritePlan:
    """Find groups that are much smaller as deltas to other groups.

    They are compared with the groups just before them, and with those that events tell they were made from.

    :param after: the number of a group, where to begin
    :raises CorruptState: :raises UnknownStateGroup: :raises BrokenChain: a group is damaged
    """
    txn.execute(
        "SELECT g.group_no FROM synrepl._state_groups g WHERE g.room_no = %s AND g.group_no > %s"
        " AND length(g.changes) / 8 > %s"
        " ORDER BY g.group_no LIMIT %s",
        (room_no, after, MIN_SAVED, limit),
    )
    found = [int(group) for (group,) in txn.fetchall()]
    states = ProvenStates(txn, room_by_number(txn, room_no))
    touched: set[int] = set()
    rebased: list[RebasedGroup] = []
    moved: list[Sequence[int]] = []
    for group in found:
        if group in touched:
            continue
        state = states.state(group)
        cost = _cost(states, [group])
        options = [
            delta_to(group, states.groups[base].place + 1, state, base, below)
            for base in _candidates(txn, room_no, group)
            for below in (states.state(base),)
        ]
        best = min(options, key=lambda each: each.cost, default=None)
        if best is None or best.cost + MIN_SAVED > cost:
            continue
        if best.prev_group in touched:  # its place will be another one
            continue
        place = states.groups[group].place
        if best.place <= place:
            rebased.append(best._replace(place=place))
            moved.append(())
            touched.add(group)
            continue
        on_top = _on_top(txn, room_no, group)
        highest = max([place, *[each_place for _, each_place in on_top]])
        numbers = {each for each, _ in on_top}
        if (
            len(on_top) <= MAX_MOVED
            and highest + best.place - place <= MAX_PLACE
            and not touched & numbers
            and best.prev_group not in numbers
        ):
            rebased.append(best)
            moved.append(sorted(numbers))
            touched.update([group, *numbers])
    return RewritePlan(rebased, moved, found[-1] if len(found) == limit else None)


def _candidates(txn: Transaction, room_no: int, group: int) -> list[int]:
    txn.execute(
        "(SELECT g.group_no FROM synrepl._state_groups g WHERE g.room_no = %s AND g.group_no < %s"
        "  ORDER BY g.group_no DESC LIMIT %s)"
        " UNION (SELECT max(e.group_before) FROM synrepl._room_events e WHERE e.room_no = %s"
        "  AND e.group_after = %s AND e.group_before < e.group_after)",
        (room_no, group, COMPARED_GROUPS, room_no, group),
    )
    return [int(each) for (each,) in txn.fetchall() if each is not None]


def _on_top(txn: Transaction, room_no: int, group: int) -> list[tuple[int, int]]:
    """The groups whose chains lead through another one, with their places; not many more than are moved."""
    txn.execute(
        "WITH RECURSIVE on_top (group_no, place) AS ("
        " SELECT g.group_no, g.place FROM synrepl._state_groups g"
        "  WHERE g.room_no = %s AND g.prev_group = %s"
        " UNION ALL SELECT g.group_no, g.place FROM on_top t JOIN synrepl._state_groups g"
        "  ON g.room_no = %s AND g.prev_group = t.group_no)"
        " SELECT group_no, place FROM on_top LIMIT %s",
        (room_no, group, room_no, MAX_MOVED + 1),
    )
    return [(int(each), int(place)) for each, place in txn.fetchall()]


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
    states.read(groups)
    return sum(len(states.groups[each].changes) for each in groups)
