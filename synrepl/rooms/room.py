"""A whole room: events in any order, the state before and after each, and what became of it.

Sources: https://spec.matrix.org/v1.16/server-server-api/#checks-performed-on-receipt-of-a-pdu, #rejection,
#soft-failure, https://spec.matrix.org/v1.16/server-server-api/#room-state-resolution, and the seed on
faster joins. The state before an event is what the states after the events that it follows resolve to; an
event that was rejected, or that is no state event, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

from synrepl.rooms.chains import BitSetChains, create_id, depends_on
from synrepl.rooms.checks import Check, Checks
from synrepl.rooms.event import Event
from synrepl.rooms.extremities import ForwardExtremities
from synrepl.rooms.judged import Judged, NoState, NotJudged, OtherRoom, UnknownEvents
from synrepl.rooms.merging import Merging
from synrepl.rooms.ordering import Place, StreamOrder, topological
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Slots
from synrepl.rooms.versions import RoomVersion
from synrepl.rooms.waiting import MAX_WAITING, Waiting, WaitingEvents


class Room:
    """Judges the events of one room.

    An event waits until all that it follows and cites are judged. At most ``max_waiting`` do; when there
    are more, or they are too large together, the one that has waited longest is forgotten, as if it had
    never come. Of events with the same ID, the first that came is kept.

    Which events are accepted does not depend on the order in which they come; which are soft-failed
    does, and so may what was judged by an outlier that is judged otherwise when it comes again.

    :param room_id: by default, that of the first event
    """

    def __init__(
        self, version: RoomVersion, room_id: str | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self.version = version
        self._room_id = room_id
        self._nothing = CompactStateMap(None, Slots())
        self._events: dict[str, Event] = {}
        self._judged: dict[str, Judged] = {}
        self._rejected: set[str] = set()
        self._partial: set[str] = set()
        self._chains = BitSetChains()
        self._order = StreamOrder()
        self._extremities = ForwardExtremities()
        self._waiting = WaitingEvents(max_waiting)
        self._merging = Merging(version, self._events.__getitem__, self._chains, self._rejected)

    # Asking

    @property
    def room_id(self) -> str | None:
        """None until there is an event, if only one that waits."""
        return self._room_id

    def __len__(self) -> int:
        return len(self._judged)

    def __contains__(self, event_id: object) -> bool:
        return event_id in self._judged

    def __iter__(self) -> Iterator[Judged]:
        """What was judged, in the order in which it was."""
        return iter(self._judged.values())

    def __getitem__(self, event_id: str) -> Judged:
        """What became of an event.

        :raises NotJudged: it did not come, or waits
        """
        try:
            return self._judged[event_id]
        except KeyError:
            raise NotJudged(event_id=event_id, room_id=self._room_id) from None

    @property
    def forward_extremities(self) -> frozenset[str]:
        """The events that the next one would follow."""
        return self._extremities.event_ids

    @property
    def partial_event_ids(self) -> Collection[str]:
        """The events whose state is known in part only."""
        return self._partial

    @property
    def waiting(self) -> Collection[str]:
        """The events that wait, longest first."""
        return self._waiting.event_ids

    @property
    def missing(self) -> set[str]:
        """What others wait for and never came: to be asked for."""
        return self._waiting.missing

    def current_state(self) -> CompactStateMap:
        """The state that the states after the forward extremities resolve to."""
        return self._merged(self.forward_extremities)

    def has_state(self, event_id: str) -> bool:
        """Whether the state before and after an event is known, all of it or a part."""
        judged = self._judged.get(event_id)
        return judged is not None and judged.state_before is not None

    @property
    def count_with_state(self) -> int:
        """Of how many events the state is known."""
        return self._order.newest

    def state_before(self, event_id: str) -> CompactStateMap:
        """The state before an event.

        :raises NotJudged: it did not come, or waits
        :raises NoState: it is known only because others cite it
        """
        state = self[event_id].state_before
        if state is None:
            raise NoState(event_id=event_id)
        return state

    def topologically(self) -> list[Judged]:
        """All events whose state is known, in topological order.

        An event that came after one that follows it can be behind that one (:class:`Place`).
        """
        known = (each for each in self._judged.values() if each.state_before is not None)
        return sorted(known, key=lambda judged: judged.place)

    # Taking in

    def receive(self, event: Event, live: bool = True) -> list[Judged]:
        """Judge an event and those that waited for it, or let it wait.

        :param live: whether check 6 applies. It is for what servers send as it happens, not for history
        :returns: what was judged, in that order; nothing when it waits or is known
        :raises OtherRoom: it is not of this room
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
            self._waiting.hold(Waiting(event, live, missing))
            return []
        judged = [self._judge(event, self._merged(event.prev_event_ids), live)]
        if self._waiting:
            judged += self._release(event_id)
        return judged

    def receive_outlier(self, event: Event) -> list[Judged]:
        """Take in an event because others cite it, wherever it stands in the room: checks 4 only.

        Should it come again through :meth:`receive`, it is judged in full.

        :returns: it, and what waited for nothing else
        :raises OtherRoom: it is not of this room
        :raises UnknownEvents: something that it cites is not known
        """
        if event.event_id in self._judged:
            return []
        self._check_room(event)
        # Nothing follows from it, so it has no place in the stream.
        place = Place(topological(event.depth, (), all_known=False), 0)
        judged = self._by_cited(self._first(event), place)
        self._keep(judged)
        return [judged, *self._release(event.event_id)]

    def receive_with_state(
        self, event: Event, state_before: StateMap, partial: bool = False
    ) -> list[Judged]:
        """Judge an event of which another server told the state before it.

        What it follows need not be known; all events of the state, and all that it cites, must be.

        :param partial: whether that is only a part of the state
        :returns: see :meth:`receive`
        :raises OtherRoom: it is not of this room
        :raises UnknownEvents: something that it cites, or an event of the state, is not known
        """
        if self.has_state(event.event_id):
            return []
        self._check_room(event)
        event = self._first(event)
        state = self.state_of(event.event_id, state_before)
        judged = self._judge(event, state, live=False, partial=partial)
        self._waiting.forget(event.event_id)
        return [judged, *self._release(event.event_id)]

    def state_of(self, event_id: str, state: StateMap) -> CompactStateMap:
        """A state told by another server as one of this room's, without what is rejected for good.

        What was rejected at a state that is known in part may be accepted yet, and stays in it.

        :param event_id: the event at which it was
        :raises UnknownEvents: one of its events is not known
        """
        self._require(event_id, [each for each in state.values() if each not in self._events])
        final = self._rejected.intersection(state.values()).difference(self._partial)
        if final:
            state = {key: each for key, each in state.items() if each not in final}
        return self._nothing.becoming(state)

    # Judging again

    def judge_again(self, event_id: str, state_before: StateMap | None = None) -> Judged:
        """Judge an event anew, now that more is known. It is not soft-failed.

        Those that it follows must have been judged anew before. Afterwards
        :meth:`find_extremities` is due. Of an outlier only what it cites matters.

        :param state_before: as another server tells it, all of it; by default, what follows from
            the events that it follows
        :returns: what becomes of it now
        :raises NotJudged: it was not judged before
        :raises UnknownEvents: see :meth:`receive_with_state`; or an event that it follows is not known
        """
        old = self[event_id]
        if old.state_before is None:
            judged = self._by_cited(old.event, old.place)
        else:
            judged = self._at_state(old.event, old.place, state_before)
        self._keep(judged)
        if judged.accepted != old.accepted:
            # What is rejected matters where states are resolved.
            self._merging.forget()
        return judged

    def find_extremities(self) -> None:
        """Work out the forward extremities from the start, after events were judged again."""
        in_stream = (each for each in self._judged.values() if each.state_before is not None)
        ordered = sorted(in_stream, key=lambda each: each.place.stream)
        self._extremities = ForwardExtremities.of((each.event.event_id, each) for each in ordered)

    # Within

    def _check_room(self, event: Event) -> None:
        if event.version is not self.version or self._room_id not in (None, event.room_id):
            raise OtherRoom(event_id=event.event_id, room_id=event.room_id, expected=self._room_id)

    def _missing_for(self, event: Event) -> set[str] | None:
        judged = self._judged
        missing = [each for each in depends_on(event) if each not in judged]
        for each in event.prev_event_ids:
            known = judged.get(each)
            if known is None or known.state_before is None:
                missing.append(each)
        return set(missing) if missing else None

    def _first(self, event: Event) -> Event:
        """The event of the same ID that came first."""
        event_id = event.event_id
        known = self._judged.get(event_id)
        return known.event if known is not None else self._waiting.get(event_id) or event

    def _find(self, event_id: str) -> Judged | None:
        """One that is no mere outlier."""
        return self._judged[event_id] if self.has_state(event_id) else None

    def _cited(self, event: Event) -> list[Event]:
        """Its auth events."""
        events = self._events
        self._require(event.event_id, [each for each in depends_on(event) if each not in events])
        return [events[each] for each in event.auth_event_ids]

    def _require(self, event_id: str, missing: Sequence[str]) -> None:
        if missing:
            some = ", ".join(missing[:5])
            raise UnknownEvents(missing=some, room_id=self._room_id, event_id=event_id)

    def _create(self, event: Event) -> Event | None:
        """The room's ``m.room.create`` where nobody cites it: a room's ID is that of an accepted one."""
        create = create_id(event) if self.version.room_id_is_create_hash else None
        return None if create is None or create in self._rejected else self._events.get(create)

    def _judge(
        self, event: Event, state: CompactStateMap, live: bool, partial: bool = False
    ) -> Judged:
        event_id, parents = event.event_id, event.prev_event_ids
        cited = self._cited(event)
        judged_before = self._judged
        # An outlier has its place among the others from now on.
        outlier = judged_before.pop(event_id, None)
        if self._partial:
            partial = partial or not self._partial.isdisjoint(parents)
        known = [judged_before[each].place.topological for each in parents if each in judged_before]
        place = Place(
            topological(event.depth, known, len(known) == len(parents)), self._order.next()
        )
        # While the room is known in part only, nothing is soft-failed.
        now = None
        if live and not self._partial and not partial and self.forward_extremities != set(parents):
            now = self.forward_extremities
        judged = self._verdict(event, cited, state, partial, now, place)
        self._keep(judged)
        if outlier is not None and judged.accepted != outlier.accepted:
            self._merging.forget()
        self._extremities.take_in(event_id, judged, self._find)
        return judged

    def _by_cited(self, event: Event, place: Place) -> Judged:
        """Check 4."""
        cited = self._cited(event)
        refusal = Checks(event, cited, self._create(event)).by_cited(cited, self._rejected)
        failed = None if refusal is None else Check.AUTH_EVENTS
        return Judged(event, None, None, refusal, failed, None, False, place)

    def _at_state(self, event: Event, place: Place, told: StateMap | None) -> Judged:
        """Checks 4 and 5, at the state before it as it was told, or as it follows from its parents."""
        parents, event_id = event.prev_event_ids, event.event_id
        if told is None:
            self._require(event_id, [each for each in parents if not self.has_state(each)])
        state = self._merged(parents) if told is None else self.state_of(event_id, told)
        partial = told is None and not self._partial.isdisjoint(parents)
        return self._verdict(event, self._cited(event), state, partial, None, place)

    def _verdict(
        self,
        event: Event,
        cited: Sequence[Event],
        state: CompactStateMap,
        partial: bool,
        now: Collection[str] | None,
        place: Place,
    ) -> Judged:
        """Checks 4 and 5, and 6 when it is told after which events the room is now."""
        fetch = self._events.__getitem__
        checks = Checks(event, cited, self._create(event))
        failed, soft_failure = None, None
        refusal = checks.by_cited(cited, self._rejected)
        if refusal is not None:
            failed = Check.AUTH_EVENTS
        else:
            before = self._with_claimed(state, checks) if partial else state
            refusal = checks.by_state(before, fetch)
            if refusal is not None:
                failed = Check.STATE_BEFORE
            elif now is not None:
                soft_failure = checks.by_state(self._merged(now, checks.keys), fetch)
                if soft_failure is not None:
                    failed = Check.CURRENT_STATE
        after = state
        if refusal is None and event.state_key is not None:
            after = state.with_entry((event.type, event.state_key), event.event_id)
        return Judged(event, state, after, refusal, failed, soft_failure, partial, place)

    def _with_claimed(self, state: CompactStateMap, checks: Checks) -> CompactStateMap:
        """Check 5 in its partial form: the part of the state with what the event claims of it.

        "Partial state" of the seed on faster joins.
        """
        return self._merging.merged([state, self._nothing.becoming(checks.claimed_state())])

    def _keep(self, judged: Judged) -> None:
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

    def _merged(
        self, event_ids: Collection[str], keys: Sequence[StateKey] | None = None
    ) -> CompactStateMap:
        """What the states after some events resolve to; see :meth:`Merging.merged`."""
        states: list[CompactStateMap] = []
        for event_id in event_ids:
            state = self._judged[event_id].state_after
            if state is None:
                raise NoState(event_id=event_id)
            states.append(state)
        return self._merging.merged(states, keys) if states else self._nothing

    def _release(self, event_id: str) -> list[Judged]:
        """Judge what waited for an event and for nothing else, and what waited for that."""
        judged: list[Judged] = []
        here = deque([event_id])
        while here:
            done = here.popleft()
            for event, live, _ in self._waiting.arrived(done, self.has_state(done)):
                judged.append(self._judge(event, self._merged(event.prev_event_ids), live))
                here.append(event.event_id)
        return judged
