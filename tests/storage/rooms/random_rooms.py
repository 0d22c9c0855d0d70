"""Random rooms: events of all kinds, that follow and cite what they like."""

from __future__ import annotations

from random import Random
from typing import Any

from synrepl.rooms import Event, StateKey
from tests.rooms.small_rooms import SmallRoom

USERS = ("@alice:a", "@carol:a", "@bob:b", "@dave:c", "@erin:d")

#: Kinds of events, the frequent ones more often.
_KINDS = ("message",) * 5 + ("join", "join", "leave", "ban", "topic", "topic", "entry", "entry")
_RARE = ("levels", "rules", "visibility", "redaction", "redaction", "nonsense", "aliases")


class RandomRoom:
    """Makes events, each on top of some of the newest ones.

    :ivar events: all that were made, in an order that respects causes
    """

    def __init__(self, rng: Random, version: str) -> None:
        self._rng = rng
        self._small = SmallRoom(version)
        self.version = self._small.version
        self.events = [*self._small.base, self._small.carol]
        self._last: dict[StateKey, Event] = {}
        for each in self.events:
            self._note(each)

    @property
    def room_id(self) -> str:
        return self.events[0].room_id

    def more(self, count: int) -> list[Event]:
        """Make events."""
        return [self._make() for _ in range(count)]

    def _note(self, event: Event) -> None:
        if event.state_key is not None:
            self._last[event.type, event.state_key] = event

    def _make(self) -> Event:
        rng = self._rng
        newest = self.events[-8:]
        width = rng.choice([1, 1, 1, 1, 2, 2, 3])
        follows = (
            [newest[-1]] if rng.random() < 0.6 else rng.sample(newest, min(width, len(newest)))
        )
        kind = rng.choice(_KINDS if rng.random() < 0.8 else _RARE)
        sender = rng.choice(USERS)
        contents, more = self._contents(kind, sender, follows)
        event = self._small.event(*contents, **more)
        self.events.append(event)
        # Others cite it even if it is refused, or is on another branch.
        self._note(event)
        return event

    def _contents(self, kind: str, sender: str, follows: list[Event]) -> tuple[Any, Any]:
        rng = self._rng
        target = sender
        key: str | None = None
        content: dict[str, Any] = {"body": str(len(self.events))}
        event_type = "m.room.message"
        if kind in ("join", "leave", "ban"):
            target = rng.choice(USERS) if kind != "join" else sender
            event_type, key, content = "m.room.member", target, {"membership": kind}
        elif kind == "topic":
            event_type, key = "m.room.topic", ""
        elif kind == "entry":
            event_type, key = "org.example.entry", str(rng.randrange(12))
        elif kind == "levels":
            users = {each: rng.choice([0, 50, 100]) for each in rng.sample(USERS, 2)}
            implied = self.version.creators_have_infinite_power
            event_type, key = "m.room.power_levels", ""
            content = {"state_default": 0, "users": users if implied else {**users, USERS[0]: 100}}
            if implied:
                content["users"].pop(USERS[0], None)
        elif kind == "rules":
            event_type, key = "m.room.join_rules", ""
            content = {"join_rule": rng.choice(["public", "public", "invite"])}
        elif kind == "visibility":
            event_type, key = "m.room.history_visibility", ""
            content = {"history_visibility": rng.choice(["joined", "shared", "odd"])}
        elif kind == "redaction":
            event_type = "m.room.redaction"
            content = {"redacts": rng.choice(self.events[-12:]).event_id}
        elif kind == "nonsense":
            event_type, key = "m.room.create", "again"
        elif kind == "aliases":
            event_type, key = "m.room.aliases", sender.partition(":")[2]
        more: dict[str, Any] = {}
        if event_type == "m.room.redaction" and not self.version.redacts_in_content:
            more["redacts"] = content.pop("redacts")
        cites = [self._small.create]
        keys = [("m.room.power_levels", ""), ("m.room.member", sender)]
        if event_type == "m.room.member":
            keys += [("m.room.member", target), ("m.room.join_rules", "")]
        for each in dict.fromkeys(keys):
            found = self._last.get(each)
            if found is not None and rng.random() < 0.97:
                cites.append(found)
        return (event_type, content, follows, cites, sender, key), more
