"""Each auth rule by itself: a case that it allows, and one that it refuses, with the code.

Membership is in ``test_auth_members``, power levels in ``test_auth_levels``.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import TestCase

from synrepl.rooms.auth.authorise import authorise
from synrepl.rooms.auth.create import creators_of
from synrepl.rooms.auth.selection import auth_event_keys, check_auth_events
from synrepl.rooms.auth.state_independent import check_state_independent
from synrepl.rooms.event import Event
from synrepl.rooms.state import StateKey
from tests.rooms.auth_rooms import ALICE, BOB, CAROL, DAVE, LEVELS_TYPE, NEWEST, Json, Room


class CreateEvents(TestCase):
    """Step 1, and what state needs it."""

    def own(self, version: str, content: Json, **more: Any) -> str | None:
        room = Room(version)
        event = room.event("m.room.create", content, state_key="", **{"prev": (), **more})
        refusal = check_state_independent(event)
        return None if refusal is None else refusal.code

    def test_must_have_no_prev_events(self) -> None:
        self.assertIsNone(self.own("11", {}))
        self.assertEqual(self.own("11", {}, prev=("$p",)), "create-not-first")

    def test_room_id_matches_the_senders_server_or_is_absent(self) -> None:
        self.assertEqual(self.own("11", {}, room_id="!r:b"), "create-for-other-server")
        self.assertIsNone(self.own("12", {}))
        self.assertEqual(self.own("12", {}, room_id="!r"), "create-with-room-id")

    def test_refuses_unknown_room_versions(self) -> None:
        self.assertIsNone(self.own("11", {"room_version": "11"}))
        for version in ("99", 11, None, [], {}):
            self.assertEqual(self.own("11", {"room_version": version}), "create-unknown-version")

    def test_names_its_creator_before_version_11(self) -> None:
        self.assertIsNone(self.own("10", {"creator": ALICE}))
        self.assertEqual(self.own("10", {}), "create-without-creator")

    def test_additional_creators_are_user_ids(self) -> None:
        self.assertIsNone(self.own("12", {"additional_creators": [BOB]}))
        self.assertIsNone(self.own("11", {"additional_creators": 1}))
        longest = "@b:" + 252 * "b"
        self.assertIsNone(self.own("12", {"additional_creators": [longest]}))
        for bad in (None, {}, BOB, [longest + "b"], [1], ["bob"], ["@bob"], [[BOB]]):
            self.assertEqual(
                self.own("12", {"additional_creators": bad}), "create-additional-creators"
            )

    def test_is_allowed_by_any_state(self) -> None:
        room = Room()
        self.assertIsNone(authorise(room.creation, {}))

    def test_other_events_need_one(self) -> None:
        room = Room()
        del room.state["m.room.create", ""]
        self.assertEqual(room.judge("m.room.message", {}), "no-create")

    def test_creators_of_a_room_by_version(self) -> None:
        self.assertEqual(creators_of(Room("10", creator=BOB).creation), {BOB})
        self.assertEqual(creators_of(Room("10", creator=[BOB]).creation), frozenset())
        self.assertEqual(creators_of(Room("11", creator=BOB).creation), {ALICE})
        room = Room("12", additional_creators=[BOB, 7, [1]])
        self.assertEqual(creators_of(room.creation), {ALICE, BOB})


class StateIndependentRules(TestCase):
    """What needs no state."""

    def code(self, event: Event) -> str | None:
        refusal = check_state_independent(event)
        return None if refusal is None else refusal.code

    def test_the_senders_server_must_have_signed(self) -> None:
        room = Room()
        self.assertIsNone(self.code(room.event("m", {})))
        for bad in (None, [], {}, {"b": {"ed25519:1": "x"}}, {"a": {}}, {"a": "x"}):
            self.assertEqual(self.code(room.event("m", {}, signatures=bad)), "unsigned")

    def test_the_sender_must_be_a_user_id(self) -> None:
        room = Room()
        for sender in ("alice:a", "@alice", "@alice:", ""):
            server = sender.partition(":")[2]
            event = room.event("m", {}, sender, signatures={server: {"ed25519:1": "x"}})
            self.assertEqual(self.code(event), "sender-no-user", sender)

    def test_a_third_party_invite_need_not_be_signed_by_the_senders_server(self) -> None:
        """Only an invite that came from a third party's may lack its sender's signature."""
        invite = {"third_party_invite": {"signed": {"mxid": BOB, "token": "t"}}}
        signatures = {"b": {"ed25519:1": "x"}}
        room = Room()

        def code(kind: str, content: Json) -> str | None:
            return self.code(room.event(kind, content, state_key=BOB, signatures=signatures))

        self.assertIsNone(code("m.room.member", {"membership": "invite", **invite}))
        self.assertEqual(code("m.room.member", {"membership": "invite"}), "unsigned")
        self.assertEqual(code("m.room.member", {"membership": "join", **invite}), "unsigned")
        self.assertEqual(code("m", {"membership": "invite", **invite}), "unsigned")

    def test_the_server_in_the_event_id_must_have_signed(self) -> None:
        room = Room("2")
        self.assertEqual(self.code(room.event("m", {}, event_id="$1:b")), "unsigned-id")
        signed = {"a": {"k": "x"}, "b": {"k": "x"}}
        self.assertIsNone(self.code(room.event("m", {}, event_id="$1:b", signatures=signed)))

    def test_a_member_event_needs_state_key_and_membership(self) -> None:
        room = Room()
        member = "m.room.member"
        self.assertEqual(self.code(room.event(member, {"membership": "join"})), "member-incomplete")
        self.assertEqual(self.code(room.event(member, {}, state_key=ALICE)), "member-incomplete")
        self.assertEqual(room.judge(member, {}, state_key=ALICE), "member-incomplete")
        self.assertIsNone(self.code(room.event(member, {"membership": 1}, state_key=ALICE)))

    def voucher(self, version: str, voucher: object, *signers: str) -> str | None:
        content = {"membership": "join", "join_authorised_via_users_server": voucher}
        signatures = {each: {"ed25519:1": "x"} for each in signers}
        room = Room(version)
        return self.code(
            room.event("m.room.member", content, state_key=ALICE, signatures=signatures)
        )

    def test_the_authorising_users_server_must_have_signed(self) -> None:
        self.assertIsNone(self.voucher("8", BOB, "a", "b"))
        self.assertEqual(self.voucher("8", BOB, "a"), "voucher-unsigned")
        self.assertIsNone(self.voucher("7", BOB, "a"))
        leave = {"membership": "leave", "join_authorised_via_users_server": BOB}
        self.assertIsNone(self.code(Room("8").event("m.room.member", leave, state_key=ALICE)))
        for bad in (None, 7, [], "bob"):
            self.assertEqual(self.voucher("8", bad, "a", "b"), "voucher-no-user")

    def test_a_third_party_invite_must_be_complete(self) -> None:
        room = Room()

        def code(invite: object, **more: Any) -> str | None:
            content = {"membership": "invite", "third_party_invite": invite}
            return self.code(room.event("m.room.member", content, state_key=BOB, **more))

        complete = {"signed": {"mxid": BOB, "token": "t"}}
        self.assertIsNone(code(complete))
        self.assertIsNone(code(complete, signatures={"b": {"k": "x"}}), "made by another server")
        for bad in (
            None,
            1,
            {},
            {"signed": 1},
            {"signed": {"mxid": BOB}},
            {"signed": {"token": "t"}},
        ):
            self.assertEqual(code(bad), "third-party-incomplete")
        leave = {"membership": "leave", "third_party_invite": None}
        self.assertIsNone(self.code(room.event("m.room.member", leave, state_key=BOB)))


class AuthEventsSelection(TestCase):
    """Which state authorises what."""

    def setUp(self) -> None:
        self.room = Room("10")

    def keys(self, membership: str, sender: str, target: str, **content: Any) -> set[StateKey]:
        content = {"membership": membership, **content}
        event = self.room.event("m.room.member", content, sender, target)
        keys = auth_event_keys(event)
        self.assertEqual(len(keys), len(set(keys)), "a key twice")
        return set(keys) - {("m.room.create", ""), (LEVELS_TYPE, "")}

    def test_a_create_event_has_no_auth_events(self) -> None:
        self.assertEqual(auth_event_keys(self.room.creation), ())

    def test_a_message_needs_create_power_levels_and_its_senders_membership(self) -> None:
        keys = {("m.room.create", ""), (LEVELS_TYPE, ""), ("m.room.member", ALICE)}
        self.assertEqual(set(auth_event_keys(self.room.event("m", {}))), keys)
        newest = Room(NEWEST)
        self.assertEqual(
            set(auth_event_keys(newest.event("m", {}))), keys - {("m.room.create", "")}
        )

    def test_member_events_need_more(self) -> None:
        rules, a, b, c = (
            ("m.room.join_rules", ""),
            *(("m.room.member", each) for each in (ALICE, BOB, CAROL)),
        )
        self.assertEqual(self.keys("join", ALICE, ALICE), {a, rules})
        self.assertEqual(self.keys("knock", ALICE, ALICE), {a, rules})
        self.assertEqual(self.keys("invite", ALICE, BOB), {a, b, rules})
        self.assertEqual(self.keys("leave", ALICE, BOB), {a, b})
        self.assertEqual(self.keys("ban", ALICE, BOB), {a, b})
        voucher = {"join_authorised_via_users_server": CAROL}
        self.assertEqual(self.keys("join", BOB, BOB, **voucher), {b, c, rules})
        self.room = Room("7")
        self.assertEqual(self.keys("join", BOB, BOB, **voucher), {b, rules})

    def test_a_third_party_invite_needs_its_offer(self) -> None:
        invite = {"third_party_invite": {"signed": {"token": "t"}}}
        offer = ("m.room.third_party_invite", "t")
        self.assertIn(offer, self.keys("invite", ALICE, BOB, **invite))
        self.assertNotIn(offer, self.keys("leave", ALICE, BOB, **invite))

    def cited(self, room: Room, *events: Event, rejected: tuple[str, ...] = ()) -> str | None:
        refusal = check_auth_events(room.event("m", {}), events, rejected)
        return None if refusal is None else refusal.code

    def test_refuses_auth_events_that_are_missing_doubled_needless_rejected_or_foreign(
        self,
    ) -> None:
        room = self.room
        member = room.state["m.room.member", ALICE]
        self.assertIsNone(self.cited(room, room.creation))
        self.assertIsNone(self.cited(room, room.creation, member))
        self.assertEqual(self.cited(room, member), "cites-no-create")
        self.assertEqual(self.cited(room, room.creation, member, member), "cites-twice")
        room.join(BOB)
        other = room.state["m.room.member", BOB]
        self.assertEqual(self.cited(room, room.creation, other), "cites-needless")
        self.assertEqual(self.cited(room, room.creation, room.event("m", {})), "cites-needless")
        self.assertEqual(
            self.cited(room, room.creation, member, rejected=(member.event_id,)), "cites-rejected"
        )
        foreign = room.event("m.room.member", {}, state_key=ALICE, room_id="!other:a")
        self.assertEqual(self.cited(room, room.creation, foreign), "cites-other-room")

    def test_the_create_event_is_implied_from_version_12(self) -> None:
        room = Room(NEWEST)
        self.assertIsNone(self.cited(room, room.state["m.room.member", ALICE]))
        self.assertEqual(self.cited(room, room.creation), "cites-needless")


class StateDependentRules(TestCase):
    """Steps 4, 6, 8 and 9, and those of single types."""

    def test_an_unfederated_room_refuses_senders_of_other_servers(self) -> None:
        for federate, code in ((True, None), (False, "unfederated"), ("false", None)):
            room = Room(**{"m.federate": federate})
            room.join(BOB, CAROL)
            self.assertEqual(room.judge("m.room.message", {}, BOB), code)
            self.assertIsNone(room.judge("m.room.message", {}, CAROL))

    def test_an_unfederated_room_refuses_members_of_other_servers(self) -> None:
        for federate, code in ((True, None), (False, "unfederated")):
            room = Room(**{"m.federate": federate})
            for membership in ("invite", "ban", "leave"):
                self.assertEqual(room.judge_member(membership, ALICE, DAVE), code, membership)
                self.assertIsNone(room.judge_member(membership, ALICE, CAROL), membership)

    def test_the_sender_must_be_joined(self) -> None:
        room = Room()
        self.assertIsNone(room.judge("m.room.message", {}, ALICE))
        self.assertEqual(room.judge("m.room.message", {}, BOB), "sender-not-joined")
        for membership in ("invite", "leave", "ban", "knock"):
            room.member(BOB, membership)
            self.assertEqual(room.judge("m.room.message", {}, BOB), "sender-not-joined")

    def test_sending_takes_the_level_of_the_event_type(self) -> None:
        room = Room()
        room.join(BOB)
        room.levels(users={BOB: 10}, events={"x": 11, "y": 10}, events_default=10, state_default=11)
        self.assertEqual(room.judge("x", {}, BOB), "send-level")
        self.assertIsNone(room.judge("y", {}, BOB))
        self.assertIsNone(room.judge("y", {}, BOB, ""))
        self.assertIsNone(room.judge("z", {}, BOB))
        self.assertEqual(room.judge("z", {}, BOB, ""), "send-level")

    def test_state_keys_of_other_users_are_refused(self) -> None:
        room = Room()
        room.join(BOB)
        room.levels(state_default=0)
        self.assertIsNone(room.judge("x", {}, BOB, BOB))
        self.assertIsNone(room.judge("x", {}, BOB, "bob"))
        self.assertEqual(room.judge("x", {}, BOB, ALICE), "state-of-other")
        self.assertEqual(room.judge("x", {}, BOB, BOB + "x"), "state-of-other")
        self.assertEqual(room.judge("x", {}, BOB, "@"), "state-of-other")

    def test_aliases_are_set_by_their_own_server_before_version_6(self) -> None:
        room = Room("5")
        self.assertIsNone(room.judge("m.room.aliases", {}, DAVE, "d"))
        self.assertEqual(room.judge("m.room.aliases", {}, DAVE, "a"), "aliases-other-server")
        self.assertEqual(room.judge("m.room.aliases", {}, DAVE, ""), "aliases-other-server")
        self.assertEqual(room.judge("m.room.aliases", {}, DAVE), "aliases-no-state")
        self.assertEqual(Room("6").judge("m.room.aliases", {}, DAVE, "d"), "sender-not-joined")

    def test_redactions_take_power_or_a_target_of_the_same_server_before_version_3(self) -> None:
        room = Room("2")
        room.join(BOB)
        room.levels(users={ALICE: 50})
        redaction = "m.room.redaction"
        self.assertIsNone(room.judge(redaction, {}, ALICE, redacts="$1:x"))
        self.assertIsNone(room.judge(redaction, {}, BOB, redacts="$1:b"))
        for target in ("$1:a", "$1", None, 7, []):
            self.assertEqual(room.judge(redaction, {}, BOB, redacts=target), "redact-level")
        room = Room("3")
        room.join(BOB)
        self.assertIsNone(room.judge(redaction, {}, BOB, redacts="$1"))

    def test_offering_a_third_party_invite_takes_the_power_to_invite(self) -> None:
        room = Room()
        room.join(BOB)
        room.levels(invite=5, users={BOB: 5}, state_default=50)
        offer = "m.room.third_party_invite"
        self.assertIsNone(room.judge(offer, {}, BOB, "t"))
        self.assertEqual(room.judge(offer, {}, DAVE, "t"), "sender-not-joined")
        room.levels(invite=6, users={BOB: 5})
        self.assertEqual(room.judge(offer, {}, BOB, "t"), "invite-level")
