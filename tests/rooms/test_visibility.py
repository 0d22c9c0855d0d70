"""Who sees what: whole rooms judged by the reference, and odd input."""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.rooms.event import Event, event_of
from synrepl.rooms.redacting import redact
from synrepl.rooms.state import StateKey
from synrepl.rooms.versions import room_version
from synrepl.rooms.visibility.audience import (
    EventAudience,
    HistoryVisibility,
    Sight,
    VisibilityReason,
    audience_of,
    membership_after,
)
from synrepl.rooms.visibility.clients import Viewer, visible_to_user
from synrepl.rooms.visibility.servers import (
    ServerMemberships,
    server_memberships_at,
    visible_to_server,
)
from tests.rooms.vector_files import lines

ROOMS = "visibility/random.jsonl.gz"


class RoomWithStates:
    """A room of the vectors: each accepted event with the state before it."""

    def __init__(self, row: dict[str, Any]) -> None:
        version = room_version(row["room_version"])
        events: dict[str, Event] = {}
        state: dict[StateKey, Event] = {}
        self.accepted: list[tuple[Event, dict[StateKey, Event], EventAudience]] = []
        self.presence: list[ServerMemberships] = []
        for line in row["events"]:
            event = events[line["event_id"]] = event_of(line["event"], version)
            assert event.event_id == line["event_id"]
            for kind, key in line["state_before_delta"]["del"]:
                del state[kind, key]
            for kind, key, event_id in line["state_before_delta"]["set"]:
                state[kind, key] = events[event_id]
            if line["verdict"] == "accept":
                audience = audience_of(event, state, soft_failed=bool(line.get("soft_failed")))
                self.accepted.append((event, dict(state), audience))
                self.presence.append(server_memberships_at(event, state))


def changed(event: Event) -> bool:
    """Whether redaction takes anything from an event's content."""
    return redact(event.fields, event.version)["content"] != event.content


class VisibilityVectors(TestCase):
    """Every case of every room."""

    def test_what_users_see_equals_the_vectors(self) -> None:
        seen = 0
        for row in lines(ROOMS):
            room = RoomWithStates(row)
            for number, case in enumerate(row["client_cases"]):
                with self.subTest(f"{row['id']} client case {number}"):
                    self.client_case(room, case)
                    seen += 1
        self.assertEqual(seen, 384)

    def client_case(self, room: RoomWithStates, case: dict[str, Any]) -> None:
        viewer = Viewer(case["user"], case["is_peeking"], frozenset(case["ignored_users"]))
        found: dict[Sight, list[str]] = {sight: [] for sight in Sight}
        memberships = []
        for event, before, audience in room.accepted:
            membership = membership_after(event, before, viewer.user)
            verdict = visible_to_user(audience, viewer, membership, case["erased_senders"])
            if verdict.sight is not Sight.REDACTED or changed(event):
                found[verdict.sight].append(event.event_id)
            if verdict.sight is not Sight.HIDDEN:
                memberships.append(membership)
            self.assertTrue(verdict.explain(viewer.user).startswith(verdict.sight))
        self.assertEqual(found[Sight.HIDDEN], case["hidden"])
        self.assertEqual(found[Sight.REDACTED], case["visible_redacted"])
        self.assertEqual(memberships, case["membership_at_visible_events"])
        self.assertEqual(len(memberships), case["n_visible"])

    def test_what_servers_see_equals_the_vectors(self) -> None:
        seen = 0
        for row in lines(ROOMS):
            room = RoomWithStates(row)
            for number, case in enumerate(row["server_cases"]):
                with self.subTest(f"{row['id']} server case {number}"):
                    verdicts = [
                        visible_to_server(
                            audience, case["server"], presence, case["erased_senders"]
                        )
                        for (_, _, audience), presence in zip(
                            room.accepted, room.presence, strict=True
                        )
                    ]
                    found = [
                        event.event_id
                        for (event, _, _), verdict in zip(room.accepted, verdicts, strict=True)
                        if verdict.sight is Sight.REDACTED
                    ]
                    self.assertEqual(found, case["redacted"])
                    self.assertNotIn(Sight.HIDDEN, {verdict.sight for verdict in verdicts})
                    seen += 1
        self.assertEqual(seen, 192)


V10 = room_version("10")


def event(kind: str, content: object, state_key: str | None = None, sender: str = "@a:x") -> Event:
    """An event with only the fields that matter here."""
    fields: dict[str, Any] = {
        "type": kind,
        "sender": sender,
        "room_id": "!r:x",
        "content": content,
        "depth": 1,
        "origin_server_ts": 1,
        "prev_events": [],
        "auth_events": [],
    }
    return event_of(fields if state_key is None else {**fields, "state_key": state_key}, V10)


def history(value: object) -> dict[StateKey, Event]:
    """A state that has nothing but the visibility of its history."""
    entry = event("m.room.history_visibility", {"history_visibility": value}, "")
    return {("m.room.history_visibility", ""): entry}


class VisibilityRules(TestCase):
    """Rules one by one, with the reason."""

    def assert_seen(
        self, reason: VisibilityReason, seen: Event, state: object, viewer: Viewer, **more: Any
    ) -> None:
        before = history(state)
        membership = more.pop("membership", None) or membership_after(seen, before, viewer.user)
        audience = audience_of(seen, before, soft_failed=more.pop("soft_failed", False))
        self.assertIs(visible_to_user(audience, viewer, membership, **more).reason, reason)

    def test_each_reason_has_its_rule(self) -> None:
        said = event("m.room.message", {})
        member, stranger = Viewer("@b:x"), Viewer("@b:x", is_peeking=True)
        self.assert_seen(VisibilityReason.WORLD_READABLE, said, "world_readable", stranger)
        self.assert_seen(VisibilityReason.SHARED, said, "shared", member)
        self.assert_seen(VisibilityReason.PEEKING, said, "shared", stranger)
        self.assert_seen(VisibilityReason.INVITED, said, "invited", member, membership="invite")
        self.assert_seen(VisibilityReason.NOT_INVITED, said, "invited", member)
        self.assert_seen(VisibilityReason.JOINED, said, "joined", member, membership="join")
        self.assert_seen(VisibilityReason.NOT_JOINED, said, "joined", member, membership="invite")
        self.assert_seen(
            VisibilityReason.SOFT_FAILED, said, "world_readable", member, soft_failed=True
        )
        self.assert_seen(VisibilityReason.IGNORED, said, "shared", Viewer("@b:x", ignored={"@a:x"}))
        aliases = event("m.room.aliases", {}, "x")
        self.assert_seen(VisibilityReason.ALIASES, aliases, "world_readable", member)
        topic = event("m.room.topic", {}, "")
        self.assert_seen(VisibilityReason.SHARED, topic, "shared", Viewer("@b:x", ignored={"@a:x"}))

    def test_a_withdrawn_invite_is_shown_to_the_invited_user(self) -> None:
        before = history("joined")
        before["m.room.member", "@b:x"] = event("m.room.member", {"membership": "invite"}, "@b:x")
        for now, expected in (
            ("leave", VisibilityReason.INVITATION_ENDED),
            ("ban", VisibilityReason.NOT_JOINED),
        ):
            audience = audience_of(event("m.room.member", {"membership": now}, "@b:x"), before)
            self.assertIs(visible_to_user(audience, Viewer("@b:x"), now).reason, expected)
            self.assertIs(
                visible_to_user(audience, Viewer("@c:x"), now).reason, VisibilityReason.NOT_JOINED
            )

    def test_dummy_events_are_hidden(self) -> None:
        dummy = event("org.matrix.dummy_event", {})
        self.assert_seen(
            VisibilityReason.DUMMY, dummy, "world_readable", Viewer("@a:x"), membership="join"
        )

    def test_the_leave_of_an_erased_user_is_redacted(self) -> None:
        """Who was thrown out sees of that no more than others do."""
        for was, now, expected in (
            ("join", "leave", Sight.REDACTED),
            ("invite", "leave", Sight.REDACTED),
            ("join", "ban", Sight.FULL),
            ("invite", "join", Sight.FULL),
        ):
            before = history("joined")
            before["m.room.member", "@b:x"] = event("m.room.member", {"membership": was}, "@b:x")
            moved = event("m.room.member", {"membership": now}, "@b:x")
            audience = audience_of(moved, before)
            with self.subTest(was=was, now=now):
                erased = visible_to_user(audience, Viewer("@b:x"), now, {"@a:x"})
                self.assertIs(erased.sight, expected)
                self.assertIs(visible_to_user(audience, Viewer("@b:x"), now).sight, Sight.FULL)
        member = visible_to_user(audience, Viewer("@c:x"), "join", {"@a:x"})
        self.assertIs(member.sight, Sight.FULL, "the others were there and stay")

    def test_an_unknown_visibility_is_shared(self) -> None:
        said = event("m.room.message", {})
        for value in "bogus", None, 1, [], {}, "WORLD_READABLE":
            visibility = audience_of(said, history(value)).visibility
            self.assertIs(visibility, HistoryVisibility.SHARED, repr(value))
        self.assertIs(audience_of(said, {}).visibility, HistoryVisibility.SHARED)

    def test_explains_a_verdict_in_a_sentence(self) -> None:
        audience = audience_of(event("m.room.message", {}), history("joined"))
        verdict = visible_to_user(audience, Viewer("@b:x"), "leave")
        self.assertEqual(
            verdict.explain("@b:x"),
            "hidden: the history is for those in the room, and @b:x was not",
        )
        shared = audience_of(event("m.room.message", {}), {})
        self.assertEqual(
            visible_to_user(shared, Viewer("@b:x"), "leave", {"@a:x"}).explain("@b:x"),
            "redacted: the history is shared with everyone who is or was in the room; "
            "its sender has erased itself",
        )
        self.assertEqual(
            visible_to_server(audience, "y", {}, {"@a:x"}).explain("y"),
            "redacted: the history is for those in the room, and y was not",
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
contents = st.fixed_dictionaries(
    {}, optional={"membership": json_values, "history_visibility": json_values}
)
kinds = st.sampled_from(["m.room.member", "m.room.history_visibility", "m.room.aliases", "x"])
keys = st.none() | st.sampled_from(["", "@a:x", "@b:x", "nobody"])


class UnusualVisibilityInput(TestCase):
    """Whatever the content is, there is an answer."""

    @settings(max_examples=150)
    @given(kinds, keys, contents, contents, contents)
    def test_always_gives_a_verdict(
        self, kind: str, key: str | None, own: Any, member: Any, visible: Any
    ) -> None:
        one = event(kind, own, key)
        before = {
            ("m.room.history_visibility", ""): event("m.room.history_visibility", visible, ""),
            ("m.room.member", "@a:x"): event("m.room.member", member, "@a:x"),
            ("m.room.member", "nobody"): event("m.room.member", member, "nobody"),
        }
        audience = audience_of(one, before)
        for user in "@a:x", "@b:x", "nobody":
            verdict = visible_to_user(audience, Viewer(user), membership_after(one, before, user))
            json.dumps(verdict.explain(user))
        self.assertIsInstance(
            visible_to_server(audience, "x", server_memberships_at(one, before)).sight, Sight
        )
