"""Each rule about membership by itself: what it allows, what it refuses, with the code."""

from __future__ import annotations

from typing import Any

from nacl.signing import VerifyKey
from signedjson.key import NACL_ED25519, decode_signing_key_base64, get_verify_key
from signedjson.sign import sign_json
from twisted.trial.unittest import TestCase
from unpaddedbase64 import decode_base64, encode_base64

from synrepl.rooms.auth import third_party
from synrepl.rooms.signatures import signed_json
from tests.rooms.auth_rooms import ALICE, BOB, CAROL, DAVE, Json, Room


class Joins(TestCase):
    """Step 5.3."""

    def test_the_creator_joins_directly_after_the_create_event(self) -> None:
        for version in ("10", "11", "12"):
            room = Room(version)
            del room.state["m.room.member", ALICE]
            first = (room.creation.event_id,)

            def judge(sender: str, target: str, prev: tuple[str, ...], room: Room = room) -> Any:
                join = {"membership": "join"}
                return room.judge("m.room.member", join, sender, target, prev=prev)

            self.assertIsNone(judge(ALICE, ALICE, first))
            self.assertIsNone(judge(BOB, ALICE, first), "as the rule is written")
            self.assertEqual(judge(ALICE, ALICE, (*first, "$p:a")), "join-not-invited")
            self.assertEqual(judge(BOB, BOB, first), "join-not-invited")

    def test_nobody_joins_for_another_user(self) -> None:
        room = Room()
        room.rule("public")
        self.assertIsNone(room.judge_member("join", BOB))
        self.assertEqual(room.judge_member("join", ALICE, BOB), "join-for-other")

    def test_a_banned_user_cannot_join(self) -> None:
        room = Room()
        room.rule("public")
        room.member(BOB, "ban")
        self.assertEqual(room.judge_member("join", BOB), "join-banned")

    def outcomes(self, version: str, rule: object) -> list[str | None]:
        """With no membership, invited, joined, knocking."""
        room = Room(version)
        if rule is not None:
            room.rule(rule)
        found = [room.judge_member("join", BOB)]
        for membership in ("invite", "join", "knock"):
            room.member(BOB, membership)
            found.append(room.judge_member("join", BOB))
        return found

    def test_join_rules_by_room_version(self) -> None:
        invited = ["join-not-invited", None, None, "join-not-invited"]
        vouched = ["join-no-voucher", None, None, "join-no-voucher"]
        nobody = ["join-rule"] * 4
        for version, rule, codes in (
            ("1", "public", [None] * 4),
            ("1", "invite", invited),
            ("1", None, invited),
            ("6", "knock", nobody),
            ("7", "knock", invited),
            ("7", "restricted", nobody),
            ("8", "restricted", vouched),
            ("9", "knock_restricted", nobody),
            ("10", "knock_restricted", vouched),
            ("11", "private", nobody),
            ("11", 5, nobody),
            ("11", {}, nobody),
        ):
            self.assertEqual(self.outcomes(version, rule), codes, (version, rule))

    def test_a_restricted_join_needs_an_authorising_member_who_may_invite(self) -> None:
        room = Room()
        room.rule("restricted")
        room.levels(invite=50, users={CAROL: 50})
        voucher = {"join_authorised_via_users_server": CAROL}
        self.assertEqual(room.judge_member("join", BOB, **voucher), "join-voucher-not-joined")
        room.join(CAROL)
        self.assertIsNone(room.judge_member("join", BOB, **voucher))
        room.levels(invite=51, users={CAROL: 50})
        self.assertEqual(room.judge_member("join", BOB, **voucher), "join-voucher-level")
        for bad in (None, 7, [CAROL]):
            code = room.judge_member("join", BOB, join_authorised_via_users_server=bad)
            self.assertEqual(code, "join-no-voucher")


class OtherMemberships(TestCase):
    """Steps 5.4 to 5.8."""

    def setUp(self) -> None:
        self.room = Room()
        self.room.join(BOB)
        self.room.levels(users={ALICE: 60, BOB: 40, DAVE: 50}, invite=50, kick=50, ban=55)

    def test_the_target_must_be_a_user_id(self) -> None:
        for target in ("nobody", "@nobody", "", "@nobody:"):
            self.assertEqual(self.room.judge_member("invite", ALICE, target), "member-no-user")

    def test_refuses_unknown_memberships(self) -> None:
        for membership in ("lurk", "", None, 1, [], {}, True):
            self.assertEqual(self.room.judge_member(membership, BOB), "unknown-membership")

    def test_invites_take_power_and_a_target_outside_the_room(self) -> None:
        room = self.room
        self.assertIsNone(room.judge_member("invite", ALICE, CAROL))
        self.assertEqual(room.judge_member("invite", DAVE, CAROL), "sender-not-joined")
        self.assertEqual(room.judge_member("invite", BOB, CAROL), "invite-level")
        room.join(DAVE)
        self.assertIsNone(room.judge_member("invite", DAVE, CAROL), "exactly the level")
        self.assertEqual(room.judge_member("invite", ALICE, BOB), "invite-joined")
        room.member(CAROL, "ban")
        self.assertEqual(room.judge_member("invite", ALICE, CAROL), "invite-banned")
        for membership in ("leave", "knock", "invite"):
            room.member(CAROL, membership)
            self.assertIsNone(room.judge_member("invite", ALICE, CAROL))

    def test_only_joined_invited_or_knocking_users_leave(self) -> None:
        for version, knocking in (("6", "leave-not-in"), ("7", None)):
            room = Room(version)
            self.assertEqual(room.judge_member("leave", BOB), "leave-not-in")
            for membership, code in (
                ("join", None),
                ("invite", None),
                ("knock", knocking),
                ("leave", "leave-not-in"),
                ("ban", "leave-not-in"),
            ):
                room.member(BOB, membership)
                self.assertEqual(room.judge_member("leave", BOB), code, membership)

    def test_kicks_take_power_over_the_target(self) -> None:
        room = self.room
        self.assertIsNone(room.judge_member("leave", ALICE, BOB))
        self.assertEqual(room.judge_member("leave", DAVE, BOB), "sender-not-joined")
        self.assertEqual(room.judge_member("leave", BOB, CAROL), "kick-level")
        room.join(DAVE)
        room.levels(users={ALICE: 60, BOB: 50, DAVE: 50})
        self.assertEqual(room.judge_member("leave", DAVE, BOB), "target-level", "a peer")
        self.assertIsNone(room.judge_member("leave", DAVE, CAROL))

    def test_unbans_take_the_power_to_kick_and_to_ban(self) -> None:
        room = self.room
        room.join(DAVE)
        room.member(CAROL, "ban")
        self.assertIsNone(room.judge_member("leave", ALICE, CAROL))
        self.assertEqual(room.judge_member("leave", DAVE, CAROL), "unban-level", "may kick only")
        room.levels(users={ALICE: 60}, kick=70, ban=50)
        self.assertEqual(room.judge_member("leave", ALICE, CAROL), "kick-level", "may ban only")
        room.levels(users={ALICE: 60}, kick=60, ban=60)
        self.assertIsNone(room.judge_member("leave", ALICE, CAROL), "exactly the level")

    def test_bans_take_power_over_the_target(self) -> None:
        room = self.room
        room.join(DAVE)
        self.assertIsNone(room.judge_member("ban", ALICE, BOB))
        self.assertIsNone(room.judge_member("ban", ALICE, CAROL))
        self.assertEqual(room.judge_member("ban", CAROL, BOB), "sender-not-joined")
        self.assertEqual(room.judge_member("ban", DAVE, BOB), "ban-level")
        room.levels(users={ALICE: 60, BOB: 60}, ban=60)
        self.assertIsNone(room.judge_member("ban", ALICE, CAROL), "exactly the level")
        self.assertEqual(room.judge_member("ban", ALICE, BOB), "target-level")
        self.assertEqual(room.judge_member("ban", ALICE, ALICE), "target-level", "oneself")

    def test_knocking_depends_on_version_and_join_rule(self) -> None:
        for version, rule, code in (
            ("6", "knock", "unknown-membership"),
            ("7", "knock", None),
            ("7", "invite", "knock-rule"),
            ("7", None, "knock-rule"),
            ("9", "knock_restricted", "knock-rule"),
            ("10", "knock_restricted", None),
            ("10", "restricted", "knock-rule"),
        ):
            room = Room(version)
            room.rule(rule)
            self.assertEqual(room.judge_member("knock", CAROL), code, (version, rule))

    def test_only_users_outside_the_room_knock_for_themselves(self) -> None:
        room = self.room
        room.rule("knock")
        self.assertEqual(room.judge_member("knock", ALICE, CAROL), "knock-for-other")
        for membership, code in (
            ("ban", "knock-needless"),
            ("invite", "knock-needless"),
            ("join", "knock-needless"),
            ("leave", None),
            ("knock", None),
        ):
            room.member(CAROL, membership)
            self.assertEqual(room.judge_member("knock", CAROL), code, membership)


class ThirdPartyInvites(TestCase):
    """Step 5.4.1."""

    def setUp(self) -> None:
        self.room = Room()
        self.keys = [decode_signing_key_base64(NACL_ED25519, "0", 43 * each) for each in "AB"]
        first, second = (encode_base64(get_verify_key(key).encode()) for key in self.keys)
        self.offer = {"public_key": first, "public_keys": [{"public_key": second}, None, {}, 7]}
        self.room.put("m.room.third_party_invite", self.offer, ALICE, "t")

    def judge(self, signed: object, sender: str = ALICE, target: str = BOB) -> str | None:
        invite = {"display_name": "B…", "signed": signed}
        return self.room.judge_member("invite", sender, target, third_party_invite=invite)

    def signed(self, key: int = 0, mxid: object = BOB, token: object = "t") -> Any:
        return sign_json({"mxid": mxid, "token": token}, "identity.example", self.keys[key])

    def test_any_public_key_of_the_offer_verifies(self) -> None:
        self.assertIsNone(self.judge(self.signed(0)))
        self.assertIsNone(self.judge(self.signed(1)))

    def test_needs_no_membership_and_no_power(self) -> None:
        self.room.levels(invite=100)
        del self.room.state["m.room.member", ALICE]
        self.room.join(BOB)
        self.assertIsNone(self.judge(self.signed()))

    def test_refuses_invites_that_do_not_match_the_offer(self) -> None:
        self.assertEqual(self.judge(self.signed(), DAVE), "third-party-other-sender")
        self.assertEqual(self.judge(self.signed(), target=DAVE), "third-party-other-user")
        self.assertEqual(self.judge(self.signed(token="u")), "third-party-unknown")
        self.assertEqual(self.judge(self.signed() | {"more": 1}), "third-party-signature")
        for bad in (None, {}, [], {"mxid": BOB}, {"token": "t"}, self.signed(token=1)):
            self.assertEqual(self.judge(bad), "third-party-incomplete")
        self.room.member(BOB, "ban")
        self.assertEqual(self.judge(self.signed()), "third-party-banned")

    def test_refuses_a_signature_by_another_key(self) -> None:
        self.room.put("m.room.third_party_invite", self.offer | {"public_keys": []}, ALICE, "t")
        self.assertIsNone(self.judge(self.signed(0)))
        self.assertEqual(self.judge(self.signed(1)), "third-party-signature")

    def test_refuses_malformed_keys_and_signatures(self) -> None:
        signed = self.signed()
        for signatures in (None, [], {}, {"x": 1}, {"x": {"rsa:1": "x"}}, {"x": {"ed25519:0": 7}}):
            self.assertEqual(
                self.judge(signed | {"signatures": signatures}), "third-party-signature"
            )
        for key in (None, 7, "", "é", "AAAA", {}):
            offer = {"public_key": key, "public_keys": {"public_key": key}}
            self.room.put("m.room.third_party_invite", offer, ALICE, "t")
            self.assertEqual(self.judge(signed), "third-party-signature")

    def test_verifications_are_limited(self) -> None:
        good = self.offer["public_key"]
        fill = [{"public_key": self.offer["public_keys"][0]["public_key"]}]  # type: ignore[index]
        for count, code in ((998, None), (1_000, "third-party-signature")):
            offer = {"public_keys": [*(fill * count), {"public_key": good}]}
            self.room.put("m.room.third_party_invite", offer, ALICE, "t")
            self.assertEqual(self.judge(self.signed()), code)

    def work(self, signatures: Json, offer: Json) -> tuple[int, int]:
        """How many keys are decoded and how many signatures tried before it is refused."""
        counts = {"decoded": 0, "tried": 0}

        def counted(what: str, function: Any) -> Any:
            def call(*args: Any) -> Any:
                counts[what] += 1
                if counts[what] > 5_000:
                    self.fail(f"too many {what}")
                return function(*args)

            return call

        self.room.put("m.room.third_party_invite", offer, ALICE, "t")
        self.patch(third_party, "decode_base64", counted("decoded", decode_base64))
        self.patch(VerifyKey, "verify", counted("tried", VerifyKey.verify))
        signed = {"mxid": BOB, "token": "t", "signatures": signatures}
        self.assertEqual(self.judge(signed), "third-party-signature")
        return counts["decoded"], counts["tried"]

    def test_malformed_keys_and_signatures_count_towards_the_limit(self) -> None:
        several = [{"public_key": str(each)} for each in range(1_500)]
        for ids in ("%d", "ed25519:%d"):
            signatures = {"a": {ids % each: each for each in range(1_500)}}
            decoded, tried = self.work(signatures, {"public_keys": several})
            self.assertLessEqual(decoded, 1_000, ids)
            self.assertEqual(tried, 0, ids)

    def test_each_key_is_decoded_once(self) -> None:
        signatures = {"a": {f"ed25519:{each}": "A" * 86 for each in range(100)}}
        keys = [{"public_key": encode_base64(bytes([each]) * 32)} for each in range(100)]
        self.assertEqual(self.work(signatures, {"public_keys": keys * 2}), (100, 1_000))

    def test_only_known_algorithms_are_tried(self) -> None:
        signatures = {"a": {"rsa:0": "A" * 86, "0": "A" * 86, "ed25519:0": "A" * 86}}
        self.assertEqual(self.work(signatures, {"public_key": self.offer["public_key"]}), (1, 1))

    def test_the_number_of_signatures_read_is_limited(self) -> None:
        looked = []

        def noting(signature: object) -> None:
            looked.append(signature)

        self.patch(third_party, "decoded_signature", noting)
        self.work({each: {f"ed25519:{key}": "x" for key in range(700)} for each in "ab"}, {})
        self.assertEqual(len(looked), 1_000)

    def test_the_signed_bytes_are_encoded_once(self) -> None:
        encoded = []

        def noting(fields: Json) -> bytes:
            encoded.append(fields)
            return signed_json(fields)

        self.patch(third_party, "signed_json", noting)
        self.work({"a": {f"ed25519:{each}": "A" * 86 for each in range(9)}}, self.offer)
        self.assertEqual(len(encoded), 1)
