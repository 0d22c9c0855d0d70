"""A room in memory: accepts events in any order, and has the verdict and the states of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Self

from msgspec.structs import replace

from synrepl.rooms.chains import BitSetChains, auth_dependencies
from synrepl.rooms.compact_view import CompactStateView
from synrepl.rooms.differing import DifferingEvents
from synrepl.rooms.event import Event
from synrepl.rooms.extremities import ForwardExtremities
from synrepl.rooms.judged import Judged, NoState, NotJudged, OtherRoom, UnknownEvents
from synrepl.rooms.judging import judge, judge_outlier, lookup_judged
from synrepl.rooms.lookups import Lookup, run
from synrepl.rooms.ordering import StreamOrder, topological_sort
from synrepl.rooms.resolution.conflict import without_keys
from synrepl.rooms.resolution_lookups import ResolutionCache, lookup_state_after
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Slots
from synrepl.rooms.versions import RoomVersion
from synrepl.rooms.view import AuthChainFacts, KnownEvents, RoomHeads
from synrepl.rooms.waiting import MAX_WAITING, WaitingEvent, WaitingEvents

#: The verdict on an event of a :class:`Room`.
RoomJudged = Judged[CompactStateMap]


class RoomContents(NamedTuple):
    """The contents of a :class:`Room`.

    :ivar slots: those of its states
    :ivar judged: in the order in which they were judged
    """

    room_id: str | None
    slots: Slots
    judged: Collection[RoomJudged]
    extremities: ForwardExtremities
    waiting: Collection[WaitingEvent]
    order: StreamOrder


class Room(CompactStateView):
    """Judges the events of one room.

    An event waits until all its prev events and auth events are judged. At most ``max_waiting`` events
    wait; when there are more, or they are too large together, the one that has waited longest is dropped.
    Of events with the same ID, the first one received is kept.

    Which events are accepted does not depend on the order of arrival. Which are soft-failed does. So may
    verdicts that depend on an outlier whose verdict changes when it arrives in the stream.

    :param room_id: by default, that of the first event
    """

    def __init__(
        self, version: RoomVersion, room_id: str | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self.version = version
        self._room_id = room_id
        self._empty_state = CompactStateMap(None, Slots())
        self._events: dict[str, Event] = {}
        self._judged: dict[str, RoomJudged] = {}
        self._rejected: set[str] = set()
        self._partial: set[str] = set()
        self._chains = BitSetChains()
        self._order = StreamOrder()
        self._count_with_state = 0
        self._extremities = ForwardExtremities()
        self._waiting = WaitingEvents(max_waiting)
        self._resolutions = ResolutionCache[CompactStateMap]()

    @classmethod
    def from_contents(
        cls, version: RoomVersion, contents: RoomContents, max_waiting: int = MAX_WAITING
    ) -> Self:
        """Make a room from the contents of another, without judging again.

        :raises MissingAuthEvent: an auth event is missing
        """
        room = cls(version, contents.room_id, max_waiting)
        room._empty_state = CompactStateMap(None, contents.slots)
        by_cause = topological_sort(
            (each.event for each in contents.judged), dependencies=auth_dependencies
        )
        for event in by_cause.events + by_cause.in_cycles:
            room._chains.add(event)
        for judged in contents.judged:
            room._keep(judged)
            room._count_with_state += judged.state_before is not None
        room._extremities = contents.extremities
        room._order = contents.order
        for waiting in contents.waiting:
            room._waiting.hold(waiting)
        return room

    def contents(self) -> RoomContents:
        """The contents of the room; valid until the room changes."""
        return RoomContents(
            self._room_id,
            self._empty_state.slots,
            self._judged.values(),
            self._extremities,
            list(self._waiting),
            self._order,
        )

    # Queries

    @property
    def room_id(self) -> str | None:
        """None until the first event, judged or waiting."""
        return self._room_id

    def __len__(self) -> int:
        return len(self._judged)

    def __contains__(self, event_id: object) -> bool:
        return event_id in self._judged

    def __iter__(self) -> Iterator[RoomJudged]:
        """The verdicts, in the order in which events were judged."""
        return iter(self._judged.values())

    def __getitem__(self, event_id: str) -> RoomJudged:
        """The verdict on an event.

        :raises NotJudged: it was not received, or waits
        """
        try:
            return self._judged[event_id]
        except KeyError:
            raise NotJudged(event_id=event_id, room_id=self._room_id) from None

    @property
    def forward_extremities(self) -> frozenset[str]:
        """The forward extremities: the prev events of the next event."""
        return self._extremities.event_ids

    @property
    def partial_event_ids(self) -> Collection[str]:
        """The events with partial state."""
        return self._partial

    @property
    def waiting(self) -> Collection[str]:
        """The events that wait, oldest first."""
        return self._waiting.event_ids

    @property
    def missing(self) -> set[str]:
        """Events that others wait for and that were not received: to be requested."""
        return self._waiting.missing

    def current_state(self) -> CompactStateMap:
        """The current state: the resolution of the states after the forward extremities."""
        return self.state_after(self.forward_extremities)

    def state_after(self, event_ids: Collection[str]) -> CompactStateMap:
        """The resolution of the states after some events.

        :raises NotJudged: one of them was not received, or waits
        :raises NoState: one of them is an outlier
        """
        return run(lookup_state_after(self.version, event_ids, self._resolutions), self)

    def has_state(self, event_id: str) -> bool:
        """Whether the states before and after an event are known, in full or in part."""
        judged = self._judged.get(event_id)
        return judged is not None and judged.state_before is not None

    @property
    def count_with_state(self) -> int:
        """Number of events that are not outliers."""
        return self._count_with_state

    def state_before(self, event_id: str) -> CompactStateMap:
        """The state before an event.

        :raises NotJudged: it was not received, or waits
        :raises NoState: it is an outlier
        """
        state = self[event_id].state_before
        if state is None:
            raise NoState(event_id=event_id)
        return state

    def in_topological_order(self) -> list[RoomJudged]:
        """All events but outliers, in topological order.

        An event that arrived after one that follows it may be sorted after that one; see :class:`EventOrdering`.
        """
        known = (each for each in self._judged.values() if each.state_before is not None)
        return sorted(known, key=lambda judged: judged.ordering)

    # :class:`~synrepl.rooms.view.RoomView`

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """All known events; see :class:`~synrepl.rooms.view.RoomView`."""
        return KnownEvents(self._events, self._rejected)

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, RoomJudged]:
        """All verdicts."""
        return self._judged

    def heads(self) -> RoomHeads[CompactStateMap]:
        """The room as it is now."""
        return RoomHeads(
            self._room_id, self._empty_state, self._extremities.event_ids, bool(self._partial)
        )

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: CompactStateMap,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        """The auth chain data for a resolution."""
        chains = self._chains
        difference = chains.difference(differing, without_keys(state, keys))
        subgraph = chains.subgraph(differing.events()) if with_subgraph else frozenset()
        return AuthChainFacts(difference, subgraph, chains.power_levels)

    # Adding events

    def receive(self, event: Event, live: bool = True) -> list[RoomJudged]:
        """Judge an event and those that waited for it, or let it wait.

        :param live: whether check 6 applies, which is for events sent as they happen, not for history
        :returns: the events that were judged, in that order; empty when it waits or is known
        :raises OtherRoom: it belongs to another room
        """
        event_id = event.event_id
        known = self._judged.get(event_id)
        if (known is not None and known.state_before is not None) or event_id in self._waiting:
            return []
        self._check_room(event)
        if known is not None:
            event = known.event
        missing = self._missing_for(event)
        if missing is not None:
            self._room_id = event.room_id
            self._waiting.hold(WaitingEvent(event, live, missing))
            return []
        judged = [self._judge(event, live=live)]
        if self._waiting:
            judged += self._release(event_id)
        return judged

    def receive_outlier(self, event: Event) -> list[RoomJudged]:
        """Add an event as an outlier, because it is an auth event of others: check 4 only.

        When it is received again through :meth:`receive`, it is judged in full.

        :returns: it, and the events that waited only for it
        :raises OtherRoom: it belongs to another room
        :raises UnknownEvents: one of its auth events is not known
        """
        if event.event_id in self._judged:
            return []
        self._check_room(event)
        # An outlier is not part of the stream, so it gets no stream ordering.
        judged = judge_outlier(self._first_received(event), self)
        self._keep(judged)
        return [judged, *self._release(event.event_id)]

    def receive_with_state(
        self, event: Event, state_before: StateMap, partial: bool = False
    ) -> list[RoomJudged]:
        """Judge an event whose state before was reported by another server.

        Its prev events need not be known; its auth events and all events of the state must be.

        :param partial: whether ``state_before`` is partial state
        :returns: see :meth:`receive`
        :raises OtherRoom: it belongs to another room
        :raises UnknownEvents: an auth event, or an event of the state, is not known
        """
        if self.has_state(event.event_id):
            return []
        self._check_room(event)
        event = self._first_received(event)
        state = self.state_of(event.event_id, state_before)
        judged = self._judge(event, state, live=False, partial=partial or None)
        self._waiting.forget(event.event_id)
        return [judged, *self._release(event.event_id)]

    def state_of(self, event_id: str, state: StateMap) -> CompactStateMap:
        """Convert a state reported by another server, without events that are finally rejected.

        An event that was rejected at partial state may still be accepted, so it stays.

        :param event_id: the event that the state is for, for the error
        :raises UnknownEvents: one of its events is not known
        """
        missing = [each for each in state.values() if each not in self._events]
        if missing:
            raise UnknownEvents(
                missing=", ".join(missing[:5]), room_id=self._room_id, event_id=event_id
            )
        final = self._rejected.intersection(state.values()).difference(self._partial)
        if final:
            state = {key: each for key, each in state.items() if each not in final}
        return self._empty_state.becoming(state)

    # Judging again

    def judge_again(self, event_id: str, state_before: StateMap | None = None) -> RoomJudged:
        """Judge an event again, now that more is known. It is never soft-failed.

        Its prev events must have been judged again before. Call :meth:`recompute_forward_extremities`
        afterwards. An outlier is judged by its auth events only.

        :param state_before: the full state as another server reported it; by default derived from the
            prev events
        :returns: the new verdict
        :raises NotJudged: it was not judged before
        :raises UnknownEvents: see :meth:`receive_with_state`; or a prev event is not known
        """
        old = self[event_id]
        if old.state_before is None:
            judged = judge_outlier(old.event, self)
        elif state_before is None:
            judged = judge(old.event, self, live=False, cache=self._resolutions)
        else:
            state = self.state_of(event_id, state_before)
            judged = judge(
                old.event, self, state, partial=False, live=False, cache=self._resolutions
            )
        judged = replace(judged, ordering=old.ordering)
        self._keep(judged)
        if judged.accepted != old.accepted:
            # Resolutions depend on which events are rejected.
            self._resolutions.clear()
        return judged

    def recompute_forward_extremities(self) -> None:
        """Recompute the forward extremities from scratch, after events were judged again."""
        in_stream = (each for each in self._judged.values() if each.state_before is not None)
        ordered = sorted(in_stream, key=lambda each: each.ordering.stream)
        self._extremities = ForwardExtremities.of((each.event.event_id, each) for each in ordered)

    # Internals

    def _check_room(self, event: Event) -> None:
        if event.version is not self.version or self._room_id not in (None, event.room_id):
            raise OtherRoom(event_id=event.event_id, room_id=event.room_id, expected=self._room_id)

    def _missing_for(self, event: Event) -> set[str] | None:
        judged = self._judged
        missing = [each for each in auth_dependencies(event) if each not in judged]
        for each in event.prev_event_ids:
            known = judged.get(each)
            if known is None or known.state_before is None:
                missing.append(each)
        return set(missing) if missing else None

    def _first_received(self, event: Event) -> Event:
        """The event with this ID that was received first."""
        event_id = event.event_id
        known = self._judged.get(event_id)
        return known.event if known is not None else self._waiting.get(event_id) or event

    def _find(self, event_id: str) -> RoomJudged | None:
        """The verdict on an event that is not an outlier."""
        return self._judged[event_id] if self.has_state(event_id) else None

    def _judge(
        self,
        event: Event,
        state_before: CompactStateMap | None = None,
        *,
        live: bool,
        partial: bool | None = None,
    ) -> RoomJudged:
        lookup: Lookup[RoomJudged] = lookup_judged(
            event,
            state_before,
            partial=partial,
            live=live,
            stream=self._order.newest + 1,
            cache=self._resolutions,
        )
        judged = run(lookup, self)
        self._order.next()
        self._count_with_state += 1
        # It is no outlier any more.
        outlier = self._judged.pop(event.event_id, None)
        self._keep(judged)
        if outlier is not None and judged.accepted != outlier.accepted:
            self._resolutions.clear()
        self._extremities.add(event.event_id, judged, self._find)
        return judged

    def _keep(self, judged: RoomJudged) -> None:
        event = judged.event
        event_id = event.event_id
        self._room_id = event.room_id
        self._events[event_id] = event
        self._judged[event_id] = judged
        if judged.refusal is not None:
            self._rejected.add(event_id)
        else:
            self._rejected.discard(event_id)
        self._chains.add(event)
        if judged.partial:
            self._partial.add(event_id)
        else:
            self._partial.discard(event_id)

    def _release(self, event_id: str) -> list[RoomJudged]:
        """Judge the events that waited only for this one, and those that waited for them in turn."""
        judged: list[RoomJudged] = []
        here = deque([event_id])
        while here:
            done = here.popleft()
            for event, live, _ in self._waiting.arrived(done, self.has_state(done)):
                judged.append(self._judge(event, live=live))
                here.append(event.event_id)
        return judged
