"""Random rooms: events of all kinds, that follow and cite what they like."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, ClassVar

from synrepl.rooms import Event, StateKey, event_of, room_version

USERS = ("@alice:a", "@carol:a", "@bob:b", "@dave:c", "@erin:d")

#: Kinds of events, the frequent ones more often.
_KINDS = ("message",) * 5 + ("join", "join", "leave", "ban", "topic", "topic", "entry", "entry")
_RARE = ("levels", "rules", "visibility", "redaction", "redaction", "nonsense", "aliases")


class EventMaker:
    """Makes events of one room, without content hashes and with signatures that nobody checks.

    :param name: unique among the rooms of a database
    """

    def __init__(self, version: str, name: str) -> None:
        self.version = room_version(version)
        self._name = name
        self._count = 0
        self.room_id = f"!{name}:a"
        self.create = self.event(
            "m.room.create", {"creator": USERS[0], "org.example.name": name}, (), (), key=""
        )
        self.room_id = self.create.room_id

    def event(
        self,
        kind: str,
        content: dict[str, Any],
        follows: Iterable[Event],
        cites: Iterable[Event],
        sender: str = USERS[0],
        key: str | None = None,
        **more: Any,
    ) -> Event:
        """An event that the room does not have yet."""
        self._count += 1
        has_given_id = self.version.name in ("1", "2")
        server = sender.partition(":")[2]
        is_implied = self.version.room_id_is_create_hash

        def references(events: Iterable[Event]) -> list[Any]:
            ids = [each.event_id for each in events]
            return [[each, {}] for each in ids] if has_given_id else ids

        fields: dict[str, Any] = {
            "type": kind,
            "room_id": self.room_id,
            "sender": sender,
            "content": content,
            "depth": self._count,
            "origin_server_ts": self._count,
            "prev_events": references(follows),
            "auth_events": references(
                each for each in cites if not (is_implied and each.is_create)
            ),
            "hashes": {},
            "signatures": {server: {"ed25519:1": "x"}},
        }
        if has_given_id:
            fields["event_id"] = f"${self._name}.{self._count}:{server}"
        if key is not None:
            fields["state_key"] = key
        if self._count == 1 and is_implied:
            del fields["room_id"]
        return event_of(fields | more, self.version)


class RandomRoom:
    """Makes events, each on top of some of the newest ones.

    It begins as a public room of Alice in which everybody may change the state, with Carol in it.

    :param name: unique among the rooms of a database
    :ivar maker: makes its events
    :ivar events: all that were made, in an order that respects causes
    """

    def __init__(self, rng: Random, version: str, name: str = "room") -> None:
        self._rng = rng
        self.maker = make = EventMaker(version, name)
        self.version = make.version
        self._create = create = make.create
        alice, carol = USERS[:2]
        joins = {"membership": "join"}
        joined = make.event("m.room.member", joins, [create], [create], key=alice)
        free = {"state_default": 0, "users": {}}
        levels = make.event("m.room.power_levels", free, [joined], [create, joined], key="")
        cites = [create, joined, levels]
        public = {"join_rule": "public"}
        rules = make.event("m.room.join_rules", public, [levels], cites, key="")
        entered = make.event("m.room.member", joins, [rules], [create, rules], carol, carol)
        self.events = [create, joined, levels, rules, entered]
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
        event = self.maker.event(*contents, **more)
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
        cites = [self._create]
        keys = [("m.room.power_levels", ""), ("m.room.member", sender)]
        if event_type == "m.room.member":
            keys += [("m.room.member", target), ("m.room.join_rules", "")]
        for each in dict.fromkeys(keys):
            found = self._last.get(each)
            if found is not None and rng.random() < 0.97:
                cites.append(found)
        return (event_type, content, follows, cites, sender, key), more


class RestlessRoom(RandomRoom):
    """A random room in which users come and go, and the history visibility changes."""

    _INSTEAD: ClassVar[dict[str, str]] = {
        "entry": "join",
        "topic": "leave",
        "aliases": "visibility",
    }

    def _contents(self, kind: str, sender: str, follows: list[Event]) -> tuple[Any, Any]:
        return super()._contents(self._INSTEAD.get(kind, kind), sender, follows)
