"""A view of the part of a room that a task judges; what lies outside it is looked up.

A part begins behind an event that all later events of the room descend from. The state there, and at any other
event outside the part that one in it follows, is *assumed*: it is taken from the state groups of the database. The task that
judges that event computes the same state from the events, and so proves it or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple, Self

import msgspec
from msgspec.structs import replace

from synrepl.pipeline.rooms.lookup import RoomLookup
from synrepl.pipeline.rooms.parts.groups import PartGroups
from synrepl.rooms import (
    BadEvent,
    BitSetChains,
    CompactStateMap,
    Delta,
    Event,
    HistoryView,
    KnownEvents,
    ResolutionCache,
    RoomVersion,
    Slots,
    StateKey,
    room_version,
)
from synrepl.storage.foreign.rooms.stored_event import parse_stored_event


class JudgingVersions(NamedTuple):
    """The room version whose format events have, and the one by whose rules they are judged."""

    format: RoomVersion
    rules: RoomVersion

    @classmethod
    def of(cls, name: str | None, what_if: str | None = None) -> Self:
        """Those of a room.

        :param what_if: the version by whose rules its events are judged; by default its own
        :raises UnknownRoomVersion: one of them is not known
        """
        version = room_version(name)
        if what_if is None or what_if == name:
            return cls(version, version)
        other = room_version(what_if)
        return cls(
            version,
            dataclasses.replace(
                other,
                event_ids=version.event_ids,
                strict_json=version.strict_json,
                room_id_is_create_hash=version.room_id_is_create_hash,
            ),
        )

    def parse(self, raw: bytes, event_id: str, room_id: str) -> Event:
        """Parse the stored JSON of an event.

        :raises BadEvent: it is no event, or another one
        """
        event = self.parse_any(raw)
        if event.event_id != event_id or event.room_id != room_id:
            reason = f"it is event {event.event_id} of room {event.room_id}"
            raise BadEvent(version=self.format.name, reason=reason)
        return event if self.rules is self.format else replace(event, version=self.rules)

    def parse_any(self, raw: bytes) -> Event:
        """Parse the stored JSON of whatever event.

        :raises BadEvent: it is no event
        """
        return parse_stored_event(raw, self.format)


class StateCorrection(NamedTuple):
    """An entry in which states of the database are wrong, from an event of a room on.

    :ivar topological: the topological ordering of that event
    :ivar stored: the entry that it stands instead of; None: none
    :ivar computed: the event that follows from the events; None: no entry
    """

    topological: int
    key: StateKey
    stored: str | None
    computed: str | None


class PartPlace(msgspec.Struct, frozen=True, gc=False):
    """The room at an event; implements :class:`~synrepl.rooms.StateAt`."""

    state_after: CompactStateMap | None
    topological: int
    partial: bool = False


class PartView(HistoryView):
    """Implements :class:`~synrepl.rooms.RoomView` for one part of a room, in a task.

    :param corrections: of the states that are assumed, in the order of their places. With corrections, the state of
        a broken group is taken as empty before them
    :ivar events: those of the part that were judged, and those that they depend on
    :ivar rejected: IDs of rejected ones: as judged here, and as the server judged what is outside the part
    :ivar corrupt: IDs of events that were looked up, and whose JSON is not theirs
    """

    def __init__(
        self,
        room_id: str,
        versions: JudgingVersions,
        lookup: RoomLookup,
        corrections: Sequence[StateCorrection] = (),
    ) -> None:
        slots = Slots()
        super().__init__(room_id, CompactStateMap(None, slots), BitSetChains())
        self._versions = versions
        self._lookup = lookup
        self._corrections = corrections
        self.groups = PartGroups(room_id, slots, lookup)
        self.events: dict[str, Event] = {}
        self.rejected: set[str] = set()
        self.corrupt: set[str] = set()
        self.resolutions = ResolutionCache[CompactStateMap]()
        # What is asked for each event is mostly here.
        self._known = KnownEvents(self.events, self.rejected)
        self._places: dict[str, PartPlace] = {}
        self._absent: set[str] = set()
        self._without_place: set[str] = set()

    def remember(
        self, event: Event, *, rejected: bool, state: CompactStateMap, topological: int
    ) -> None:
        """Add an event that was judged."""
        event_id = event.event_id
        self.events[event_id] = event
        self._absent.discard(event_id)
        self._without_place.discard(event_id)
        if rejected != (event_id in self.rejected):
            # Resolutions depend on which events are rejected.
            self.resolutions.clear()
            (self.rejected.add if rejected else self.rejected.discard)(event_id)
        self._places[event_id] = PartPlace(state, topological)

    def expect(self, events: Mapping[str, Event], rejected: Collection[str]) -> None:
        """Add events of the part that are judged later, with the server's verdicts until then."""
        self.events.update(events)
        self.rejected.update(rejected)

    @property
    def absent(self) -> Set[str]:
        """Events that something depends on, and that are not there, or corrupt."""
        return self._absent

    # RoomView

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """See :class:`~synrepl.rooms.RoomView`."""
        events, absent = self.events, self._absent
        for each in event_ids:
            if each not in events and each not in absent:
                break
        else:
            return self._known
        missing = [each for each in event_ids if each not in events and each not in absent]
        absent.update(missing)
        for event_id, raw, rejected in self._lookup.events(self.room_id, missing):
            try:
                event = self._versions.parse(raw, event_id, self.room_id)
            except BadEvent:
                self.corrupt.add(event_id)
                continue
            absent.discard(event_id)
            events[event_id] = event
            if rejected:
                self.rejected.add(event_id)
        return self._known

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, PartPlace]:
        """See :class:`~synrepl.rooms.RoomView`."""
        places, without = self._places, self._without_place
        for each in event_ids:
            if each not in places and each not in without:
                break
        else:
            return places
        missing = [each for each in event_ids if each not in places and each not in without]
        without.update(missing)
        found = self._lookup.places(self.room_id, missing)
        self.groups.read({place.group for place in found})
        for place in found:
            state = self.stored_state(place.group, place.topological)
            if state is not None:
                without.discard(place.event_id)
                places[place.event_id] = PartPlace(state, place.topological)
        return places

    def stored_state(self, group: int, topological: int) -> CompactStateMap | None:
        """The state of a group that was read, corrected; None if the group is broken.

        :param topological: of the event that it is the state after
        """
        state = self.groups.state(group)
        corrections = [each for each in self._corrections if each.topological <= topological]
        if not corrections:
            return state
        if state is None:
            state = self.empty_state
        for each in corrections:
            if state.get(each.key) == each.stored:
                removed = frozenset[StateKey]() if each.computed else frozenset([each.key])
                entries = {each.key: each.computed} if each.computed else {}
                state = state.with_delta(Delta(entries, removed))
        return state
