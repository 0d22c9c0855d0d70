"""State groups: states under numbers, stored as differences to others, not too many of them in a row.

The events of a room that have the same state share a group ("State" of the seed on room event storage).
A group is stored as what differs from another group, down to one that is stored whole, and to read a
group means to read all of these. Here is which difference to store, and how to put a state together;
where groups are kept is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from synrepl.core.errors import InputError, StorageError
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots, delta

#: How many further groups must be read, at most, to read one.
MAX_CHAIN = 48


class UnknownStateGroup(InputError):
    """there is no state group {group}"""


class BrokenChain(StorageError):
    """state group {group} cannot be put together: group {prev}, which it refers to, has no shorter chain than itself"""


@dataclass(frozen=True, slots=True)
class StateGroup:
    """A group as it is stored.

    :ivar prev: the group that it is a difference to; None when it is stored whole
    :ivar delta: that difference, or the whole state
    :ivar chain: how many further groups must be read for this one: one more than for ``prev``
    """

    prev: int | None
    delta: Delta
    chain: int


#: Reads a stored group; ``KeyError`` where there is none.
Fetch = Callable[[int], StateGroup]


def plan_group(
    state: StateMap,
    near: Iterable[tuple[int, StateMap]],
    fetch: Fetch,
    limit: int = MAX_CHAIN,
) -> StateGroup:
    """How to store a state.

    When one of ``near`` is the same state, the answer refers to it with an empty delta: no new
    group is needed.

    :param near: groups, with their states, that the state may be close to, such as those of the events
        before; the closest is taken
    :param limit: the longest chain that there may be
    :raises UnknownStateGroup: one of ``near``, or of those below it, is not there
    :raises BrokenChain: see :class:`BrokenChain`
    """
    closest: tuple[Delta, int] | None = None
    for group, other in near:
        change = delta(other, state)
        if closest is None or len(change) < len(closest[0]):
            closest = change, group
    if closest is None:
        return _whole(state)
    change, prev = closest
    chain = _fetched(prev, fetch).chain + 1
    if not change:
        return StateGroup(prev, change, chain)
    if chain > limit:
        return _shorter(state, prev, change, fetch, limit)
    return StateGroup(prev, change, chain) if len(change) < len(state) else _whole(state)


def _whole(state: StateMap) -> StateGroup:
    return StateGroup(None, Delta(dict(state.items())), 0)


def _shorter(state: StateMap, prev: int, change: Delta, fetch: Fetch, limit: int) -> StateGroup:
    """A difference to one of the groups further down, or the whole state.

    The further down, the larger it is, and the more groups can follow before the chain is too long
    again; taken is what costs least for each of these.

    :param change: the difference to ``prev``, whose chain is as long as may be
    """
    touched = {*change.entries, *change.removed}
    base, least = None, len(state) / (limit + 1)
    for group, stored in _chain(prev, fetch):
        if stored.chain < limit:
            # No more than this differ from that group.
            cost = len(touched) / (limit - stored.chain)
            if cost < least:
                base, least = (group, stored.chain), cost
        touched.update(stored.delta.entries, stored.delta.removed)
    if base is None:
        return _whole(state)
    below, chain = base
    return StateGroup(below, delta(read_group(below, fetch), state), chain + 1)


def read_group(
    group: int,
    fetch: Fetch,
    known: Mapping[int, CompactStateMap] = MappingProxyType({}),
    slots: Slots | None = None,
) -> CompactStateMap:
    """The state of a group.

    :param known: states of groups that need not be read again; what is read shares with them
    :param slots: the room's, see :class:`~synrepl.rooms.state_map.CompactStateMap`
    :raises UnknownStateGroup: it, or one of those below it, is not there
    :raises BrokenChain: see :class:`BrokenChain`
    """
    if group in known:
        return known[group]
    deltas: list[Delta] = []
    base = None
    for _, stored in _chain(group, fetch):
        deltas.append(stored.delta)
        base = None if stored.prev is None else known.get(stored.prev)
        if base is not None:
            break
    if base is not None:
        return base.with_delta(_merged(reversed(deltas)))
    built: dict[StateKey, str] = {}
    for change in reversed(deltas):
        _apply(change, built)
    return CompactStateMap(built, slots)


def _chain(group: int, fetch: Fetch) -> Iterator[tuple[int, StateGroup]]:
    """A group and those below it, down to the one that is stored whole."""
    stored = _fetched(group, fetch)
    yield group, stored
    while stored.prev is not None:
        below = _fetched(stored.prev, fetch)
        # So it comes to an end whatever is in the database.
        if below.chain >= stored.chain:
            raise BrokenChain(group=group, prev=stored.prev)
        yield stored.prev, below
        group, stored = stored.prev, below


def _fetched(group: int, fetch: Fetch) -> StateGroup:
    try:
        return fetch(group)
    except KeyError:
        raise UnknownStateGroup(group=group) from None


def _apply(change: Delta, state: dict[StateKey, str]) -> None:
    state.update(change.entries)
    for key in change.removed:
        state.pop(key, None)


def _merged(changes: Iterable[Delta]) -> Delta:
    """One delta that does what these do one after another."""
    entries: dict[StateKey, str] = {}
    removed: set[StateKey] = set()
    for change in changes:
        entries.update(change.entries)
        removed.difference_update(change.entries)
        for key in change.removed:
            entries.pop(key, None)
        removed.update(change.removed)
    return Delta(entries, frozenset(removed))
