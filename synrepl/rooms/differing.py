"""The events in which several states differ, and what only some of their auth chains contain.

After a netsplit a room has as many states as conflicted keys, and each state differs from the next in few
of them. So everything here takes the events of one state and the changes from it to each of the others, and
the cost goes with these, not with states times keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple


class EventChange(NamedTuple):
    """What turns the events of one state into those of another.

    :ivar added: events that the first state does not have
    :ivar removed: places of events in the first state
    """

    added: Collection[str]
    removed: Collection[int]


class DifferingEvents(NamedTuple):
    """For each of several states, its events that are not in all of them.

    :ivar first: those of the first state; twice, if it has them under two keys
    :ivar changes: for each other state, how it differs from the first
    """

    first: Sequence[str]
    changes: Sequence[EventChange]

    @classmethod
    def of_states(cls, states: Sequence[Collection[str]]) -> DifferingEvents:
        """From the events of each state, at least one; they may include events of all states."""
        first = list(states[0])
        known = frozenset(first)
        wholes = map(frozenset, states[1:])
        changes = [
            EventChange(
                whole - known, [place for place, each in enumerate(first) if each not in whole]
            )
            for whole in wholes
        ]
        return cls(first, changes)

    def events(self) -> set[str]:
        """The events of all states."""
        return set(self.first).union(*[change.added for change in self.changes])


def bits_of_some(differing: DifferingEvents, full: Mapping[str, int]) -> int:
    """The bits that at least one of the states has, and another one has not.

    :param full: the bits of each event
    """
    of_first = [full[each] for each in differing.first]
    counts = _BitCounts(of_first)
    new = lost = 0
    for change in differing.changes:
        added = reduce(or_, [full[each] for each in change.added], 0)
        new |= added
        lost |= counts.lost_without([of_first[place] for place in change.removed]) & ~added
    return new & ~reduce(or_, of_first, 0) | lost


class _BitCounts:
    """In how many of some integers each bit is set: the n-th plane holds bit n of each of these counts."""

    __slots__ = ("_planes",)

    def __init__(self, numbers: Collection[int]) -> None:
        self._planes: list[int] = []
        for bits in numbers:
            self._add(bits)

    def _add(self, bits: int) -> None:
        planes = self._planes
        for at, plane in enumerate(planes):
            planes[at], bits = plane ^ bits, plane & bits
            if not bits:
                return
        if bits:
            planes.append(bits)

    def lost_without(self, numbers: Collection[int]) -> int:
        """The bits that are set in these numbers, which are among those counted, and in no other."""
        without = _BitCounts(numbers)._planes
        lost = reduce(or_, without, 0)
        for at, plane in enumerate(self._planes):
            lost &= ~(plane ^ without[at] if at < len(without) else plane)
        return lost


def events_of_some(
    differing: DifferingEvents, ordered: Sequence[str], references: Mapping[str, Sequence[str]]
) -> set[str]:
    """The events in the chains of at least one of the states, and not of another one; the states' own included.

    :param ordered: all events of the chains that matter; each comes after those that it refers to
    :param references: by event, what it refers to
    """
    # Which places of the first state each event is reached from.
    places = dict.fromkeys(ordered, 0)
    for place, each in enumerate(differing.first):
        if each in places:
            places[each] |= 1 << place
    for each in reversed(ordered):
        for cited in references.get(each, ()):
            if cited in places:
                places[cited] |= places[each]
    found = {each for each, reached in places.items() if not reached}

    def reached_without(starts: Collection[str], gone: int) -> set[str]:
        """What is reached from here, and from no place of the first state but these."""
        reached = set[str]()
        ahead = list(starts)
        while ahead:
            each = ahead.pop()
            # What refers to an event is reached from fewer places than the event, so none is passed over.
            if each in places and each not in reached and places[each] | gone == gone:
                reached.add(each)
                ahead.extend(references.get(each, ()))
        return reached

    for change in differing.changes:
        gone = sum([1 << place for place in change.removed])
        lost = reached_without([differing.first[place] for place in change.removed], gone)
        if lost:
            found |= lost - reached_without(change.added, gone)
    return found
