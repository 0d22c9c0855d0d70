"""What a server answers to a partial join is refused when it lacks what the room cannot be without."""

from __future__ import annotations

from typing import Any
from unittest import TestCase

from synrepl.rooms.event import Event
from synrepl.rooms.event_types import CREATE, JOIN_RULES, POWER_LEVELS
from synrepl.rooms.partial import PartialJoin, join_partially
from synrepl.rooms.room import Room
from synrepl.rooms.send_join_response import IncompleteAnswer
from tests.rooms.auth_rooms import ALICE
from tests.rooms.small_rooms import LOCAL_USER, SmallRoom

VERSIONS = ("1", "10", "12")

#: Beside this server.
OTHERS = frozenset({"a"})


class SendJoinResponses(TestCase):
    """Of a room that has a creation, power levels, join rules, and a member."""

    def answer(self, small: SmallRoom, state: list[Event], **parts: Any) -> PartialJoin:
        """An answer with a part of the state; whatever the state leaves out is in the auth chain."""
        join = small.member(
            LOCAL_USER, "join", [small.rules], [small.create, small.rules, small.levels]
        )
        chain = [each for each in small.base if each not in state]
        return PartialJoin(join, state, chain, OTHERS)._replace(**parts)

    def refused(self, small: SmallRoom, answer: PartialJoin, *words: str) -> None:
        """It is refused by name, before anything is taken in."""
        room = Room(small.version)
        with self.assertRaises(IncompleteAnswer) as caught:
            join_partially(room, answer, "here")
        for word in (answer.join.room_id, *words):
            self.assertIn(word, str(caught.exception))
        self.assertEqual(len(room), 0)

    def test_accepts_a_complete_response(self) -> None:
        for version in VERSIONS:
            small = SmallRoom(version)
            partial = join_partially(Room(small.version), self.answer(small, small.base), "here")
            self.assertTrue(partial.is_partial)
            self.assertEqual(partial.servers()[0], OTHERS | {"here"})

    def test_refuses_one_without_the_create_event(self) -> None:
        for version in VERSIONS:
            small = SmallRoom(version)
            answer = self.answer(small, small.base[1:])
            self.refused(small, answer, f"lacks {CREATE};")
            self.refused(small, answer._replace(auth_chain=()), f"lacks {CREATE};")

    def test_refuses_one_without_the_power_levels_in_its_auth_chain(self) -> None:
        for version in VERSIONS:
            small = SmallRoom(version)
            state = [small.create, small.alice, small.rules]
            self.refused(small, self.answer(small, state), POWER_LEVELS)

    def test_refuses_one_without_the_join_rules_in_its_auth_chain(self) -> None:
        for version in VERSIONS:
            small = SmallRoom(version)
            state = [small.create, small.alice, small.levels]
            self.refused(small, self.answer(small, state), JOIN_RULES)

    def test_names_everything_that_is_missing(self) -> None:
        small = SmallRoom()
        answer = self.answer(small, [small.alice])
        self.refused(small, answer, f"lacks {CREATE}, {POWER_LEVELS}, {JOIN_RULES}")

    def test_accepts_a_room_that_never_had_power_levels_or_join_rules(self) -> None:
        small = SmallRoom("10")
        joins = small.event("m.room.member", {"membership": "invite"}, [small.alice],
                            [small.create, small.alice], ALICE, LOCAL_USER)  # fmt: skip
        join = small.member(LOCAL_USER, "join", [joins], [small.create, joins])
        answer = PartialJoin(join, [small.create, small.alice, joins], [], OTHERS)
        partial = join_partially(Room(small.version), answer, "here")
        self.assertIsNone(partial.state_entry((POWER_LEVELS, "")).event_id)
        self.assertTrue(partial.room[join.event_id].accepted)

    def test_power_levels_with_a_state_key_do_not_count(self) -> None:
        small = SmallRoom("10")
        levels = small.event(POWER_LEVELS, {}, [small.rules], [small.create, small.alice],
                             ALICE, "elsewhere")  # fmt: skip
        state = [small.create, small.alice, small.rules, levels]
        self.refused(small, self.answer(small, state), POWER_LEVELS)

    def test_refuses_one_whose_power_levels_break_the_rules(self) -> None:
        for version in VERSIONS:
            small = SmallRoom(version)
            bad = small.event(POWER_LEVELS, {"users": {"nobody": 1}}, [small.rules],
                              [small.create, small.alice, small.levels], ALICE, "")  # fmt: skip
            state = [small.create, small.alice, small.rules, bad]
            answer = self.answer(small, state)
            with self.assertRaises(IncompleteAnswer) as caught:
                join_partially(Room(small.version), answer, "here")
            self.assertIn(f"its {POWER_LEVELS} {bad.event_id} is rejected", str(caught.exception))

    def test_refuses_one_that_names_no_servers(self) -> None:
        small = SmallRoom()
        answer = self.answer(small, small.base, servers=frozenset())
        self.refused(small, answer, "names no servers")
