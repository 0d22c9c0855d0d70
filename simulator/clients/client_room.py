"""What a client knows of a room, and whether that is what it should have been told."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.clients.stored_rooms import NotedEvent, StoredRooms
from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey


@dataclass(slots=True)
class ClientRoom:
    """A room as a client knows it, since it was told of it as a new one.

    :ivar is_joined: whether the user is in it, as far as the client knows
    :ivar timeline: IDs of the events that it was told of
    :ivar state: the state, by the event that set each entry
    :ivar began: what the client knew of the stream when it was first told of the room
    """

    is_joined: bool = True
    timeline: list[str] = field(default_factory=list)
    state: dict[StateKey, str] = field(default_factory=dict)
    purged_before: set[str] = field(default_factory=set)

    def copy(self) -> ClientRoom:
        """The same, to go on from later."""
        return ClientRoom(
            self.is_joined, list(self.timeline), dict(self.state), set(self.purged_before)
        )

    def apply_state(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take over state events."""
        for each in events:
            if "state_key" in each:
                self.state[each["type"], each["state_key"]] = each["event_id"]


@dataclass(frozen=True, slots=True)
class ToldPart:
    """What one sync, with the pages that fill its gap, told a client of a room.

    :ivar since: what the client knew before; None: the room is new to it
    :ivar upto: what it knows now
    :ivar events: IDs, the oldest first
    :ivar is_limited: whether the sync said that there is a gap
    """

    user: str
    room_id: str
    since: PositionVector | None
    upto: PositionVector
    events: Sequence[str]
    is_limited: bool


def wrong_part(stored: StoredRooms, part: ToldPart, known: Collection[str]) -> Iterator[str]:
    """What is wrong with what a client in a room was told.

    :param known: what it was told of the room before
    """
    told = set(part.events)
    if len(told) < len(part.events):
        yield f"twice at once: {_repeated(part.events)}"
    if not told.isdisjoint(known):
        yield f"again: {sorted(told & set(known))}"
    strange = told - stored.events.keys()
    if strange:
        yield f"unknown: {sorted(strange)}"
        return
    visible = {
        each.event_id: each
        for each in stored.visible(part.room_id, part.user)
        if each.is_covered(part.upto)
    }
    invisible = [each for each in told if each not in visible]
    if invisible:
        yield f"not to be seen, or not yet: {invisible}"
    expected = {
        each.event_id
        for each in visible.values()
        if part.since is None or not each.is_covered(part.since)
    }
    older = told - expected
    if older:
        yield f"from before the last answer: {sorted(older)}"
    missing = expected - told
    lost = missing - stored.purged
    if part.since is None:
        # A client that learns of a room goes back as far as there are events; history may come later.
        lost = {each for each in lost if stored.events[each].is_live}
    if lost:
        yield f"missing: {sorted(lost, key=lambda each: stored.events[each].ordering.stream)}"
    if missing and not part.is_limited and part.since is not None:
        yield f"purged, but there is no gap: {sorted(missing)}"


def wrong_order(stored: StoredRooms, timeline: Sequence[str]) -> Iterator[str]:
    """Pairs of events of which the second one came first, and follows the other.

    An event that came later than one that follows it is where it came, and so is what came as history.
    """
    places = {event_id: place for place, event_id in enumerate(timeline)}
    for event_id, place in places.items():
        event = stored.events[event_id]
        for prev_id in event.prev_event_ids:
            prev = stored.events.get(prev_id)
            if prev is not None and places.get(prev_id, -1) > place and _came_in_order(prev, event):
                yield f"{prev_id} stands after {event_id}, which follows it"


def _came_in_order(prev: NotedEvent, event: NotedEvent) -> bool:
    if prev.is_live is not event.is_live:
        return False
    return prev.ordering.stream < event.ordering.stream or not prev.is_live


def _repeated(events: Sequence[str]) -> list[str]:
    return sorted({each for each in events if events.count(each) > 1})
