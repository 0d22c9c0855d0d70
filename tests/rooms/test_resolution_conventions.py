"""Where state resolution follows the reference (docs/adr/0014-state-resolution.md), and what it costs."""

from __future__ import annotations

from unittest import TestCase, mock

from synrepl.rooms import resolution_lookups
from synrepl.rooms.resolution.resolve import resolve_conflict
from synrepl.rooms.resolution.v2 import is_power_event
from synrepl.rooms.room import Room
from synrepl.rooms.state_map import CompactStateMap
from tests.rooms.auth_rooms import ALICE, BOB
from tests.rooms.auth_rooms import Room as Made
from tests.rooms.resolution_rooms import MadeRoom
from tests.rooms.small_rooms import SmallRoom

BASE = ("create", "a", "levels", "rules")
TOPIC = ("m.room.topic", "")


class PowerEventConventions(TestCase):
    """Only the entries that hold for the whole room take part in the first phase."""

    def test_only_the_empty_state_key_makes_a_power_event(self) -> None:
        room = MadeRoom()
        for kind in ("m.room.power_levels", "m.room.join_rules", "m.room.create"):
            for state_key, is_one in (("", True), ("x", False), (None, False)):
                event = room.add(f"{kind} {state_key}", kind, state_key)
                self.assertEqual(is_power_event(event), is_one, (kind, state_key))
        self.assertFalse(is_power_event(room.add("name", "m.room.name")))

    def test_join_rules_of_another_state_key_are_not_applied_first(self) -> None:
        room = MadeRoom("2")
        room.begin(**{"@b:x": 50})
        for name, ts in (("late", 100), ("early", 50)):
            content = {"membership": "join"}
            cited = ["create", "levels", "rules"]
            room.add(name, "m.room.member", "@b:x", content, sender="@b:x", cites=cited, ts=ts)
        cited = ["create", "levels", "late"]
        room.add("x", "m.room.join_rules", "x", {}, sender="@b:x", cites=cited)
        resolved = room.resolve(room.state(*BASE, "late", "x"), room.state(*BASE, "early"))
        self.assertEqual(resolved["m.room.member", "@b:x"], "late")


class RejectedEvents(TestCase):
    """What was rejected decides over nothing, whether all states have it or it was applied."""

    def setUp(self) -> None:
        self.room = MadeRoom("2")
        room = self.room
        room.add("create", "m.room.create", content={"creator": "@a:x"})
        room.join("a", cites=["create"])
        strict = {"users": {}, "state_default": 100}
        room.add("levels", "m.room.power_levels", content=strict, cites=["create", "a"])
        for name in ("one", "two"):
            room.add(name, "m.room.topic", content={"topic": name}, cites=["create", "a"])

    def test_unconflicted_rejected_events_authorise_nothing(self) -> None:
        states = [self.room.state("create", "a", "levels", name) for name in ("one", "two")]
        self.assertNotIn(TOPIC, self.room.resolve(*states))
        resolved = self.room.resolve(*states, rejected=["levels"])
        self.assertEqual(resolved[TOPIC], "two")
        self.assertEqual(resolved["m.room.power_levels", ""], "levels")

    def test_applied_rejected_events_authorise_nothing(self) -> None:
        states = [
            self.room.state("create", "a", "levels", "one"),
            self.room.state("create", "a", "two"),
        ]
        self.assertNotIn(TOPIC, self.room.resolve(*states))
        resolved = self.room.resolve(*states, rejected=["levels"])
        self.assertEqual(resolved[TOPIC], "two")
        self.assertEqual(resolved["m.room.power_levels", ""], "levels")

    def test_a_rejected_create_event_authorises_nothing(self) -> None:
        """In version 12 nobody cites it, and it counts only when it was accepted."""
        room = MadeRoom("12")
        room.add("create", "m.room.create")
        room.join("a", cites=["create"])
        for name in ("one", "two"):
            room.add(name, "m.room.topic", content={"topic": name}, cites=["create", "a"])
        states = [room.state("create", "a", name) for name in ("one", "two")]
        self.assertEqual(room.resolve(*states)[TOPIC], room.named["two"].event_id)
        create = room.named["create"].event_id
        self.assertNotIn(TOPIC, room.resolve(*states, rejected=[create]))


class Forks(TestCase):
    """Many events that follow the same one."""

    FORKS = 40

    def test_comparisons_are_linear_in_the_number_of_states(self) -> None:
        made = Made("10")
        create = made.creation
        join = made.event(
            "m.room.member",
            {"membership": "join"},
            state_key=ALICE,
            prev=(create.event_id,),
            auth=(create.event_id,),
        )
        room = Room(made.version)
        for event in (create, join):
            room.receive(event)
        for number in range(self.FORKS):
            event = made.event(
                "t",
                {},
                state_key=str(number),
                prev=(join.event_id,),
                auth=(create.event_id, join.event_id),
            )
            room.receive(event, live=False)
        self.assertEqual(len(room.forward_extremities), self.FORKS)
        compared = []
        equal = CompactStateMap.__eq__

        def counted(one: CompactStateMap, other: object) -> bool:
            compared.append(one)
            return equal(one, other)

        with mock.patch.object(CompactStateMap, "__eq__", counted):
            self.assertEqual(len(dict(room.current_state().items())), self.FORKS + 2)
        self.assertLess(len(compared), 3 * self.FORKS)

    def test_entries_that_all_extremities_have_need_no_resolution(self) -> None:
        """Check 6 looks at a few entries; only a new member's are not in all of them."""
        small = SmallRoom()
        room = Room(small.version)
        for event in (*small.base, small.carol):
            room.receive(event)
        cites = [small.create, small.levels, small.alice]
        with mock.patch.object(
            resolution_lookups, "resolve_conflict", wraps=resolve_conflict
        ) as resolved:
            for number in range(self.FORKS):
                event = small.event("t", {}, [small.carol], cites, key=str(number))
                room.receive(event)
            self.assertEqual(resolved.call_count, 0)
            rest = [small.create, small.levels, small.rules]
            room.receive(small.member(BOB, "join", [small.carol], rest))
            self.assertEqual(resolved.call_count, 1)
        self.assertEqual(len(room.forward_extremities), self.FORKS + 1)
        self.assertEqual(len(room.current_state()), self.FORKS + 6)
