"""The state after several events of a room, by state resolution where their states differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Generic

from synrepl.rooms.auth.selection import auth_event_keys
from synrepl.rooms.chains import auth_dependencies
from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE_KEY, POWER_LEVELS_KEY
from synrepl.rooms.judged import NoState, NotJudged
from synrepl.rooms.lookups import Lookup
from synrepl.rooms.resolution.conflict import Conflict
from synrepl.rooms.resolution.resolve import resolve_conflict
from synrepl.rooms.resolution.trace import ResolutionTrace
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import Delta
from synrepl.rooms.versions import Resolution, RoomVersion
from synrepl.rooms.view import (
    HEADS,
    AuthChainFacts,
    AuthChainsRequest,
    ConflictRequest,
    DifferencesRequest,
    EntriesRequest,
    EventsRequest,
    RoomHeads,
    S,
    StateAt,
    StatesRequest,
)

#: Number of resolved states in the cache.
MAX_CACHED = 512


class ResolutionCache(Generic[S]):
    """The last resolved states of one room."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[frozenset[int], tuple[Sequence[S], S]] = {}

    def get(self, states: Sequence[S]) -> S | None:
        """The resolution of these very handles, in any order."""
        found = self._results.get(frozenset(map(id, states)))
        return None if found is None else found[1]

    def add(self, states: Sequence[S], resolved: S) -> None:
        """Add a result; evicts the oldest when full."""
        if len(self._results) >= MAX_CACHED:
            del self._results[next(iter(self._results))]
        # The handles are kept alive, so that their ids are not reused.
        self._results[frozenset(map(id, states))] = states, resolved

    def clear(self) -> None:
        """Drop all results, because the set of rejected events has changed."""
        self._results.clear()


def lookup_state_after(
    version: RoomVersion, event_ids: Collection[str], cache: ResolutionCache[S] | None = None
) -> Lookup[S]:
    """The state after several events: the resolution of their states after.

    :raises NotJudged: one of them is not known
    :raises NoState: one of them is an outlier
    """
    heads: RoomHeads[S]
    heads, at = yield (HEADS, StatesRequest(event_ids))
    if not event_ids:
        return heads.empty_state
    states: list[S] = states_after(at, event_ids, heads.room_id)
    return (yield from lookup_resolved_state(version, states, cache))


def states_after(
    at: Mapping[str, StateAt[S]], event_ids: Collection[str], room_id: str | None
) -> list[S]:
    """The states after some events.

    :raises NotJudged: one of them is not known
    :raises NoState: one of them is an outlier
    """
    states: list[S] = []
    for event_id in event_ids:
        found = at.get(event_id)
        if found is None:
            raise NotJudged(event_id=event_id, room_id=room_id)
        state = found.state_after
        if state is None:
            raise NoState(event_id=event_id)
        states.append(state)
    return states


def lookup_resolved_state(
    version: RoomVersion,
    states: Sequence[S],
    cache: ResolutionCache[S] | None = None,
    keys: Sequence[StateKey] | None = None,
) -> Lookup[S]:
    """Resolve states; identical or equal states need no resolution.

    Each state is compared only with the first, so the cost is linear in their number. Duplicates that
    remain do not change the resolution.

    :param states: at least one
    :param cache: of results; states that are in it are not compared
    :param keys: if given, only the entries of these keys matter. When all states have the same entries for
        all of them, the first state is returned, because unconflicted entries survive resolution. A key
        that none of the states has may still appear in the resolved state
    """
    first = states[0]
    if len(states) == 1:
        return first
    resolved = None if cache is None else cache.get(states)
    if resolved is not None:
        return resolved
    if keys is not None:
        (found,) = yield (EntriesRequest(states, keys),)
        entries = found[0]
        if None not in entries and all(each == entries for each in found):
            return first
    once = {id(state): state for state in states}
    different = [state for state in once.values() if state is first or state != first]
    if len(different) == 1:
        return first
    return (yield from _lookup_cached_resolution(version, different, cache))


def _lookup_cached_resolution(
    version: RoomVersion, states: Sequence[S], cache: ResolutionCache[S] | None
) -> Lookup[S]:
    resolved = None if cache is None else cache.get(states)
    if resolved is None:
        resolved = yield from lookup_resolution(version, states)
        if cache is not None:
            cache.add(states, resolved)
    return resolved


def lookup_resolution(
    version: RoomVersion, states: Sequence[S], trace: ResolutionTrace | None = None
) -> Lookup[S]:
    """Resolve states. All data is read up front, in a few rounds however large the states are.

    :param states: at least two
    :param trace: filled with what was done
    :raises UnknownEvent: an event of a state, or of an auth chain, is not known
    """
    first = states[0]
    (changes,) = yield (DifferencesRequest(states),)
    keys: set[StateKey] = set()
    for change in changes:
        keys.update(change.entries, change.removed)
    if not keys:
        return first
    entries = yield from _lookup_entries(first, {*keys, POWER_LEVELS_KEY, CREATE_KEY})
    conflict = Conflict([entries], keys, changes)
    known = _Prefetched()
    if version.resolution is Resolution.V1:
        facts = AuthChainFacts(frozenset(), frozenset(), {})
        yield (ConflictRequest(set().union(*conflict.candidates().values())),)
    else:
        with_subgraph = version.resolution is Resolution.V2_1
        request = AuthChainsRequest(conflict.differing_events(), first, keys, with_subgraph)
        (facts,) = yield (request,)
    full = set().union(*conflict.candidates().values(), facts.difference, facts.subgraph)
    yield from known.lookup(full)
    events = [known.events[each] for each in full if each in known.events]
    # The rules read what authorises each event: unconflicted entries, or else its auth events.
    looked_at = {key for event in events for key in auth_event_keys(event)}
    looked_at.update([(each.type, each.state_key) for each in events if each.state_key is not None])
    looked_at.difference_update(entries, keys)
    cited = {each for event in events for each in auth_dependencies(event)}
    unconflicted = yield from _lookup_entries(first, looked_at)
    entries.update(unconflicted)
    yield from known.lookup(cited.union(entries.values()))
    resolved = resolve_conflict(
        version, conflict, known.events.__getitem__, _PrefetchedChains(facts), known.rejected, trace
    )
    return _resolved_handle(states, conflict, resolved)


def _lookup_entries(state: S, keys: Collection[StateKey]) -> Lookup[dict[StateKey, str]]:
    ordered_keys = tuple(keys)
    if not ordered_keys:
        return {}
    ((found,),) = yield (EntriesRequest((state,), ordered_keys),)
    pairs = zip(ordered_keys, found, strict=True)
    return {key: event_id for key, event_id in pairs if event_id is not None}


def _resolved_handle(
    states: Sequence[S], conflict: Conflict, resolved: Mapping[StateKey, str]
) -> S:
    """The handle of the resolved state: that of one of the states, if they are equal."""
    first = states[0]
    change = conflict.resolution_delta(resolved)
    made = first.with_delta(change) if change else first
    # Identical handles are cheaper to compare later.
    return next((state for state in states if state == made), made)


class _Prefetched:
    """Events that were read, and the rejected ones among them."""

    __slots__ = ("events", "rejected")

    def __init__(self) -> None:
        self.events: dict[str, Event] = {}
        self.rejected: set[str] = set()

    def lookup(self, event_ids: Set[str]) -> Lookup[None]:
        """Read the events that were not read before."""
        missing = event_ids - self.events.keys()
        if missing:
            (found,) = yield (EventsRequest(missing),)
            self.events.update(
                {each: found.events[each] for each in missing if each in found.events}
            )
            self.rejected.update(found.rejected & missing)


class _PrefetchedChains:
    """:class:`~synrepl.rooms.chains.AuthChains` whose answers were read up front."""

    __slots__ = ("_facts",)

    def __init__(self, facts: AuthChainFacts) -> None:
        self._facts = facts

    @property
    def power_levels(self) -> Mapping[str, str | None]:
        return self._facts.power_levels

    def difference(self, differing: object, shared: object) -> set[str]:
        return set(self._facts.difference)

    def subgraph(self, conflicted: object) -> set[str]:
        return set(self._facts.subgraph)


def state_of_entries(empty: S, claimed: Mapping[StateKey, str]) -> S:
    """The handle of a state with these entries."""
    return empty.with_delta(Delta(claimed))
