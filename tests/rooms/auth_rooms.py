"""Rooms for tests of auth rules: a state of events that nobody has checked."""

from __future__ import annotations

from typing import Any

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import ROOM_VERSIONS, EventIds

Json = dict[str, Any]

ALICE, BOB, CAROL, DAVE = "@alice:a", "@bob:b", "@carol:a", "@dave:d"
NEWEST = "12"
LEVELS_TYPE = "m.room.power_levels"


class Room:
    """A room with a creator, Alice; what is in it is for each test to say."""

    def __init__(self, version: str = "11", **creation: Any) -> None:
        self.version = ROOM_VERSIONS[version]
        self._count = 0
        self.room_id = "!room:a"
        self.state: dict[StateKey, Event] = {}
        self.creation = self.put("m.room.create", {"creator": ALICE, **creation}, prev=())
        self.room_id = self.creation.room_id
        self.join(ALICE)

    def event(
        self,
        kind: str,
        content: Json,
        sender: str = ALICE,
        state_key: str | None = None,
        prev: tuple[str, ...] = ("$p:a",),
        auth: tuple[str, ...] = (),
        **more: Any,
    ) -> Event:
        self._count += 1
        given = self.version.event_ids is EventIds.GIVEN
        server = sender.partition(":")[2]

        def references(ids: tuple[str, ...]) -> list[Any]:
            return [[each, {}] for each in ids] if given else list(ids)

        fields = {
            "type": kind,
            "room_id": self.room_id,
            "sender": sender,
            "content": content,
            "depth": self._count,
            "origin_server_ts": self._count,
            "prev_events": references(prev),
            "auth_events": references(auth),
            "hashes": {},
            "signatures": {server: {"ed25519:1": "x"}},
        }
        if given:
            fields["event_id"] = f"${self._count}:{server}"
        if state_key is not None:
            fields["state_key"] = state_key
        if kind == "m.room.create" and state_key == "" and self.version.room_id_is_create_hash:
            del fields["room_id"]
        return event_of(fields | more, self.version)

    def put(
        self, kind: str, content: Json, sender: str = ALICE, key: str = "", **more: Any
    ) -> Event:
        """Have it in the state, whether it may be or not."""
        event = self.state[kind, key] = self.event(kind, content, sender, key, **more)
        return event

    def member(self, user: str, membership: str) -> None:
        self.put("m.room.member", {"membership": membership}, user, user)

    def join(self, *users: str) -> None:
        for user in users:
            self.member(user, "join")

    def levels(self, **levels: Any) -> None:
        self.put(LEVELS_TYPE, levels)

    def rule(self, join_rule: object) -> None:
        self.put("m.room.join_rules", {"join_rule": join_rule})

    def judge(self, *args: Any, **kwargs: Any) -> str | None:
        """The code for an event, None when it is allowed."""
        refusal = authorise(self.event(*args, **kwargs), self.state)
        return None if refusal is None else refusal.code

    def judge_member(
        self, membership: object, sender: str, target: str | None = None, **content: Any
    ) -> str | None:
        key = sender if target is None else target
        return self.judge("m.room.member", {"membership": membership, **content}, sender, key)
