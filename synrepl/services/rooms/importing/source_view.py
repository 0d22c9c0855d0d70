"""A view of one room of a real Synapse's database, for judging its events again.

What others depend on is read from the database in sets, and kept in bounded memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

import msgspec

from synrepl.rooms import (
    BadEvent,
    BitSetChains,
    CompactStateMap,
    Event,
    HistoryView,
    KnownEvents,
    ResolutionCache,
    RoomVersion,
    Slots,
)
from synrepl.services.rooms.importing.findings import ImportFinding
from synrepl.services.rooms.importing.group_states import GroupStates
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.rooms.events import event_places, known_events
from synrepl.storage.foreign.rooms.stored_event import parse_stored_event

#: Events, and places of events, that are kept between batches.
MAX_EVENTS, MAX_PLACES = 4096, 8192

#: Events whose auth chains are kept for state resolution; then the index begins anew.
MAX_CHAINS = 50_000


class SourceEventPlace(msgspec.Struct, frozen=True, gc=False):
    """The room at an event; implements :class:`~synrepl.rooms.StateAt`."""

    state_after: CompactStateMap | None
    topological: int
    partial: bool = False


class SourceRoomMemory:
    """What is remembered of a room between batches.

    States are those that were computed again, as long as they are remembered, and those of the server
    otherwise. The same holds for verdicts.

    :ivar events: events that others depend on
    :ivar rejected: the IDs of those that are rejected
    :ivar places: the room at events of its history
    """

    def __init__(self, room_id: str, version: RoomVersion) -> None:
        self.room_id = room_id
        self.version = version
        slots = Slots()
        self.groups = GroupStates(room_id, slots)
        self.resolutions = ResolutionCache[CompactStateMap]()
        self.empty_state = CompactStateMap(None, slots)
        self.events: dict[str, Event] = {}
        self.rejected: set[str] = set()
        self.places: dict[str, SourceEventPlace] = {}
        self.chains = BitSetChains()

    def remember(
        self, event: Event, rejected: bool, state: CompactStateMap | None, topological: int
    ) -> None:
        """Remember the verdict on an event, and the state after it; None for an outlier."""
        event_id = event.event_id
        self.events[event_id] = event
        if rejected:
            self.rejected.add(event_id)
        else:
            self.rejected.discard(event_id)
        if state is not None:
            self.places[event_id] = SourceEventPlace(state, topological)

    def trim(self) -> None:
        """Forget what was remembered first; between batches."""
        for event_id in _oldest(self.events, MAX_EVENTS):
            del self.events[event_id]
            self.rejected.discard(event_id)
        for event_id in _oldest(self.places, MAX_PLACES):
            del self.places[event_id]
        if len(self.chains) > MAX_CHAINS:
            self.chains = BitSetChains()
        self.groups.trim()


class SourceRoomView(HistoryView):
    """Implements :class:`~synrepl.rooms.RoomView` in one transaction on the source.

    :ivar findings: of state groups that were read
    """

    def __init__(self, memory: SourceRoomMemory, txn: Transaction) -> None:
        super().__init__(memory.room_id, memory.empty_state, memory.chains)
        self._memory = memory
        self._txn = txn
        self._absent: set[str] = set()
        self.findings: list[ImportFinding] = []

    def load(self, events: Collection[str], places: Collection[str]) -> None:
        """Read what a batch depends on, in a few statements."""
        self.known_events(events)
        self.states_at(places)

    def read_groups(self, groups: Collection[int]) -> None:
        """Read the states of state groups."""
        self.findings += self._memory.groups.read(self._txn, groups)

    # RoomView

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """Events by ID, with the verdicts of the server until they are judged again."""
        memory = self._memory
        missing = [
            each for each in event_ids if each not in memory.events and each not in self._absent
        ]
        if missing:
            self._absent.update(missing)
            for row in known_events(self._txn, memory.room_id, missing):
                try:
                    event = parse_stored_event(row.raw, memory.version)
                except BadEvent:
                    continue
                if event.event_id == row.event_id and event.room_id == memory.room_id:
                    self._absent.discard(row.event_id)
                    memory.events[row.event_id] = event
                    if row.rejected:
                        memory.rejected.add(row.event_id)
        return KnownEvents(memory.events, memory.rejected)

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, SourceEventPlace]:
        """The room at events that are part of its history."""
        memory = self._memory
        missing = [each for each in event_ids if each not in memory.places]
        if missing:
            rows = event_places(self._txn, memory.room_id, missing)
            self.read_groups({row.group for row in rows})
            for row in rows:
                state = memory.groups[row.group].state
                memory.places[row.event_id] = SourceEventPlace(state, row.topological)
        return memory.places


def _oldest(kept: Mapping[str, object], most: int) -> list[str]:
    return list(islice(kept, max(0, len(kept) - most)))
