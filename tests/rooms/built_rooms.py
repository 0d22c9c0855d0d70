"""Rooms whose events are made, hashed and signed as servers make them."""

from __future__ import annotations

from typing import Any

from signedjson.key import generate_signing_key, get_verify_key
from signedjson.types import SigningKey

from synrepl.rooms.builder import EventBuilder, EventDraft
from synrepl.rooms.event import Event
from synrepl.rooms.room import Room
from synrepl.rooms.signatures import Keys, ServerKey
from synrepl.rooms.versions import room_version

ALICE, BOB, CAROL = "@alice:a.example", "@bob:b.example", "@carol:a.example"


class BuiltRoom:
    """Alice made a public room; every user's server has a key, and builds its events on one room.

    :ivar events: all that were made, in that order
    """

    def __init__(self, version: str = "10") -> None:
        self.version = room_version(version)
        self.room = Room(self.version)
        self.events: list[Event] = []
        self._keys: dict[str, SigningKey] = {}
        self._time = 0
        creation = EventDraft("m.room.create", ALICE, self.creation(version), 1, "")
        room_id = None if self.version.room_id_is_create_hash else "!room:a.example"
        self.take(self.builder(ALICE).create(creation, room_id))
        self.member(ALICE, "join")
        users = {} if self.version.creators_have_infinite_power else {ALICE: 100}
        self.state("m.room.power_levels", {"users": users, "state_default": 50, "invite": 0})
        self.state("m.room.join_rules", {"join_rule": "public"})

    def creation(self, version: str) -> dict[str, Any]:
        if self.version.creator_is_sender:
            return {"room_version": version}
        return {"room_version": version, "creator": ALICE}

    def builder(self, user: str) -> EventBuilder:
        server = user.partition(":")[2]
        key = self._keys.setdefault(server, generate_signing_key("1"))
        return EventBuilder(self.version, server, key)

    @property
    def keys(self) -> Keys:
        """Of all servers."""
        return {
            server: {f"{key.alg}:{key.version}": ServerKey(get_verify_key(key))}
            for server, key in self._keys.items()
        }

    def draft(
        self,
        kind: str,
        content: dict[str, Any],
        sender: str = ALICE,
        key: str | None = None,
        **more: Any,
    ) -> EventDraft:
        self._time += 1
        return EventDraft(kind, sender, content, self._time, key, **more)

    def build(self, *args: Any, **more: Any) -> Event:
        """An event that the room does not get yet."""
        draft = self.draft(*args, **more)
        return self.builder(draft.sender).build(draft, self.room)

    def send(self, *args: Any, **more: Any) -> Event:
        return self.take(self.build(*args, **more))

    def state(
        self, kind: str, content: dict[str, Any], sender: str = ALICE, key: str = ""
    ) -> Event:
        return self.send(kind, content, sender, key)

    def member(self, user: str, membership: str, sender: str | None = None, **more: Any) -> Event:
        content = {"membership": membership, **more}
        return self.send("m.room.member", content, sender or user, user)

    def take(self, event: Event) -> Event:
        self.room.receive(event)
        self.events.append(event)
        return event
