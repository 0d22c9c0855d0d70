"""Synthetic rooms: which state keys change in which order, along which graph, and the state groups that follow.

A room is a list of :class:`Step`, one per state event, in the order in which they arrive.
:func:`history_of` turns it into state groups. Everything is deterministic. States are resolved by a rule
that is enough for measuring storage: the newest event of a key wins.

Numbers of events and groups are spaced, as in a server that stores many other rooms, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from synrepl.rooms import CompactStateMap, Delta, Slots, StateKey, delta

#: A change of a state: slot to event number, or None where the entry is removed.
Change = Mapping[int, int | None]

#: The first state events of every room.
FIRST_KEYS: tuple[StateKey, ...] = (
    ("m.room.create", ""),
    ("m.room.member", "@creator:a.example"),
    ("m.room.power_levels", ""),
    ("m.room.join_rules", ""),
    ("m.room.history_visibility", ""),
)

#: Events that a server has stored before these rooms: their numbers need more than 32 bits.
_EVENTS_BEFORE = 5_000_000_000
_EVENTS_PER_GROUP = 13
_GROUPS_BEFORE = 1_000_000_000

#: One in so many entries in conflict is removed where branches meet.
_LOST = 50


class Step(NamedTuple):
    """A state event.

    :ivar parents: indices of the events that it follows, in the same list
    :ivar key: what it sets
    """

    parents: tuple[int, ...]
    key: StateKey


class Stretch(NamedTuple):
    """A backfilled stretch of state events, each following the last, that ends where the known events begin.

    The state before the first of them was given by another server.

    :ivar keys: what the events set, the oldest first
    """

    keys: tuple[StateKey, ...]


class Joined(NamedTuple):
    """The state that another server gave when this one joined; the first of a room's steps."""

    keys: tuple[StateKey, ...]


Steps = list[Step | Stretch | Joined]


@dataclass(frozen=True, slots=True)
class HistoryGroup:
    """A state group: the state after a state event.

    :ivar parents: the groups whose states were resolved, the closest first; empty for the first group
    :ivar change: from the first of ``parents``, or the whole state
    :ivar size: number of entries of the state
    :ivar is_earlier: it is the state before a backfilled stretch, whose parent comes after it in the room;
        the groups of the stretch are stored with it
    """

    number: int
    parents: tuple[int, ...]
    change: Change
    size: int
    is_earlier: bool = False


@dataclass(slots=True)
class History:
    """The state groups of a room, in the order in which they are stored, and their states."""

    name: str
    slots: Slots
    groups: list[HistoryGroup] = field(default_factory=list)
    states: dict[int, CompactStateMap] = field(default_factory=dict)

    def state(self, group: int) -> dict[int, int]:
        """The state of a group, by slot."""
        numbers = self.slots.numbers
        return {numbers[key]: int(event) for key, event in self.states[group].as_dict().items()}

    def change(self, old: int, new: int) -> dict[int, int | None]:
        """What turns one state into another."""
        return _by_slot(delta(self.states[old], self.states[new]), self.slots)

    def forks(self, at: int, many: int) -> list[HistoryGroup]:
        """Further groups, each a change of one entry to the group with index ``at``."""
        base = self.groups[at].number
        found = []
        for nth in range(many):
            number = max(self.states) + 1
            key = self.slots.keys[len(FIRST_KEYS) + nth % (len(self.slots.keys) - len(FIRST_KEYS))]
            state = self.states[base].with_entry(key, str(_event_of(number)))
            self.states[number] = state
            found.append(HistoryGroup(number, (base,), self.change(base, number), len(state)))
        return found


def history_of(
    name: str, steps: Iterable[Step | Stretch | Joined], room: int = 0, rooms: int = 1
) -> History:
    """The state groups of a room.

    :param room: the number of the room among ``rooms`` that are stored at the same time
    """
    history = History(name, Slots())
    oldest: int | None = None
    after: list[int] = []
    numbers = count(_GROUPS_BEFORE + room, rooms)
    for step in steps:
        if isinstance(step, Stretch):
            assert oldest is not None
            oldest = _add_stretch(history, oldest, step, numbers)
            continue
        number = next(numbers)
        if isinstance(step, Joined):
            entries = {key: str(_event_of(number) - nth) for nth, key in enumerate(step.keys)}
            _add(history, number, CompactStateMap(entries, history.slots), ())
            after.append(number)
            oldest = number
            continue
        parents = sorted({after[each] for each in step.parents})
        state, closest = _resolved(history, parents)
        _add(history, number, state.with_entry(step.key, str(_event_of(number))), closest)
        after.append(number)
        oldest = number if oldest is None else oldest
    return history


def _add_stretch(history: History, oldest: int, stretch: Stretch, numbers: Iterator[int]) -> int:
    """Add a stretch that ends before group ``oldest``; returns the group at its beginning."""
    end = history.states[oldest]
    keys = [key for key in stretch.keys if key in end]
    state, start = end, next(numbers)
    for nth, key in enumerate(keys):
        if nth % 5:
            state = state.with_entry(key, str(_event_of(start) - 1 - nth))
        else:
            state = state.with_delta(Delta({}, frozenset([key])))
    _add(history, start, state, (oldest,), True)
    before = start
    for key in keys:
        number = next(numbers)
        state = state.with_entry(key, end[key])
        _add(history, number, state, (before,))
        before = number
    return start


def _add(
    history: History,
    number: int,
    state: CompactStateMap,
    parents: tuple[int, ...],
    is_earlier: bool = False,
) -> None:
    base = history.states[parents[0]] if parents else CompactStateMap(None, history.slots)
    change = _by_slot(delta(base, state), history.slots)
    history.states[number] = state
    history.groups.append(HistoryGroup(number, parents, change, len(state), is_earlier))


def _resolved(history: History, parents: Sequence[int]) -> tuple[CompactStateMap, tuple[int, ...]]:
    """The resolution of some groups, and the groups with the closest first."""
    if not parents:
        return CompactStateMap(None, history.slots), ()
    if len(parents) == 1:
        return history.states[parents[0]], (parents[0],)
    first = history.states[parents[0]]
    newest: dict[StateKey, int] = {}
    for parent in parents[1:]:
        for key, event in delta(first, history.states[parent]).entries.items():
            newest[key] = max(newest.get(key, 0), int(event))
    wins = {
        key: str(event)
        for key, event in newest.items()
        if key not in first or event > int(first[key])
    }
    lost = frozenset(key for key, event in wins.items() if int(event) % _LOST == 0)
    kept = {key: event for key, event in wins.items() if key not in lost}
    state = first.with_delta(Delta(kept, lost))
    return state, tuple(sorted(parents, key=lambda each: len(delta(history.states[each], state))))


def _by_slot(change: Delta, slots: Slots) -> dict[int, int | None]:
    found: dict[int, int | None] = {
        slots.number(key): int(event) for key, event in change.entries.items()
    }
    found.update((slots.number(key), None) for key in change.removed)
    return found


def _event_of(group: int) -> int:
    return _EVENTS_BEFORE + (group - _GROUPS_BEFORE) * _EVENTS_PER_GROUP


def member(number: int) -> StateKey:
    """The key of a user's membership."""
    return "m.room.member", f"@user{number}:a.example"


def linear(members: int, events: int) -> list[Step]:
    """All members join, then random ones leave, join again, or change their name; each event follows the last."""
    chance = random.Random(2)
    steps = _first_steps()
    for number in range(events):
        key = member(number if number < members else chance.randrange(members))
        steps.append(Step((len(steps) - 1,), key))
    return steps


def forked(members: int, events: int, width: int, length: int = 5) -> list[Step]:
    """After all have joined, ``width`` branches of ``length`` events each, which then meet, again and again."""
    chance = random.Random(width)
    steps = linear(members, members)
    while len(steps) < events:
        ends = [len(steps) - 1] * width
        for _ in range(length):
            for branch in range(width):
                steps.append(Step((ends[branch],), member(chance.randrange(members))))
                ends[branch] = len(steps) - 1
        # At most 10 parents, as servers do it; so wide forks take several events to meet.
        while len(ends) > 1:
            meeting, ends = ends[:10], ends[10:]
            steps.append(Step(tuple(meeting), member(chance.randrange(members))))
            ends.append(len(steps) - 1)
    return steps


def netsplit(members: int, others: int, splits: int) -> list[Step]:
    """A bridged room: all members leave at once, and come back at once, citing the same event.

    :param others: events of others that cite the same event; with the members, the number of
        forward extremities
    """
    chance = random.Random(members)
    steps = linear(members, members)
    for _ in range(splits):
        for _ in "leave", "join":
            fork = len(steps) - 1
            order = list(range(members)) + [chance.randrange(members) for _ in range(others)]
            chance.shuffle(order)
            ends = []
            for number in order:
                steps.append(Step((fork,), member(number)))
                ends.append(len(steps) - 1)
            while len(ends) > 1:
                meeting, ends = ends[:10], ends[10:]
                steps.append(Step(tuple(meeting), member(chance.randrange(members))))
                ends.append(len(steps) - 1)
    return steps


def backfilled(members: int, live: int, stretches: int) -> Steps:
    """A room of ``members`` that goes on for ``live`` events; then its past is fetched, 100 events at a time."""
    chance = random.Random(3)
    keys = (*FIRST_KEYS, *map(member, range(members)))
    steps: Steps = [Joined(keys)]
    steps += [Step((nth,), member(chance.randrange(members))) for nth in range(live)]
    chosen = [chance.sample(range(members), min(100, members)) for _ in range(stretches)]
    return steps + [Stretch(tuple(map(member, numbers))) for numbers in chosen]


def _first_steps() -> list[Step]:
    return [Step((nth - 1,) if nth else (), key) for nth, key in enumerate(FIRST_KEYS)]


#: The workloads by name, with the number of members and events of a full run.
WORKLOADS: Mapping[str, Callable[[float], Sequence[Step | Stretch | Joined]]] = {
    "linear": lambda factor: linear(int(10_000 * factor), int(50_000 * factor)),
    "fork of 2": lambda factor: forked(int(4_900 * factor), int(10_136 * factor), 2),
    "fork of 8": lambda factor: forked(int(4_900 * factor), int(10_136 * factor), 8),
    "fork of 40": lambda factor: forked(int(4_900 * factor), int(10_136 * factor), 40),
    "netsplit": lambda factor: netsplit(int(1_400 * factor), int(200 * factor), 2),
    "backfilled": lambda factor: backfilled(
        int(4_900 * factor), int(3_000 * factor), int(70 * factor)
    ),
}
