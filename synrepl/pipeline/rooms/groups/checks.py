"""Checks the state groups of a room against each other and against the events that they are the states of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.pipeline.rooms.groups.digests import StateSum
from synrepl.pipeline.rooms.groups.forest import ROOT, BrokenGroup, Entries, GroupForest
from synrepl.pipeline.rooms.groups.stream import EntryNumbers, StreamedEvent


class GroupFinding(StrEnum):
    """What is wrong with a state group, or with one of its entries."""

    UNREFERENCED = "unreferenced"  # no event has it, and no group that an event has builds on it
    NO_BASE = "no base"
    SEVERAL_BASES = "several bases"
    CYCLE = "cycle"
    BROKEN_BASE = "broken base"
    BASE_OF_ANOTHER_ROOM = "base of another room"
    EVENT_OF_ANOTHER_ROOM = "event of another room"  # an event of another room has it as its state
    NO_GROUP = "no group"  # an event has a state group that is not there, or entries have none
    ENTRY_OF_ANOTHER_ROOM = "entry of another room"
    ENTRY_OF_ANOTHER_KEY = "entry of another key"  # the event has another type or state key
    ENTRY_WITHOUT_EVENT = "entry without event"
    WRONG_STATE = "wrong state"  # it does not follow from the states after the prev events


class CheckedGroup(NamedTuple):
    """A finding.

    :ivar event: the event after which the state is wrong, with the first entry that is
    """

    group: int
    finding: GroupFinding
    event: StreamedEvent | None = None
    entry: tuple[int, int | None] | None = None


_BROKEN = {
    BrokenGroup.NO_BASE: GroupFinding.NO_BASE,
    BrokenGroup.SEVERAL_BASES: GroupFinding.SEVERAL_BASES,
    BrokenGroup.CYCLE: GroupFinding.CYCLE,
    BrokenGroup.BROKEN_BASE: GroupFinding.BROKEN_BASE,
}


def unreferenced(stored: Mapping[int, int | None], used: Sequence[int]) -> Iterator[int]:
    """The groups that no event has, directly or below its group.

    :param stored: by group, the base that is stored
    :param used: the groups that events have
    """
    needed: set[int] = set()
    for group in used:
        at: int | None = group
        while at is not None and at not in needed:
            needed.add(at)
            at = stored.get(at)
    return (group for group in stored if group not in needed)


def broken_groups(forest: GroupForest) -> Iterator[CheckedGroup]:
    """The groups whose states cannot be put together."""
    for number, why in forest.broken.items():
        yield CheckedGroup(number, _BROKEN[why])


class StateChecks:
    """Whether the states after events follow from those after their prev events.

    Where these are all the same, the state must be that one with the event's own entry. Where they differ, they were
    resolved: what all of them have must be in the result. The rest is the job of ``verify``.
    """

    def __init__(
        self, forest: GroupForest, sums: Sequence[StateSum], numbers: EntryNumbers
    ) -> None:
        self._forest = forest
        self._sums = sums
        self._numbers = numbers
        self._places = {number: place for place, number in enumerate(forest.numbers)}

    def check(self, events: Sequence[StreamedEvent]) -> Iterator[CheckedGroup]:
        """The events' states that do not follow."""
        places = {
            event.event_id: self._places[event.group]
            for event in events
            if event.group in self._places
        }
        for event in events:
            place = places.get(event.event_id)
            befores = [places.get(prev) for prev in event.prev_event_ids]
            if place is None or not befores or None in befores:
                continue
            known = [each for each in befores if each is not None]
            wrong = self._wrong(event, place, known)
            if wrong is not None:
                yield CheckedGroup(event.group or 0, GroupFinding.WRONG_STATE, event, wrong)

    def _wrong(
        self, event: StreamedEvent, place: int, befores: Sequence[int]
    ) -> tuple[int, int | None] | None:
        own: tuple[int, int] | None = None
        if event.state_key is not None and event.accepted:
            own = self._numbers.entry(event.type, event.state_key, event.event_id)
        if len({self._sums[each] for each in befores}) == 1:
            return self._differs(place, befores[0], own)
        return self._lost(place, befores, own)

    def _differs(
        self, place: int, before: int, own: tuple[int, int] | None
    ) -> tuple[int, int | None] | None:
        """An entry that is not that of the state before, nor the event's own."""
        if own is None:
            if self._sums[place] == self._sums[before]:
                return None
        elif self._forest.bases[place] == before and self._forest.changes[place] == dict([own]):
            return None
        else:
            size, total = self._sums[before]
            old = self._entry(before, own[0])
            hashes = self._numbers.hashes
            total += hashes[own] - (0 if old is None else hashes[own[0], old])
            if self._sums[place] == StateSum(size + (old is None), total % (1 << 128)):
                return None
        state, expected = self._state(place), self._state(before)
        if own is not None:
            expected[own[0]] = own[1]
        keys = [key for key in expected.keys() | state if expected.get(key) != state.get(key)]
        first = min(keys)
        return first, state.get(first)

    def _lost(
        self, place: int, befores: Sequence[int], own: tuple[int, int] | None
    ) -> tuple[int, int | None] | None:
        """The event's own entry, or one that all states before have, that is not in the state."""
        if own is not None and self._entry(place, own[0]) != own[1]:
            return own[0], self._entry(place, own[0])
        if place in befores:
            return None
        is_near = self._forest.bases[place] in befores
        keys = self._forest.changes[place] if is_near else self._state(befores[0])
        for key in keys:
            if own is not None and key == own[0]:
                continue
            first, *others = {self._entry(each, key) for each in befores}
            stored = self._entry(place, key)
            if not others and first is not None and stored != first:
                return key, stored
        return None

    def _entry(self, place: int, key: int) -> int | None:
        while place != ROOT:
            event = self._forest.changes[place].get(key)
            if event is not None:
                return event
            place = self._forest.bases[place]
        return None

    def _state(self, place: int) -> Entries:
        changes = []
        while place != ROOT:
            changes.append(self._forest.changes[place])
            place = self._forest.bases[place]
        state: Entries = {}
        for change in reversed(changes):
            state.update(change)
        return state
