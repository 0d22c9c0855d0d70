"""Power levels: what they are, and each rule about their change."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from synrepl.rooms.auth.power_levels import parse_level, power_levels_of
from synrepl.rooms.versions import ROOM_VERSIONS
from tests.rooms.auth_rooms import ALICE, BOB, CAROL, DAVE, LEVELS_TYPE, NEWEST, Json, Room


class PowerLevelChanges(TestCase):
    """Step 10."""

    def setUp(self) -> None:
        self.room = Room()
        self.room.join(BOB)

    def judge(self, content: Json, sender: str = ALICE) -> str | None:
        return self.room.judge(LEVELS_TYPE, content, sender, "")

    def change(self, old: Json, new: Json) -> str | None:
        """As Bob, who has 50."""
        base = {"users": {BOB: 50, ALICE: 100}, "state_default": 0}
        self.room.levels(**base | old)
        return self.judge(base | new, BOB)

    def test_the_first_power_levels_may_be_anything(self) -> None:
        self.assertIsNone(self.judge({"users": {BOB: 1_000}}))

    def test_named_levels_above_the_senders_power_cannot_be_changed(self) -> None:
        for name in ("users_default", "events_default", "ban", "redact", "kick", "invite"):
            self.assertIsNone(self.change({}, {name: 50}), name)
            self.assertIsNone(self.change({name: 50}, {}), name)
            self.assertEqual(self.change({}, {name: 51}), "level-above-new", name)
            self.assertEqual(self.change({name: 51}, {}), "level-above-old", name)
            self.assertEqual(self.change({name: 51}, {name: 50}), "level-above-old", name)
            self.assertIsNone(self.change({name: 51}, {name: 51}), name)
        self.assertEqual(self.change({}, {"state_default": 51}), "level-above-new")

    def test_event_levels_above_the_senders_power_cannot_be_changed(self) -> None:
        for name in ("events", "notifications"):
            self.assertIsNone(self.change({}, {name: {"x": 50}}))
            self.assertIsNone(self.change({name: {"x": 50}}, {}))
            self.assertEqual(self.change({}, {name: {"x": 51}}), "level-above-new")
            self.assertEqual(self.change({name: {"x": 51}}, {}), "level-above-old")
            self.assertEqual(self.change({name: {"x": 51}}, {name: {"x": 1}}), "level-above-old")

    def test_notification_levels_are_not_checked_before_version_6(self) -> None:
        for version, code in (("5", None), ("6", "level-above-new")):
            self.room = Room(version)
            self.room.join(BOB)
            self.assertEqual(self.change({}, {"notifications": {"room": 51}}), code)

    def test_user_levels_of_peers_and_above_the_senders_power_cannot_be_changed(self) -> None:
        def users(**levels: int) -> Json:
            everybody = {ALICE: 100, BOB: 50, CAROL: 50, DAVE: 49}
            named = {f"@{name}": level for name, level in levels.items()}
            users = {user: named.pop(user[:-2], level) for user, level in everybody.items()}
            return {"users": {k: v for k, v in users.items() if v >= 0}}

        old = users()
        self.assertIsNone(self.change(old, users(dave=50)))
        self.assertIsNone(self.change(old, users(dave=-1)), "removed")
        self.assertIsNone(self.change(old, users(bob=0)), "oneself")
        self.assertIsNone(self.change(old, {"users": old["users"] | {"@new:n": 50}}))
        self.assertEqual(self.change(old, users(dave=51)), "level-gift")
        self.assertEqual(self.change(old, users(bob=51)), "level-gift")
        self.assertEqual(self.change(old, {"users": old["users"] | {"@new:n": 51}}), "level-gift")
        self.assertEqual(self.change(old, users(carol=0)), "level-of-peer")
        self.assertEqual(self.change(old, users(carol=-1)), "level-of-peer")
        self.assertEqual(self.change(old, users(alice=-1)), "level-of-peer")

    def test_refuses_malformed_content(self) -> None:
        for content, code in (
            ({"ban": "50"}, "level-no-integer"),
            ({"ban": None}, "level-no-integer"),
            ({"ban": True}, "level-no-integer"),
            ({"events": {"x": "1"}}, "level-no-integer"),
            ({"notifications": {"x": []}}, "level-no-integer"),
            ({"users": {BOB: "1"}}, "level-no-integer"),
            ({"events": []}, "levels-no-object"),
            ({"notifications": 1}, "levels-no-object"),
            ({"users": None}, "levels-no-object"),
            ({"users": {"bob": 1}}, "levels-user"),
            ({"users": {"@bob": 1}}, "levels-user"),
            ({"users": {"": 1}}, "levels-user"),
            ({"other": "x"}, None),
        ):
            self.assertEqual(self.judge(content), code, content)

    def test_accepts_text_and_booleans_before_version_10(self) -> None:
        self.room = Room("9")
        self.room.join(BOB)
        for content, code in (
            ({"ban": " +050 "}, None),
            ({"users": {BOB: "-1"}}, None),
            ({"ban": "1_0"}, None),
            ({"ban": True}, None),
            ({"users": {BOB: False}}, None),
            ({"ban": "abc"}, "level-no-integer"),
            ({"ban": "_1"}, "level-no-integer"),
            ({"ban": None}, "level-no-integer"),
            ({"events": []}, None),
            ({"users": []}, "levels-no-object"),
            ({"users": {"bob": 1}}, "levels-user"),
        ):
            self.assertEqual(self.judge(content), code, content)

    def test_refuses_creators_among_users_from_version_12(self) -> None:
        for version, code in (("11", None), ("12", "levels-name-creator")):
            self.room = Room(version, additional_creators=[CAROL])
            self.assertEqual(self.judge({"users": {ALICE: 1}}), code)
            self.assertEqual(self.judge({"users": {CAROL: 1}}), code)
            self.assertIsNone(self.judge({"users": {BOB: 1}}))


class PowerLevelsInForce(TestCase):
    """What levels are, and their defaults."""

    def test_parses_levels_as_the_room_version_does(self) -> None:
        for value, by_version in (
            (5, {"1": 5, "6": 5, "10": 5}),
            (" +05\n", {"1": 5, "6": 5, "10": None}),
            ("-5", {"1": -5, "6": -5, "10": None}),
            (5.9, {"1": 5, "6": None, "10": None}),
            (-5.9, {"1": -5, "6": None, "10": None}),
            ("5_0", {"1": 50, "6": 50, "10": None}),
            ("٥", {"1": 5, "6": 5, "10": None}),
            (True, {"1": 1, "6": 1, "10": None}),
            (False, {"1": 0, "6": 0, "10": None}),
            *(
                (bad, {"1": None, "6": None, "10": None})
                for bad in ("", "5.0", "5__0", "_5", "+-5", "9" * 5_000, None, [], {}, 1e999)
            ),
        ):
            levels: dict[str, int | None] = by_version  # type: ignore[assignment]
            for version, level in levels.items():
                self.assertEqual(
                    parse_level(value, ROOM_VERSIONS[version]), level, (value, version)
                )

    def test_defaults_with_a_power_levels_event(self) -> None:
        room = Room()
        room.levels()
        levels = power_levels_of(room.state[LEVELS_TYPE, ""], room.creation)
        self.assertEqual((levels.ban, levels.kick, levels.redact, levels.invite), (50, 50, 50, 0))
        self.assertEqual((levels.events_default, levels.state_default), (0, 50))
        self.assertEqual((levels.of(ALICE), levels.of(BOB)), (0, 0))

    def test_defaults_without_a_power_levels_event(self) -> None:
        room = Room()
        levels = power_levels_of(None, room.creation)
        self.assertEqual((levels.ban, levels.kick, levels.redact, levels.invite), (50, 50, 50, 0))
        self.assertEqual((levels.events_default, levels.state_default), (0, 50))
        self.assertEqual((levels.of(ALICE), levels.of(BOB)), (100, 0))

    def test_creators_have_infinite_power(self) -> None:
        room = Room(NEWEST, additional_creators=[CAROL])
        room.levels(users={ALICE: 1, BOB: 2**53 - 1})
        for power in (None, room.state[LEVELS_TYPE, ""]):
            levels = power_levels_of(power, room.creation)
            self.assertGreater(levels.of(ALICE), 2**53)
            self.assertEqual(levels.of(CAROL), levels.of(ALICE))
        room.join(BOB, CAROL)
        self.assertIsNone(room.judge_member("ban", ALICE, BOB))
        self.assertEqual(room.judge_member("ban", ALICE, CAROL), "target-level")
        self.assertEqual(room.judge_member("ban", BOB, CAROL), "target-level")

    def test_invalid_levels_in_state_count_as_absent(self) -> None:
        room = Room("9")
        room.levels(ban=[], users={BOB: None, CAROL: 7}, events=7, users_default="x", invite="3")
        levels = power_levels_of(room.state[LEVELS_TYPE, ""], room.creation)
        self.assertEqual((levels.ban, levels.of(BOB), levels.of(CAROL)), (50, 0, 7))
        self.assertEqual((levels.events, levels.invite), ({}, 3))
