"""The forward extremities of a room whose events were judged again, and which backward extremities are followed.

An event is a forward extremity if it passed all checks, and no event that passed follows it, be it on top of events that
did not (:mod:`synrepl.rooms.extremities`). Verdicts change only among the events that were judged again, so only these
and what they follow are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags, unpassed_ancestors
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.pending_rows import array_text

_UNPASSED = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)


class NewEnds(NamedTuple):
    """The ends of a room after its events were judged again.

    :ivar old: the forward extremities before
    :ivar new: those now
    :ivar followed: missing events that an event follows which passed all checks, maybe on top of others
    """

    old: frozenset[int]
    new: frozenset[int]
    followed: frozenset[str]


class _JudgedAgain(NamedTuple):
    prev_nos: tuple[int, ...]
    passed_before: bool
    passed: bool


def new_ends(txn: Transaction, room_no: int) -> NewEnds:
    """The ends of a room once all outcomes take effect."""
    txn.execute(
        "SELECT e.event_no, e.prev_nos, e.flags, r.full_flags FROM synrepl._resync_events r"
        " JOIN synrepl._room_events e USING (event_no)"
        " WHERE r.room_no = %s AND e.stream_id IS NOT NULL",
        (room_no,),
    )
    nodes = {
        int(number): _JudgedAgain(
            tuple(prev_nos), not flags & _UNPASSED, not full_flags & _UNPASSED
        )
        for number, prev_nos, flags, full_flags in txn.fetchall()
    }
    outside = _unpassed_outside(txn, nodes)
    before = _superseded(nodes, outside, {n for n, each in nodes.items() if each.passed_before})
    after = _superseded(nodes, outside, {n for n, each in nodes.items() if each.passed})
    old = frozenset(forward_extremities(txn, room_no))
    revealed = (before.superseded - after.superseded - nodes.keys()) - outside.keys()
    candidates = {n for n, each in nodes.items() if each.passed}
    candidates |= (old - nodes.keys()) | revealed
    ends = candidates - after.superseded
    new = ends - old
    # Events that an older one follows were never extremities, although nothing here follows them.
    known = {n for n in new if n in nodes and nodes[n].passed_before and n not in before.superseded}
    followed = known | _followed_from_outside(txn, room_no, new - known, nodes)
    return NewEnds(old, frozenset(ends - followed), _missing(txn, room_no, after.expanded))


class _Followed(NamedTuple):
    """What passed events are on top of.

    :ivar superseded: events that are followed
    :ivar expanded: the events whose prev events are
    """

    superseded: set[int]
    expanded: set[int]


def _superseded(
    nodes: Mapping[int, _JudgedAgain],
    outside: Mapping[int, tuple[int, ...]],
    passed: Collection[int],
) -> _Followed:
    """What is followed by events that passed, directly or on top of others that did not."""
    superseded: set[int] = set()
    expanded: set[int] = set()
    ahead = list(passed)
    while ahead:
        number = ahead.pop()
        if number in expanded:
            continue
        expanded.add(number)
        prev_nos = nodes[number].prev_nos if number in nodes else outside[number]
        superseded.update(prev_nos)
        ahead += [
            each
            for each in prev_nos
            if (each in nodes and each not in passed) or (each not in nodes and each in outside)
        ]
    return _Followed(superseded, expanded)


def _unpassed_outside(
    txn: Transaction, nodes: Mapping[int, _JudgedAgain]
) -> dict[int, tuple[int, ...]]:
    """The prev events of events that came before the join and did not pass, as far as others are on top of them."""
    below = {each for node in nodes.values() for each in node.prev_nos} - nodes.keys()
    found = unpassed_ancestors(txn, below)
    return {
        number: tuple(each.prev_nos)
        for number, each in found.items()
        if number not in nodes and not each.passed_all_checks
    }


def _followed_from_outside(
    txn: Transaction, room_no: int, candidates: Collection[int], nodes: Mapping[int, _JudgedAgain]
) -> set[int]:
    """Those of some events that an event follows which came before the join. That there are any is rare."""
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._room_events e WHERE e.room_no = %s"
        " AND e.stream_id IS NOT NULL AND NOT EXISTS (SELECT FROM synrepl._resync_events r"
        "  WHERE r.event_no = e.event_no))",
        (room_no,),
    )
    (has_outside,) = txn.fetchone()
    if not candidates or not has_outside:
        return set()
    txn.execute(
        "SELECT p.event_no FROM synrepl._room_events e CROSS JOIN LATERAL unnest(e.prev_nos) AS p (event_no)"
        " WHERE e.room_no = %s AND e.stream_id IS NOT NULL AND e.prev_nos && %s::bigint[]"
        f" AND e.flags & {_UNPASSED} = 0 AND NOT EXISTS (SELECT FROM synrepl._resync_events r"
        "  WHERE r.event_no = e.event_no)",
        (room_no, array_text(sorted(candidates))),
    )
    return {int(number) for (number,) in txn.fetchall()}.intersection(candidates)


def _missing(txn: Transaction, room_no: int, expanded: Iterable[int]) -> frozenset[str]:
    """The missing prev events of events that are followed or passed."""
    txn.execute(
        "SELECT missing_id, child_no, is_followed, r.event_no IS NULL"
        " FROM synrepl._backward_extremities b"
        " LEFT JOIN synrepl._resync_events r ON r.event_no = b.child_no WHERE b.room_no = %s",
        (room_no,),
    )
    numbers = set(expanded)
    return frozenset(
        str(missing_id)
        for missing_id, child_no, is_followed, is_outside in txn.fetchall()
        if child_no in numbers or (is_outside and is_followed)
    )
