"""Rooms for the benchmarks of the room store: real JSON, made quickly."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.room_shapes.histories import Joined, Step, Stretch
from synrepl.rooms import Event, StateKey, event_of, room_version

_VERSION = room_version("10")
_ROOM = "!benchmark:a.example"
_CREATOR = "@creator:a.example"
_SPINE = [("m.room.create", ""), ("m.room.power_levels", "")]

#: Content of the first events of a room.
_CONTENTS: dict[str, dict[str, Any]] = {
    "m.room.create": {"creator": _CREATOR},
    "m.room.power_levels": {"users": {_CREATOR: 100}},
    "m.room.join_rules": {"join_rule": "public"},
    "m.room.history_visibility": {"history_visibility": "shared"},
}


class ChatRoom:
    """A linear room of members who come and go, and write.

    :param members: number of members
    :param messages: share of messages among the events after the first
    """

    def __init__(self, members: int, messages: float, room_id: str = _ROOM) -> None:
        self._room_id = room_id
        self._members = members
        self._messages = messages
        self._depth = 0
        self._random = random.Random(1)
        self._newest: list[str] = []
        self._of_user: dict[str, str] = {}
        self._create = ""
        self._levels = ""
        self._rules = ""

    def events(self, count: int) -> Iterator[Event]:
        """The events of the room."""
        yield (create := self._event("m.room.create", {"creator": _CREATOR}, [], _CREATOR, ""))
        self._create = create.event_id
        yield self._member(_CREATOR, "join")
        cites = [self._create, self._of_user[_CREATOR]]
        levels = {"users": {_CREATOR: 100}}
        yield (made := self._event("m.room.power_levels", levels, cites, _CREATOR, ""))
        self._levels = made.event_id
        rules = {"join_rule": "public"}
        yield (
            made := self._event("m.room.join_rules", rules, [*cites, self._levels], _CREATOR, "")
        )
        self._rules = made.event_id
        inside = [_CREATOR]
        for number in range(count - 4):
            writes = self._random.random() < self._messages
            if writes:
                user = self._random.choice(inside[-200:])
                cites = [self._create, self._levels, self._of_user[user]]
                content = {"msgtype": "m.text", "body": f"message {number} " + "word " * 12}
                yield self._event("m.room.message", content, cites, user)
            else:
                user = f"@user{self._random.randrange(self._members)}:a.example"
                is_new = user not in self._of_user
                yield self._member(user, "join")
                if is_new:
                    inside.append(user)

    def fork(self, width: int, length: int) -> Iterator[Event]:
        """Branches from the end of the room, which change the topic and some of the same memberships.

        :param length: events of each branch
        """
        newest, of_user = self._newest, dict(self._of_user)
        users = [each for each in list(of_user)[1 : 2 * length] if each != _CREATOR]
        for branch in range(width):
            self._newest, self._of_user = newest, dict(of_user)
            cites = [self._create, self._levels, of_user[_CREATOR]]
            topic = {"topic": f"of branch {branch}"}
            yield self._event("m.room.topic", topic, cites, _CREATOR, "")
            for number in range(length - 1):
                yield self._member(users[(branch + number) % len(users)], "join")

    def along(self, steps: Sequence[Step | Stretch | Joined]) -> Iterator[Event]:
        """Events that set the keys of some steps, along their graph. Nothing else may be in the room."""
        made: list[tuple[str, int]] = []
        firsts: dict[StateKey, str] = {}
        for step in steps:
            assert isinstance(step, Step), "what other servers report is no event"
            parents = [made[each] for each in step.parents]
            self._newest = [event_id for event_id, _ in parents]
            self._depth = max((depth for _, depth in parents), default=0)
            kind, state_key = step.key
            sender = state_key if kind == "m.room.member" else _CREATOR
            # The first event of a key is before all branches.
            cited = [*_SPINE, ("m.room.member", sender)]
            if kind == "m.room.member":
                cited.append(("m.room.join_rules", ""))
            cites = [firsts[key] for key in cited if key in firsts]
            content = _CONTENTS.get(kind) or {"membership": "join", "displayname": str(len(made))}
            event = self._event(kind, content, cites, sender, state_key)
            firsts.setdefault(step.key, event.event_id)
            made.append((event.event_id, self._depth))
            yield event

    def _member(self, user: str, membership: str) -> Event:
        cites = [each for each in (self._create, self._levels, self._rules) if each]
        if user in self._of_user:
            cites.append(self._of_user[user])
        content = {"membership": membership, "displayname": f"{user} at {self._depth}"}
        event = self._event("m.room.member", content, cites, user, user)
        self._of_user[user] = event.event_id
        return event

    def _event(
        self,
        kind: str,
        content: dict[str, Any],
        cites: list[str],
        sender: str,
        state_key: str | None = None,
    ) -> Event:
        self._depth += 1
        fields: dict[str, Any] = {
            "type": kind,
            "room_id": self._room_id,
            "sender": sender,
            "content": content,
            "depth": self._depth,
            "origin_server_ts": 1_700_000_000_000 + self._depth,
            "prev_events": self._newest,
            "auth_events": cites,
            "hashes": {"sha256": "x" * 43},
            "signatures": {"a.example": {"ed25519:key": "s" * 86}},
        }
        if state_key is not None:
            fields["state_key"] = state_key
        event = event_of(fields, _VERSION)
        self._newest = [event.event_id]
        return event
