"""The state groups of a room as a forest in which a group and its base differ little.

A Synapse stores a group whole after every hundred groups, and wherever states were resolved. Then nothing
says which group it is close to. Here it gets the closest of a few likely groups as its base, so that the
whole state is needed only while the group is read: what is kept of a room goes with what its states change,
not with their sizes.

Keys and events are numbers here (:class:`.EntryNumbers`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: Entries of a group, or of a state: the number of the key, the number of the event.
Entries = dict[int, int]

#: The place of a group in a forest that has no base.
ROOT = -1

#: Stands for the event of an entry that a group removes from the state of its base.
REMOVED = -1

#: Stands for the base of a group that has more than one.
SEVERAL = -2

#: Newest ends of branches that a group stored whole is compared with, besides those named.
_ENDS = 4

#: Maximum number of entries of whole states that are kept to compare with.
_KEPT_ENTRIES = 400_000


class BrokenGroup(StrEnum):
    """Why the state of a group cannot be put together."""

    NO_BASE = "no base"  # its base is not a group of the room
    SEVERAL_BASES = "several bases"
    CYCLE = "cycle"  # it is below itself
    BROKEN_BASE = "broken base"  # something below it is broken


@dataclass(slots=True)
class GroupForest:
    """The groups of a room, each with its base and what it changes of the base's state.

    Groups are known by their place, which is larger than that of their base. A base has no key that its
    groups do not have: like Synapse's, groups cannot remove entries. One that is stored so, as synrepl's may be, is
    taken as one stored whole.

    :ivar numbers: the number of each group
    :ivar bases: the place of each group's base, or :data:`ROOT`
    :ivar changes: the entries that differ from the base's; of a root, all
    :ivar stored_prevs: the base that is stored, a group number; None for a group stored whole
    :ivar stored_rows: the number of entries that are stored
    :ivar whole: of groups stored whole, the sum of the hashes of the entries that are stored
    :ivar broken: groups that are not in the forest, by number
    """

    numbers: list[int] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    changes: list[Entries] = field(default_factory=list)
    stored_prevs: list[int | None] = field(default_factory=list)
    stored_rows: list[int] = field(default_factory=list)
    whole: dict[int, int] = field(default_factory=dict)
    broken: dict[int, BrokenGroup] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def rows(self) -> int:
        """The number of entries that this forest has."""
        return sum(map(len, self.changes))


class ForestBuilder:
    """Makes the forest of a room from its groups, one by one.

    :param hashes: of an entry, given as key and event: its summand in digests
    :param kept_entries: maximum number of entries of whole states to keep to compare with
    """

    def __init__(
        self, hashes: Mapping[tuple[int, int], int], kept_entries: int = _KEPT_ENTRIES
    ) -> None:
        self._hashes = hashes
        self._kept_entries = kept_entries
        self._forest = GroupForest()
        self._places: dict[int, int] = {}
        self._waiting: dict[int, list[tuple[int, Entries]]] = defaultdict(list)
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, Entries] = OrderedDict()
        self._kept_now = 0

    def add(
        self, number: int, prev: int | None, entries: Entries, near: Iterable[int] = ()
    ) -> None:
        """Add a group, preferably after its base.

        :param prev: the base that is stored; None if the entries are the whole state;
            :data:`SEVERAL` if there is more than one
        :param entries: with :data:`REMOVED` for the event where one of the base's is removed
        :param near: groups that may be close, for a group stored whole
        """
        if prev == SEVERAL:
            self._forest.broken[number] = BrokenGroup.SEVERAL_BASES
            return
        if prev is None:
            place = self._add_whole(number, entries, near)
        elif prev in self._places:
            place = self._add_change(number, self._places[prev], entries)
        else:
            self._waiting[prev].append((number, entries))
            return
        self._attach_waiting(place)

    def finish(self) -> GroupForest:
        """The forest, with what is broken."""
        base_of = {number: prev for prev, groups in self._waiting.items() for number, _ in groups}
        broken = self._forest.broken
        missing = {prev for prev in self._waiting if prev not in base_of and prev not in broken}
        for number, prev in base_of.items():
            broken[number] = BrokenGroup.NO_BASE if prev in missing else BrokenGroup.BROKEN_BASE
        for number in _cycles(base_of):
            broken[number] = BrokenGroup.CYCLE
        return self._forest

    def _attach_waiting(self, place: int) -> None:
        ready = [place]
        while ready:
            below = ready.pop()
            prev = self._forest.numbers[below]
            for number, entries in self._waiting.pop(prev, ()):
                ready.append(self._add_change(number, below, entries))

    def _add_change(self, number: int, base: int, entries: Entries) -> int:
        prev = self._forest.numbers[base]
        if REMOVED not in entries.values():
            return self._append(number, base, entries, prev, len(entries))
        state = self.state(base)
        state.update(entries)
        whole = {key: event for key, event in state.items() if event != REMOVED}
        return self._add_whole(number, whole, [prev])

    def _append(self, number: int, base: int, change: Entries, prev: int | None, rows: int) -> int:
        forest = self._forest
        place = len(forest)
        forest.numbers.append(number)
        forest.bases.append(base)
        forest.changes.append(change)
        forest.stored_prevs.append(prev)
        forest.stored_rows.append(rows)
        self._places[number] = place
        self._ends.pop(base, None)
        self._ends[place] = None
        if len(self._ends) > 4 * _ENDS:
            self._ends.popitem(last=False)
        return place

    def _add_whole(self, number: int, entries: Entries, near: Iterable[int]) -> int:
        candidates = [self._places[each] for each in near if each in self._places]
        candidates += [each for each in list(self._ends)[-_ENDS:] if each not in candidates]
        base, change = ROOT, entries
        for candidate in candidates:
            found = self._closest(candidate, entries, len(change))
            if found is not None:
                base, change = found
        place = self._append(number, base, change, None, len(entries))
        hashes = self._hashes
        self._forest.whole[place] = sum([hashes[entry] for entry in entries.items()])
        self._keep(place, entries)
        return place

    def _closest(self, candidate: int, entries: Entries, limit: int) -> tuple[int, Entries] | None:
        """The closest of a group and those below it that can be the base, if better than ``limit``."""
        state = self.state(candidate)
        if state.keys() <= entries.keys():
            change = dict(entries.items() - state.items())
            return (candidate, change) if len(change) < limit else None
        # It has an entry that was removed: only what is below the group that added it can be the base.
        path = self._path(candidate)
        state, best, equal = {}, ROOT, 0
        for place in path:
            change = self._forest.changes[place]
            if not change.keys() <= entries.keys():
                break
            for key, event in change.items():
                equal += (entries[key] == event) - (state.get(key) == entries[key])
                state[key] = event
            if len(entries) - equal < limit:
                best, limit = place, len(entries) - equal
        if best == ROOT:
            return None
        return best, dict(entries.items() - self.state(best).items())

    def state(self, place: int) -> Entries:
        """The whole state of a group; the caller may change it."""
        changes: list[Entries] = []
        while place != ROOT and place not in self._kept:
            changes.append(self._forest.changes[place])
            place = self._forest.bases[place]
        state = {} if place == ROOT else dict(self._kept[place])
        for change in reversed(changes):
            state.update(change)
        return state

    def _path(self, place: int) -> list[int]:
        path = []
        while place != ROOT:
            path.append(place)
            place = self._forest.bases[place]
        return path[::-1]

    def _keep(self, place: int, entries: Entries) -> None:
        self._kept[place] = entries
        self._kept_now += len(entries)
        while self._kept_now > self._kept_entries and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._kept_now -= len(oldest)


def _cycles(base_of: Mapping[int, int]) -> set[int]:
    """The groups that are below themselves."""
    found: set[int] = set()
    seen: set[int] = set()
    for start in base_of:
        path: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in seen and at not in path:
            path[at] = None
            at = base_of.get(at)
        if at in path:
            members = list(path)
            found.update(members[members.index(at) :])
        seen.update(path)
    return found
