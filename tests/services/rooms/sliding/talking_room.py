"""A small room of tests, in which things happen one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.rooms.random_rooms import EventMaker
from synrepl.rooms import Event, StateKey

ALICE, BOB, CAROL = "@alice:a", "@bob:b", "@carol:a"


class TalkingRoom:
    """A public room of Alice's.

    :param name: unique among the rooms of a database
    :ivar events: all of them
    """

    def __init__(self, name: str, *members: str) -> None:
        self._make = EventMaker("10", name)
        self.version, self.room_id = self._make.version, self._make.room_id
        self.events = [self._make.create]
        self._last: dict[StateKey, Event] = {("m.room.create", ""): self._make.create}
        self.put("m.room.member", {"membership": "join"}, ALICE, ALICE)
        self.put("m.room.power_levels", {"users": {ALICE: 100}}, ALICE)
        self.put("m.room.join_rules", {"join_rule": "public"}, ALICE)
        for each in members:
            self.put("m.room.member", {"membership": "join"}, each, each)
        self._taken = 0

    def say(self, body: str, sender: str = ALICE) -> Event:
        """A message."""
        return self._add("m.room.message", {"body": body}, sender)

    def put(self, kind: str, content: dict[str, Any], sender: str, key: str = "") -> Event:
        """A state event."""
        event = self._add(kind, content, sender, key)
        self._last[kind, key] = event
        return event

    def _add(
        self, kind: str, content: dict[str, Any], sender: str, key: str | None = None
    ) -> Event:
        wanted = [("m.room.create", ""), ("m.room.power_levels", ""), ("m.room.member", sender)]
        if kind == "m.room.member" and key is not None:
            wanted.append((kind, key))
            if content["membership"] == "join":
                wanted.append(("m.room.join_rules", ""))
        cites = [self._last[each] for each in dict.fromkeys(wanted) if each in self._last]
        event = self._make.event(kind, content, [self.events[-1]], cites, sender, key)
        self.events.append(event)
        return event

    def new(self) -> Sequence[Event]:
        """The events since the last call."""
        found, self._taken = self.events[self._taken :], len(self.events)
        return found
