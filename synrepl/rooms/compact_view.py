"""Views of rooms whose states are :class:`~synrepl.rooms.CompactStateMap`, as far as they are alike.

What a view knows differs: a room in memory, or a database that events are read from in sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from synrepl.rooms.chains import (
    AuthCycle,
    BitSetChains,
    MissingAuthEvent,
    UnknownEvent,
    auth_dependencies,
)
from synrepl.rooms.differing import DifferingEvents
from synrepl.rooms.event import Event
from synrepl.rooms.judged import Judged, UnknownEvents
from synrepl.rooms.ordering import topological_sort
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import CompactStateMap, Delta, delta
from synrepl.rooms.view import AuthChainFacts, KnownEvents, RoomHeads

#: What judging raises when it depends on events that are missing.
CANNOT_JUDGE = (UnknownEvents, UnknownEvent, MissingAuthEvent, AuthCycle)

#: Events of a state that are read at once while an auth difference is computed.
_SHARED = 256

#: A state entry that differs: key, stored event, computed event.
DifferingEntry = tuple[StateKey, str | None, str | None]


class CompactStateView:
    """What :class:`~synrepl.rooms.RoomView` asks of states."""

    def state_entries(
        self, states: Sequence[CompactStateMap], keys: Sequence[StateKey], /
    ) -> Sequence[tuple[str | None, ...]]:
        """For each state, the event ID of each key."""
        return [state.several(keys) for state in states]

    def state_differences(self, states: Sequence[CompactStateMap], /) -> Sequence[Delta]:
        """The deltas from the first state to each of the others."""
        first, *others = states
        return [delta(first, each) for each in others]

    def check_conflict(self, event_ids: Collection[str], /) -> None:
        """Allow any number."""


class HistoryView(CompactStateView, ABC):
    """A view of a room whose events are judged again as history, and are read when they are needed.

    :param chains: the auth chains read so far; they are added to
    """

    def __init__(self, room_id: str, empty_state: CompactStateMap, chains: BitSetChains) -> None:
        self.room_id = room_id
        self.empty_state = empty_state
        self._chains = chains
        self._heads = RoomHeads(room_id, empty_state, frozenset[str](), False)

    @abstractmethod
    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """See :class:`~synrepl.rooms.RoomView`."""

    def heads(self) -> RoomHeads[CompactStateMap]:
        """The room, without its end."""
        return self._heads

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: CompactStateMap,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        """The auth chain data for a resolution.

        :raises UnknownEvents: an event of an auth chain is missing
        """
        starts = differing.events()
        self._add_chains(starts)
        conflicted = {state.get(key) for key in keys}
        shared = (each for each in state.values() if each not in conflicted)
        difference = self._chains.difference(differing, self._with_chains(shared))
        subgraph = self._chains.subgraph(starts) if with_subgraph else frozenset[str]()
        return AuthChainFacts(difference, subgraph, self._chains.power_levels)

    def state_without(
        self, event: Event, after: CompactStateMap, near: CompactStateMap | None
    ) -> CompactStateMap:
        """The state before an accepted state event, from the one after it.

        :param near: a state that may be it
        """
        key = event.type, event.state_key or ""
        if near is not None and delta(near, after) == Delta({key: event.event_id}):
            return near
        # What the event replaced is among those that it cites.
        known = self.known_events(event.auth_event_ids).events
        for each in event.auth_event_ids:
            cited = known.get(each)
            if cited is not None and (cited.type, cited.state_key) == key:
                return after.with_entry(key, each)
        return after.with_delta(Delta({}, frozenset([key])))

    def _with_chains(self, event_ids: Iterator[str]) -> Iterator[str]:
        """The events, after their auth chains were read; in parts, because few may be needed."""
        while some := list(islice(event_ids, _SHARED)):
            self._add_chains(some)
            yield from some

    def _add_chains(self, starts: Collection[str]) -> None:
        path = [each for each in starts if each not in self._chains]
        events: dict[str, Event] = {}
        while ahead := [
            each for each in path if each not in events and each not in self._chains
        ]:  # breadth first, one look-up a step
            known = self.known_events(ahead).events
            for each in ahead:
                if each not in known:
                    raise UnknownEvents(
                        missing=each, room_id=self.room_id, event_id="in a state or an auth chain"
                    )
                events[each] = known[each]
            path = [cited for each in ahead for cited in auth_dependencies(events[each])]
        for event in topological_sort(events.values(), dependencies=auth_dependencies).events:
            self._chains.add(event)


def differing_entries(theirs: CompactStateMap, ours: CompactStateMap) -> frozenset[DifferingEntry]:
    """The entries that differ between a stored state and the computed one."""
    change = delta(theirs, ours)
    found: list[DifferingEntry] = [
        (key, theirs.get(key), event_id) for key, event_id in change.entries.items()
    ]
    found += [(key, theirs.get(key), None) for key in change.removed]
    return frozenset(found)


def entries_of_verdict(judged: Judged[CompactStateMap]) -> frozenset[DifferingEntry]:
    """The entries in which a stored state differs that follow from the other verdict on the event."""
    event, assumed = judged.event, judged.state_before
    assert assumed is not None
    assert judged.state_after is not None
    if judged.refusal is not None and event.state_key is not None:
        assumed = assumed.with_entry((event.type, event.state_key), event.event_id)
    return differing_entries(assumed, judged.state_after)
