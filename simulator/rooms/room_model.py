"""A room in memory beside the stored one, and what maintenance left of the stored one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from simulator.rooms.comparison import Kept
from simulator.rooms.random_rooms import RestlessRoom
from synrepl.rooms import (
    CompactStateMap,
    Event,
    Judged,
    OtherRoom,
    Room,
    StateKey,
    UnknownEvents,
    auth_dependencies,
)
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.tables.incoming import IncomingEvent

#: By key, the event that is the entry now; None where there is none any more.
StateChanges = dict[StateKey, str | None]


def changes_between(before: Mapping[StateKey, str], after: Mapping[StateKey, str]) -> StateChanges:
    """The entries in which two states differ, as they are in the second one."""
    changed = {key: each for key, each in after.items() if before.get(key) != each}
    return {**changed, **dict.fromkeys(before.keys() - after.keys())}


def receive(room: Room, incoming: IncomingEvent) -> list[str]:
    """Give the model an event; the IDs of those that were judged."""
    try:
        if incoming.outlier:
            judged = room.receive_outlier(incoming.event)
        elif incoming.state_before is not None:
            judged = room.receive_with_state(
                incoming.event, incoming.state_before, incoming.partial
            )
        else:
            judged = room.receive(incoming.event, incoming.live)
    except (OtherRoom, UnknownEvents):
        return []
    return [each.event.event_id for each in judged]


class GivenBatch:
    """A batch of events that is given to persisting processes until one of them has persisted it.

    :ivar judged: IDs of the events that the model judged since it was last given
    """

    def __init__(self, model: RoomModel, events: Iterable[IncomingEvent]) -> None:
        self.model = model
        self.events = list(events)
        self.judged: list[str] = []

    def committed(self) -> None:
        """A transaction with it was committed."""
        model = self.model
        before = model.room.current_state().as_dict()
        for each in self.events:
            self.judged += receive(model.room, each)
        model.was_sent = True
        changes = changes_between(before, model.room.current_state().as_dict())
        if changes:
            model.changes.append(changes)


class RoomModel:
    """A random room, judged in memory in the order of the commits.

    :ivar room: the room in memory, with all events that were ever persisted
    :ivar made: makes its events
    :ivar unsent: events that nobody has persisted yet, in an order that respects causes
    :ivar sent: events that were persisted, or are being persisted
    :ivar under_way: number of batches that are being persisted
    :ivar is_reworked: whether maintenance that changes what is kept is under way
    :ivar was_sent: whether a batch was committed
    :ivar changes: of the current state, by each batch that changed it, also before the room was removed
    :ivar told_before: the last tokens of ``events`` and ``backfill`` before the room was removed
    """

    def __init__(self, random: Random, version: str, name: str) -> None:
        self.made = RestlessRoom(random, version, name)
        self.raw: dict[str, bytes] = {}
        self.under_way = 0
        self.is_reworked = False
        self.told_before = (0, 0)
        self.changes: list[StateChanges] = []
        self.forget()

    def forget(self) -> None:
        """The stored room is gone; its events may come again."""
        self.room = Room(self.made.version)
        self.unsent = list(self.made.events)
        self.sent: list[Event] = []
        self.was_sent = self.has_returned = False
        self.backfilled: set[str] = set()
        self.gone: set[str] = set()
        self.demoted: set[str] = set()
        self.unordered: set[str] = set()
        self.raw.clear()

    @property
    def room_id(self) -> str:
        """Its ID."""
        return self.made.room_id

    @property
    def is_stored(self) -> bool:
        """Whether its creation was persisted."""
        return self.was_sent and self.room.room_id is not None

    @property
    def is_settled(self) -> bool:
        """Whether it is stored and no event waits for others."""
        return self.is_stored and not self.under_way and not list(self.room.waiting)

    def is_here(self, event_id: str) -> bool:
        """Whether an event is stored."""
        return event_id in self.room and event_id not in self.gone

    def is_full(self, event_id: str) -> bool:
        """Whether an event is stored with its state."""
        return (
            self.room.has_state(event_id)
            and event_id not in self.gone
            and event_id not in self.demoted
        )

    def available(self) -> list[Event]:
        """The events that are judged as in memory: nothing that they follow or cite was purged."""
        if not self.gone and not self.demoted:
            return self.unsent
        may: dict[str, Event] = {}
        for each in self.unsent:
            follows = all(self.is_full(one) or one in may for one in each.prev_event_ids)
            if follows and all(self.is_here(one) or one in may for one in auth_dependencies(each)):
                may[each.event_id] = each
        return list(may.values())

    def persisted_before(self) -> list[Event]:
        """The events that may be given again."""
        return [
            each
            for each in self.sent
            if each.event_id not in self.gone and each.event_id not in self.demoted
        ]

    def with_states(self) -> list[Judged[CompactStateMap]]:
        """Events whose states another server may report."""
        return [
            each
            for each in self.room
            if each.state_after is not None
            and all(self.is_here(one) for one in each.state_after.values())
        ]

    def batch(self, incoming: Iterable[IncomingEvent]) -> GivenBatch:
        """A batch of these events, which count as sent."""
        made = GivenBatch(self, incoming)
        chosen = {each.event.event_id for each in made.events}
        self.unsent = [each for each in self.unsent if each.event_id not in chosen]
        self.sent += [each.event for each in made.events]
        self.backfilled.update(each.event.event_id for each in made.events if each.backfilled)
        return made

    def kept(self) -> Kept:
        """What maintenance left of it."""
        # An ordering is one more than the highest of those before.
        for each in self.room:
            if not self.unordered.isdisjoint(each.event.prev_event_ids):
                self.unordered.add(each.event.event_id)
        return Kept(self.gone, self.demoted, self.unordered, self.raw)

    def purged(self, full: set[str], outliers: set[str]) -> None:
        """Only these events are stored now.

        :param full: with their states
        :param outliers: without
        """
        here = {each.event.event_id for each in self.room}
        self.gone = here - full - outliers
        self.demoted = {one for one in outliers if self.room.has_state(one)}

    def came_back(self, event_id: str) -> None:
        """An event that was purged is stored with its state again."""
        self.gone.discard(event_id)
        self.demoted.discard(event_id)
        self.unordered.add(event_id)
        self.raw.pop(event_id, None)
        self.has_returned = True
        self.backfilled.add(event_id)

    def erased(self, user: str) -> None:
        """A user's events are stored in their redacted form now."""
        for each in self.room:
            event = each.event
            if event.sender == user and self.is_here(event.event_id):
                self.raw[event.event_id] = erased_form(event)
