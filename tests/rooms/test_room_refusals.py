"""Events that a room refuses for themselves, or for what they cite."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.rooms.event import Event, event_of
from synrepl.rooms.judged import Judged
from synrepl.rooms.room import Room
from synrepl.rooms.versions import V10


class Refusals(TestCase):
    """A room with its creation and its creator."""

    def setUp(self) -> None:
        self.room = Room(V10)
        self.create = self.event("m.room.create", {"creator": "@a:x", "room_version": "10"}, "")
        self.room.receive(self.create)
        self.join = self.event("m.room.member", {"membership": "join"}, "@a:x", [self.create])
        self.room.receive(self.join)

    def event(
        self,
        kind: str,
        content: dict[str, Any],
        state_key: str | None = None,
        cites: list[Event] | None = None,
        **more: Any,
    ) -> Event:
        fields: dict[str, Any] = {
            "type": kind,
            "content": content,
            "sender": "@a:x",
            "room_id": "!r:x",
            "depth": 1,
            "origin_server_ts": 1,
            "prev_events": [each.event_id for each in (cites or [])[-1:]],
            "auth_events": [each.event_id for each in cites or []],
            "signatures": {"x": {"ed25519:1": "of no matter here"}},
            **more,
        }
        return event_of(fields if state_key is None else {**fields, "state_key": state_key}, V10)

    def judged(self, event: Event) -> Judged:
        (judged,) = self.room.receive(event)
        return judged

    def assert_refused(self, code: str, event: Event) -> None:
        judged = self.judged(event)
        assert judged.refusal is not None
        self.assertEqual((judged.refusal.code, judged.failed), (code, "auth_events"))

    def test_unsigned(self) -> None:
        cites = [self.create, self.join]
        signed = self.event("m.room.topic", {"topic": "a"}, "", cites)
        self.assertTrue(self.judged(signed).accepted)
        unsigned = self.event("m.room.name", {"name": "a"}, "", cites, signatures={})
        self.assert_refused("unsigned", unsigned)

    def test_what_cites_a_rejected_event(self) -> None:
        """Its levels would allow it, were they anybody's to set."""
        stranger = {"sender": "@b:x"}
        levels = self.event("m.room.power_levels", {"users": {"@a:x": 100}}, "", [self.create])
        levels = event_of({**levels.fields, **stranger}, V10)
        self.assert_refused("sender-not-joined", levels)
        message = self.event("m.room.message", {}, None, [self.create, levels, self.join])
        self.assert_refused("cites-rejected", message)
