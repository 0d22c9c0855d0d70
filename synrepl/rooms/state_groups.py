"""State groups: numbered states, stored as differences to one another, with short chains.

Events of a room with the same state share a state group. A group is stored as a delta to an earlier group,
down to one that is stored in full; reading a group means reading that chain. Chains are kept short by skip
levels, as in a skip list: most groups are a delta to the previous group, some to one further back, and few
to one very far back (:class:`SkipLevels`). A delta over a longer distance is merged from the deltas in
between, so planning a group costs as much as has changed, however large the room is.

This module decides which delta to store, and puts states together. Storage is up to the caller: functions
whose names begin with ``lookup`` are lookups (:mod:`synrepl.rooms.lookups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from synrepl.core.errors import InputError, StorageError
from synrepl.rooms.lookups import Lookup, run
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots, delta


class UnknownStateGroup(InputError):
    """there is no state group {group}"""


class BrokenChain(StorageError):
    """state group {group} cannot be put together: group {prev}, which it refers to, does not come before it in its chain"""


class SkipLevels(NamedTuple):
    """How far back deltas reach.

    The groups of a line are numbered from the last one that was stored in full. The number of a group,
    written with ``depth`` digits in base ``width``, determines its base: the number whose last non-zero
    digit is lower by one. So 0x237 is a delta to 0x236, 0x230 to 0x220, 0x200 to 0x100.

    :ivar width: groups per level
    :ivar depth: number of levels; after ``width ** depth`` groups, one is stored in full
    """

    width: int = 12
    depth: int = 4

    @property
    def line(self) -> int:
        """Number of groups in a line, including the one stored in full."""
        return int(self.width**self.depth)

    @property
    def max_hops(self) -> int:
        """Maximum number of further groups to read in order to read one."""
        return (self.width - 1) * self.depth

    def refers_to(self, place: int) -> int:
        """The number of the base of a group with this number, which is not 0."""
        step = 1
        while place % (step * self.width) == 0:
            step *= self.width
        return place - step


#: Measured in docs/adr/0021-seams-for-rooms.md.
LEVELS = SkipLevels()


@dataclass(frozen=True, slots=True)
class StateGroup:
    """A state group as stored.

    :ivar prev: the group that it is a delta to; None when it is stored in full
    :ivar delta: the delta to ``prev``, or the full state
    :ivar place: its number in its line; 0 for the group that is stored in full
    """

    prev: int | None
    delta: Delta
    place: int


class StateGroupView(Protocol):
    """Reads stored groups."""

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        """Groups by number. The answer may have more, such as the rest of their chains."""
        ...


class StateGroupsRequest(NamedTuple):
    """Request to a :class:`StateGroupView` for stored groups."""

    groups: Collection[int]

    def ask(self, view: StateGroupView) -> Mapping[int, StateGroup]:
        """See :meth:`StateGroupView.state_groups`."""
        return view.state_groups(self.groups)


#: Reads a stored group; ``KeyError`` if there is none.
FetchGroup = Callable[[int], StateGroup]


def plan_group(
    state: StateMap,
    candidates: Iterable[tuple[int, StateMap]],
    fetch: FetchGroup,
    levels: SkipLevels = LEVELS,
) -> StateGroup:
    """Decide how to store a state; :func:`lookup_plan`, run on a function."""
    return run(lookup_plan(state, candidates, levels), _Fetched(fetch))


def lookup_plan(
    state: StateMap, candidates: Iterable[tuple[int, StateMap]], levels: SkipLevels = LEVELS
) -> Lookup[StateGroup]:
    """Decide how to store a state.

    When one of ``candidates`` is the same state, the result refers to it with an empty delta: no new
    group is needed.

    :param candidates: groups, with their states, that may be close to the state, such as those of the prev
        events; the closest becomes the base
    :raises UnknownStateGroup: one of ``candidates``, or of their chains, does not exist
    :raises BrokenChain: see :class:`BrokenChain`
    """
    closest: tuple[Delta, int] | None = None
    for group, other in candidates:
        change = delta(other, state)
        if closest is None or len(change) < len(closest[0]):
            closest = change, group
    plan = None
    if closest is not None:
        change, prev = closest
        plan = yield from lookup_change(prev, change, len(state), levels)
    return StateGroup(None, Delta(dict(state.items())), 0) if plan is None else plan


def lookup_change(
    prev: int, change: Delta, size: int | None = None, levels: SkipLevels = LEVELS
) -> Lookup[StateGroup | None]:
    """Decide how to store a state given as a delta to a group, without reading any state.

    :param size: number of entries of the state, if known
    :returns: None when the state is to be stored in full: its line is full, or a delta would be
        no smaller
    :raises UnknownStateGroup: ``prev``, or a group of its chain, does not exist
    :raises BrokenChain: see :class:`BrokenChain`
    """
    chain = _Chain()
    yield from chain.read((prev,))
    stored = chain.stored(prev)
    place = stored.place + 1
    if not change:
        return StateGroup(prev, change, place)
    if place >= levels.line:
        return None
    target = levels.refers_to(place)
    touched: dict[StateKey, str | None] = {**change.entries, **dict.fromkeys(change.removed)}
    while stored.place > target and stored.prev is not None:
        _add_older(touched, stored.delta)
        group, prev = prev, stored.prev
        if levels.refers_to(stored.place) <= target:
            break  # the base need not be read: it may be stored in full
        yield from chain.read((prev,))
        chain.stored(group)  # checked again, now that its base was read
        stored = chain.stored(prev)
    if size is not None and len(touched) >= size:
        return None
    return StateGroup(prev, _delta_of(touched), place)


def read_group(
    group: int,
    fetch: FetchGroup,
    known: Mapping[int, CompactStateMap] = MappingProxyType({}),
    slots: Slots | None = None,
) -> CompactStateMap:
    """The state of a group; see :func:`lookup_states`."""
    return run(lookup_states([group], known, slots), _Fetched(fetch))[group]


def lookup_states(
    groups: Collection[int],
    known: Mapping[int, CompactStateMap] = MappingProxyType({}),
    slots: Slots | None = None,
) -> Lookup[dict[int, CompactStateMap]]:
    """Read the states of some groups; they share memory where their chains meet.

    Takes as many rounds as the longest chain has groups, or one if answers contain whole chains.

    :param known: states of groups that need not be read; the results share memory with them
    :param slots: the room's, see :class:`~synrepl.rooms.state_map.CompactStateMap`
    :raises UnknownStateGroup: one of them, or of their chains, does not exist
    :raises BrokenChain: see :class:`BrokenChain`
    """
    slots = Slots() if slots is None else slots
    chain = _Chain()
    times: Counter[int] = Counter()
    ahead = {each for each in groups if each not in known}
    while ahead:
        yield from chain.read(ahead)
        below: set[int] = set()
        for group in ahead:
            prev = chain.stored(group).prev
            if prev is not None and prev not in known:
                times[prev] += 1
                if times[prev] == 1:
                    below.add(prev)
        ahead = below
    built: dict[int, CompactStateMap] = {each: known[each] for each in groups if each in known}
    # A state where chains meet is shared by several others.
    wanted = {each for each in groups if each not in known}
    wanted.update([each for each, count in times.items() if count > 1])
    for group in sorted(wanted, key=lambda each: chain.stored(each).place):
        deltas: list[Delta] = []
        at: int | None = group
        base = None
        while at is not None and base is None:
            stored = chain.stored(at)
            deltas.append(stored.delta)
            at = stored.prev
            if at is not None:
                base = built[at] if at in built else known.get(at)
        built[group] = _applied(base, deltas, slots)
    return {group: built[group] for group in groups}


class _Chain:
    """The groups that were read so far."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[int, StateGroup] = {}

    def read(self, groups: Collection[int]) -> Lookup[None]:
        """Read the groups that were not read before."""
        missing = [each for each in groups if each not in self._groups]
        if missing:
            (found,) = yield (StateGroupsRequest(missing),)
            self._groups.update(found)

    def stored(self, group: int) -> StateGroup:
        """A group that was read.

        :raises UnknownStateGroup: it does not exist
        :raises BrokenChain: its base does not come before it
        """
        found = self._groups.get(group)
        if found is None:
            raise UnknownStateGroup(group=group)
        below = None if found.prev is None else self._groups.get(found.prev)
        # This ends every chain, whatever the database contains.
        if below is not None and below.place >= found.place:
            raise BrokenChain(group=group, prev=found.prev)
        return found


class StateGroups:
    """A :class:`StateGroupView` over groups in memory."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[int, StateGroup]) -> None:
        self._groups = groups

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        """Those of the groups that exist."""
        return {each: self._groups[each] for each in groups if each in self._groups}


class _Fetched:
    """A :class:`StateGroupView` over a function that reads one group."""

    __slots__ = ("_fetch",)

    def __init__(self, fetch: FetchGroup) -> None:
        self._fetch = fetch

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        found = {}
        for group in groups:
            try:
                found[group] = self._fetch(group)
            except KeyError:
                continue
        return found


def _applied(
    base: CompactStateMap | None, deltas: Collection[Delta], slots: Slots
) -> CompactStateMap:
    """A state with deltas applied, given newest first."""
    touched: dict[StateKey, str | None] = {}
    for change in deltas:
        _add_older(touched, change)
    change = _delta_of(touched)
    return CompactStateMap(change.entries, slots) if base is None else base.with_delta(change)


def _add_older(touched: dict[StateKey, str | None], change: Delta) -> None:
    """Merge an older delta into newer changes; None marks a removed entry."""
    for key, event_id in change.entries.items():
        touched.setdefault(key, event_id)
    for key in change.removed:
        touched.setdefault(key, None)


def _delta_of(touched: Mapping[StateKey, str | None]) -> Delta:
    entries = {key: event_id for key, event_id in touched.items() if event_id is not None}
    return Delta(entries, frozenset(touched.keys() - entries.keys()))
