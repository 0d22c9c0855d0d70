"""State groups: numbered states, stored as differences to one another, with short chains.

The events of a room that have the same state share a group ("State" of the seed on room event storage).
A group is stored as a difference to an earlier group, down to one that is stored whole, and to read a
group means to read that chain. Chains are kept short by skip levels, as in a skip list: most groups
are a difference to the group before, some to one that is further away, and few to one that is
very far away (:class:`SkipLevels`). A difference over a longer distance is merged from the differences in
between, so planning a group costs what has changed, however large the room is.

Here is which difference to store, and how to put a state together. Where groups are kept is the
caller's business: functions whose names begin with ``lookup`` are lookups (:mod:`synrepl.rooms.lookups`).
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
    """How far differences reach.

    The groups of a line are counted from the last one that was stored whole. The number of a group,
    written with ``depth`` digits in base ``width``, says where it refers to: to the number with
    the last digit that is not 0 lowered by one. So 0x237 refers to 0x236, 0x230 to 0x220, 0x200 to 0x100.

    :ivar width: groups of one level
    :ivar depth: levels; after ``width ** depth`` groups, one is stored whole
    """

    width: int = 12
    depth: int = 4

    @property
    def line(self) -> int:
        """How many groups are counted, the whole one included."""
        return int(self.width**self.depth)

    @property
    def max_hops(self) -> int:
        """How many further groups must be read, at most, to read one."""
        return (self.width - 1) * self.depth

    def refers_to(self, place: int) -> int:
        """The number that a group with this number, which is not 0, is a difference to."""
        step = 1
        while place % (step * self.width) == 0:
            step *= self.width
        return place - step


#: Measured in docs/adr/0021-seams-for-rooms.md.
LEVELS = SkipLevels()


@dataclass(frozen=True, slots=True)
class StateGroup:
    """A group as it is stored.

    :ivar prev: the group that it is a difference to; None when it is stored whole
    :ivar delta: that difference, or the whole state
    :ivar place: its number since the last group of its line that was stored whole, which has 0
    """

    prev: int | None
    delta: Delta
    place: int


class StateGroupView(Protocol):
    """Reads stored groups."""

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        """Groups by number. There may be more in it than asked for, such as those further down."""
        ...


class StateGroupsRequest(NamedTuple):
    """Asks a :class:`StateGroupView` for stored groups."""

    groups: Collection[int]

    def ask(self, view: StateGroupView) -> Mapping[int, StateGroup]:
        """See :meth:`StateGroupView.state_groups`."""
        return view.state_groups(self.groups)


#: Reads a stored group; ``KeyError`` where there is none.
FetchGroup = Callable[[int], StateGroup]


def plan_group(
    state: StateMap,
    candidates: Iterable[tuple[int, StateMap]],
    fetch: FetchGroup,
    levels: SkipLevels = LEVELS,
) -> StateGroup:
    """How to store a state; see :func:`lookup_plan`."""
    return run(lookup_plan(state, candidates, levels), _Fetched(fetch))


def lookup_plan(
    state: StateMap, candidates: Iterable[tuple[int, StateMap]], levels: SkipLevels = LEVELS
) -> Lookup[StateGroup]:
    """How to store a state.

    When one of ``candidates`` is the same state, the answer refers to it with an empty delta: no new
    group is needed.

    :param candidates: groups, with their states, that the state may be close to, such as those of the events
        before; the closest is taken
    :raises UnknownStateGroup: one of ``candidates``, or of those below it, is not there
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
    """How to store a state that is known by its difference to a group; no state is looked at.

    :param size: how many entries the state has, if that is known
    :returns: None when the state is to be stored whole: its line is full, or a difference would be
        no smaller
    :raises UnknownStateGroup: ``prev``, or a group below it, is not there
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
            break  # it need not be read: it may be the whole one
        yield from chain.read((prev,))
        chain.stored(group)  # now that what it refers to is here, too
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
    """The states of some groups, which share what their chains share.

    Takes as many rounds as the longest chain has groups, or one where answers hold whole chains.

    :param known: states of groups that need not be read again; what is read shares with them
    :param slots: the room's, see :class:`~synrepl.rooms.state_map.CompactStateMap`
    :raises UnknownStateGroup: one of them, or of those below, is not there
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
    # Where chains meet, there is a state that several others share.
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
    """Groups that were read."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[int, StateGroup] = {}

    def read(self, groups: Collection[int]) -> Lookup[None]:
        """Read those that are not here yet."""
        missing = [each for each in groups if each not in self._groups]
        if missing:
            (found,) = yield (StateGroupsRequest(missing),)
            self._groups.update(found)

    def stored(self, group: int) -> StateGroup:
        """One that was read.

        :raises UnknownStateGroup: it is not there
        :raises BrokenChain: it refers to one that does not come before it
        """
        found = self._groups.get(group)
        if found is None:
            raise UnknownStateGroup(group=group)
        below = None if found.prev is None else self._groups.get(found.prev)
        # So a chain comes to an end whatever is in the database.
        if below is not None and below.place >= found.place:
            raise BrokenChain(group=group, prev=found.prev)
        return found


class StateGroups:
    """A :class:`StateGroupView` of groups in memory."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[int, StateGroup]) -> None:
        self._groups = groups

    def state_groups(self, groups: Collection[int]) -> Mapping[int, StateGroup]:
        """All that there are."""
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
    """A state with differences applied, the newest of which comes first."""
    touched: dict[StateKey, str | None] = {}
    for change in deltas:
        _add_older(touched, change)
    change = _delta_of(touched)
    return CompactStateMap(change.entries, slots) if base is None else base.with_delta(change)


def _add_older(touched: dict[StateKey, str | None], change: Delta) -> None:
    """Put a change before those that are known already; None stands for what is removed."""
    for key, event_id in change.entries.items():
        touched.setdefault(key, event_id)
    for key in change.removed:
        touched.setdefault(key, None)


def _delta_of(touched: Mapping[StateKey, str | None]) -> Delta:
    entries = {key: event_id for key, event_id in touched.items() if event_id is not None}
    return Delta(entries, frozenset(touched.keys() - entries.keys()))
