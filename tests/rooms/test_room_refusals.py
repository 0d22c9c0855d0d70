"""Events that a room refuses for themselves, or for what they cite."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from signedjson.key import generate_signing_key

from synrepl.rooms.builder import EventBuilder, EventDraft
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.judged import Judged
from synrepl.rooms.room import Room
from synrepl.rooms.versions import V10

KEY = generate_signing_key("1")


class RejectedInARoom(TestCase):
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
        built = EventBuilder(V10, "x", KEY).assemble(
            EventDraft(kind, "@a:x", content, 1, state_key), "!r:x", (cites or [])[-1:], cites or []
        )
        return event_of(built.fields | more, V10)

    def judged(self, event: Event) -> Judged:
        (judged,) = self.room.receive(event)
        return judged

    def assert_refused(self, code: str, event: Event) -> None:
        judged = self.judged(event)
        assert judged.refusal is not None
        self.assertEqual((judged.refusal.code, judged.failed), (code, "auth_events"))

    def test_an_unsigned_event_is_rejected(self) -> None:
        cites = [self.create, self.join]
        signed = self.event("m.room.topic", {"topic": "a"}, "", cites)
        self.assertTrue(self.judged(signed).accepted)
        unsigned = self.event("m.room.name", {"name": "a"}, "", cites, signatures={})
        self.assert_refused("unsigned", unsigned)

    def test_an_event_with_a_rejected_auth_event_is_rejected(self) -> None:
        """Its levels would allow it, were they anybody's to set."""
        stranger = {"sender": "@b:x"}
        levels = self.event("m.room.power_levels", {"users": {"@a:x": 100}}, "", [self.create])
        levels = event_of({**levels.fields, **stranger}, V10)
        self.assert_refused("sender-not-joined", levels)
        message = self.event("m.room.message", {}, None, [self.create, levels, self.join])
        self.assert_refused("cites-rejected", message)
