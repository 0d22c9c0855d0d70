"""The order in which events of a partial room are judged again: each after those that its verdict depends on.

These are its prev events, its auth events, and the events of the state that another server reported before it. Source:
:meth:`synrepl.rooms.PartialRoom.pending`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from synrepl.storage.database import Transaction

#: Events whose dependencies are looked at together, unless none of them is ready.
WINDOW = 5_000


class EventToJudge(NamedTuple):
    """An event that can be judged again.

    :ivar reported_group: the group of the full state before it that another server reported; None: it follows from the
        prev events
    :ivar doubtful: events in that state that are judged again, too
    :ivar left_out: events that were left out of it because they were rejected
    """

    event_no: int
    reported_group: int | None
    doubtful: Collection[int]
    left_out: Collection[int]


class NextToJudge(NamedTuple):
    """What can be done now.

    :ivar events: in this order
    :ivar needs_state: an event before which the state must be requested from another server, because something that it
        follows is not known; None if there is none
    :ivar left: number of events that remain to be judged
    """

    events: Sequence[EventToJudge]
    needs_state: int | None
    left: int


class _Row(NamedTuple):
    place: tuple[int, int]
    event_no: int
    dependencies: frozenset[int]
    event: EventToJudge
    needs_state: bool


_UNDONE = """
    SELECT e.event_no, coalesce(e.topological, greatest(e.depth, 1)), coalesce(e.stream_id, 0),
           CASE WHEN e.stream_id IS NULL THEN '{}' ELSE e.prev_nos END, e.auth_nos,
           CASE WHEN r.is_reported THEN e.group_before ELSE r.full_before END, r.left_out,
           e.stream_id IS NOT NULL AND EXISTS (SELECT FROM synrepl._backward_extremities b
             WHERE b.room_no = r.room_no AND b.child_no = e.event_no)
      FROM synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)
     WHERE r.room_no = %s AND r.full_flags IS NULL
     ORDER BY 2, 3, 1 LIMIT %s"""

# Which events in the reported states are judged again.
_DOUBTFUL = """
    SELECT g.group_no, array_agg(e.event_no)
      FROM unnest(%s::bigint[]) AS g (group_no)
     CROSS JOIN synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)
     WHERE r.room_no = %s AND e.slot IS NOT NULL
       AND synrepl.state_entry(r.room_no, g.group_no, e.slot) = e.event_no
     GROUP BY g.group_no"""


def next_to_judge(txn: Transaction, room_no: int, limit: int, window: int = WINDOW) -> NextToJudge:
    """What can be judged next, and what is needed for it.

    In versions where servers choose event IDs there may be cycles. Their events, and those that depend on them, come last,
    in the order in which they came.

    :param limit: maximum number of events
    """
    txn.execute(
        "SELECT event_no FROM synrepl._resync_events WHERE room_no = %s AND full_flags IS NULL",
        (room_no,),
    )
    undone = {int(number) for (number,) in txn.fetchall()}
    rows = _rows(txn, room_no, window, undone)
    found = _ready(rows, limit, undone)
    if not found.events and found.needs_state is None and len(undone) > len(rows):
        rows = _rows(txn, room_no, len(undone), undone)
        found = _ready(rows, limit, undone)
    if not found.events and found.needs_state is None and undone:
        last = sorted(rows, key=lambda row: row.place[1])
        return NextToJudge([row.event for row in last[:limit]], None, len(undone))
    return found


def _rows(txn: Transaction, room_no: int, limit: int, undone: Collection[int]) -> list[_Row]:
    txn.execute(_UNDONE, (room_no, limit))
    records = txn.fetchall()
    groups = sorted({row[5] for row in records if row[5] is not None})
    doubtful: Mapping[int, Sequence[int]] = {}
    if groups:
        txn.execute(_DOUBTFUL, (groups, room_no))
        doubtful = dict(txn.fetchall())
    rows: list[_Row] = []
    for number, topological, stream_id, prev_nos, auth_nos, group, left_out, has_gap in records:
        in_state = [*doubtful.get(group, ()), *left_out]
        depends = frozenset([*prev_nos, *auth_nos, *in_state]).intersection(undone) - {number}
        event = EventToJudge(number, group, doubtful.get(group, ()), left_out)
        rows.append(
            _Row((topological, stream_id), number, depends, event, has_gap and group is None)
        )
    return rows


def _ready(rows: Sequence[_Row], limit: int, undone: Collection[int]) -> NextToJudge:
    """Sort the rows, as far as their dependencies are among them."""
    by_number = {row.event_no: row for row in rows}
    remaining = {row.event_no: len(row.dependencies) for row in rows}
    dependents: dict[int, list[int]] = {}
    for row in rows:
        for each in row.dependencies:
            dependents.setdefault(each, []).append(row.event_no)
    heap = [(row.place, row.event_no) for row in rows if not row.dependencies]
    heapify(heap)
    events: list[EventToJudge] = []
    needs_state: int | None = None
    while heap and len(events) < limit:
        _, number = heappop(heap)
        row = by_number[number]
        if row.needs_state:
            needs_state = number if needs_state is None else needs_state
            continue
        events.append(row.event)
        for each in dependents.get(number, ()):
            remaining[each] -= 1
            if not remaining[each]:
                heappush(heap, (by_number[each].place, each))
    return NextToJudge(events, needs_state, len(undone))
