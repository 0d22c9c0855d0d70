"""A scenario of a faster join from the vectors, for a room in memory and for the same room in the store."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Iterable
from typing import Any

from synrepl.rooms import (
    Event,
    PartialJoin,
    Room,
    StateKey,
    auth_dependencies,
    event_of,
    join_partially,
    room_version,
    topological_sort,
)
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from tests.rooms.vector_files import path_of


class JoinedStory:
    """The room in memory; what has to be given to the store is returned.

    :ivar partial: the room, as it was joined
    """

    def __init__(self, name: str) -> None:
        with gzip.open(path_of(name)) as file:
            self.data: dict[str, Any] = json.load(file)
        self.version = room_version(self.data["room_version"])
        self.pdus = {event_id: self.event(pdu) for event_id, pdu in self.data["pdus"].items()}
        response = self.data["send_join_response_partial"]
        self.join = PartialJoin(
            self.event(response["event"]),
            [self.event(pdu) for pdu in response["state"]],
            [self.event(pdu) for pdu in response["auth_chain"]],
            frozenset(response["servers_in_room"]),
        )
        self.room = Room(self.version)
        self.partial = join_partially(self.room, self.join, self.data["joining_server"])

    @property
    def room_id(self) -> str:
        return self.join.join.room_id

    def event(self, pdu: dict[str, Any]) -> Event:
        return event_of(pdu, self.version)

    def state_at(self, event_id: str) -> dict[StateKey, str]:
        """The state before an event."""
        events = [self.pdus[each] for each in self.data["state_ids"][event_id]["pdu_ids"]]
        return {(each.type, each.state_key or ""): each.event_id for each in events}

    def missing_at(self, event_id: str) -> list[IncomingEvent]:
        """The outliers that are missing for the state before an event; they are in the room in memory now."""
        answer = self.data["state_ids"][event_id]
        everything = [*answer["pdu_ids"], *answer["auth_chain_ids"]]
        return self._outliers(self.pdus[each] for each in everything)

    def next(self, event: Event) -> list[IncomingEvent]:
        """Take in an event, with what it lacks; returns all of it in order."""
        given = [IncomingEvent(event)]
        judged = self.partial.receive(event)
        while not judged:
            missing = self.room.missing
            parents = missing.intersection(event.prev_event_ids)
            given += self._outliers(self._chain(missing - parents))
            for each in sorted(parents):
                given += self.missing_at(each)
                state = self.state_at(each)
                judged += self.partial.add_with_state(self.pdus[each], state)
                given.append(IncomingEvent(self.pdus[each], live=False, state_before=state))
            judged = [self.room[event.event_id]] if event.event_id in self.room else []
        return given

    def all_later(self) -> list[IncomingEvent]:
        """All events of the scenario after the join."""
        return [
            each
            for row in self.data["later_events"]
            for each in self.next(self.event(row["event"]))
        ]

    def _outliers(self, events: Iterable[Event]) -> list[IncomingEvent]:
        new = [each for each in events if each.event_id not in self.room]
        self.partial.add_outliers(new)
        order = topological_sort(new, dependencies=auth_dependencies)
        return [IncomingEvent(each, outlier=True) for each in order.events]

    def _chain(self, event_ids: Collection[str]) -> list[Event]:
        """Events that are cited, with all that they depend on and is not known."""
        found: dict[str, Event] = {}
        ahead = list(event_ids)
        while ahead:
            event_id = ahead.pop()
            if event_id not in found and event_id not in self.room:
                found[event_id] = self.pdus[event_id]
                ahead += found[event_id].auth_event_ids
        return list(found.values())
