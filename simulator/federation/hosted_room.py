"""A room as a simulated server has it, and what other servers ask of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from synrepl.rooms import (
    Event,
    Room,
    RoomJudged,
    RoomVersion,
    StateKey,
    auth_dependencies,
    server_of,
    topological_sort,
)


class HostedRoom:
    """A room in memory.

    :ivar room: the room, which judges its events
    """

    def __init__(self, version: RoomVersion) -> None:
        self.room = Room(version)

    @property
    def room_id(self) -> str:
        """Its ID."""
        assert self.room.room_id is not None
        return self.room.room_id

    @property
    def version(self) -> RoomVersion:
        """Its version."""
        return self.room.version

    def __contains__(self, event_id: object) -> bool:
        return event_id in self.room

    def event(self, event_id: str) -> Event:
        """An event of the room."""
        return self.room[event_id].event

    def add_outliers(self, events: Iterable[Event]) -> None:
        """Add auth events of others, in any order."""
        new = [each for each in events if each.event_id not in self.room]
        for event in topological_sort(new, dependencies=auth_dependencies).events:
            self.room.receive_outlier(event)

    def add_with_state(self, event: Event, state: Iterable[Event]) -> list[RoomJudged]:
        """Add an event with the state before it, whose events are known."""
        entries = {
            (each.type, each.state_key): each.event_id
            for each in state
            if each.state_key is not None
        }
        return self.room.receive_with_state(event, entries)

    # -- states ---------------------------------------------------------------------------

    def current(self, key: StateKey) -> Event | None:
        """An entry of the current state."""
        found = self.room.current_state().get(key)
        return None if found is None else self.event(found)

    def state_before(self, event_id: str) -> list[Event]:
        """The state before an event."""
        return self._events(self.room.state_before(event_id).values())

    def current_state(self) -> list[Event]:
        """The current state."""
        return self._events(self.room.current_state().values())

    def _events(self, event_ids: Iterable[str]) -> list[Event]:
        return [self.event(each) for each in event_ids]

    def servers(self) -> frozenset[str]:
        """The servers with users in the room."""
        return servers_in(self.current_state())

    def auth_chain(self, events: Iterable[Event]) -> list[Event]:
        """The auth chains of some events: their auth events, and so on, without other events of them."""
        found: dict[str, Event] = {}
        ahead = [each for event in events for each in auth_dependencies(event)]
        while ahead:
            event_id = ahead.pop()
            if event_id not in found and event_id in self.room:
                found[event_id] = self.event(event_id)
                ahead += auth_dependencies(found[event_id])
        return list(found.values())

    # -- the graph ------------------------------------------------------------------------

    def backfill(self, event_ids: Collection[str], limit: int) -> list[Event]:
        """Some events and those before them, the newest first."""
        found: dict[str, Event] = {}
        ahead = [each for each in event_ids if self.room.has_state(each)]
        while ahead and len(found) < limit:
            ahead.sort(key=lambda each: self.room[each].ordering)
            event_id = ahead.pop()
            if event_id in found:
                continue
            event = found[event_id] = self.event(event_id)
            ahead += [
                each
                for each in event.prev_event_ids
                if self.room.has_state(each) and each not in found
            ]
        return list(found.values())

    def missing(
        self, earliest: Collection[str], latest: Sequence[str], limit: int, min_depth: int
    ) -> list[Event]:
        """The events between some that the other server has and those that it wants to know more of, causes first."""
        found: dict[str, Event] = {}
        ahead = [
            parent
            for each in latest
            if each in self.room
            for parent in self.event(each).prev_event_ids
        ]
        while ahead and len(found) < limit:
            event_id = ahead.pop(0)
            if event_id in found or event_id in earliest or not self.room.has_state(event_id):
                continue
            event = self.event(event_id)
            if event.depth >= min_depth:
                found[event_id] = event
                ahead += event.prev_event_ids
        return sorted(found.values(), key=lambda each: self.room[each.event_id].ordering)


def servers_in(state: Iterable[Event]) -> frozenset[str]:
    """The servers with joined users in a state."""
    return frozenset(
        server_of(each.state_key)
        for each in state
        if each.type == "m.room.member" and each.state_key is not None and each.membership == "join"
    )
