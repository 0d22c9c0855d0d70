"""Which entries of a state a client wants, in both forms."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from synrepl.rooms import StateKey
from synrepl.services.rooms.sliding.required_state import RequiredState, StatePattern

ME, OTHER = "@me:x", "@other:x"
TYPES = ("m.room.member", "m.room.name", "m.x")
KEYS = ("", ME, OTHER)
STATE: list[StateKey] = list(product(TYPES, KEYS))


def wanted(required: RequiredState) -> set[StateKey]:
    """The entries of a state that are wanted."""
    return {key for key in STATE if required.matches(key)}


def pairs(*given: tuple[str, str]) -> RequiredState:
    """The older form, for a user."""
    return RequiredState.of_pairs(given, ME)


class MembersOfPartialRooms(SynchronousTestCase):
    """Which states have memberships that are not known while a room is partial."""

    def test_what_names_members_of_other_servers_waits_for_them(self) -> None:
        member, far = "m.room.member", "@far:y"
        for given, waits in (
            ([], False),
            ([("m.room.name", "*"), ("*", "")], False),
            ([(member, "$LAZY"), (member, "$ME"), (member, OTHER)], False),
            ([("*", "*"), (member, "$LAZY")], False),
            ([("*", "$ME")], False),
            ([(member, "*")], True),
            ([("*", "*")], True),
            ([(member, "*"), (member, "$LAZY")], True),
            ([(member, far), (member, "$LAZY")], True),
            ([("*", far)], True),
        ):
            self.assertEqual(pairs(*given).awaits_members("x"), waits, given)

    def test_patterns_that_leave_them_out_do_not_wait(self) -> None:
        everything: StatePattern = (None, None)
        for exclude, lazy, waits in (
            ([], False, True),
            ([("m.room.name", None)], False, True),
            ([("m.room.member", OTHER)], False, True),
            ([("m.room.member", None)], False, False),
            ([], True, False),
        ):
            made = RequiredState.of_patterns([everything], exclude, lazy)
            self.assertEqual(made.awaits_members("x"), waits, (exclude, lazy))


class OlderForm(SynchronousTestCase):
    """Pairs of types and keys."""

    def test_pairs_name_entries_types_keys_or_everything(self) -> None:
        member, name = "m.room.member", "m.room.name"
        self.assertEqual(wanted(pairs()), set())
        self.assertEqual(wanted(pairs((name, ""))), {(name, "")})
        self.assertEqual(wanted(pairs((name, "*"))), {(name, key) for key in KEYS})
        self.assertEqual(wanted(pairs(("*", ""))), {(kind, "") for kind in TYPES})
        self.assertEqual(wanted(pairs(("*", "$ME"))), {(kind, ME) for kind in TYPES})
        self.assertEqual(wanted(pairs(("*", "*"))), set(STATE))
        self.assertEqual(wanted(pairs((member, "$ME"))), {(member, ME)})

    def test_beside_everything_a_pair_leaves_out_others_of_its_type(self) -> None:
        member = "m.room.member"
        others = {key for key in STATE if key[0] != member}
        mine = pairs(("*", "*"), (member, "$ME"))
        self.assertEqual(wanted(mine), others | {(member, ME)})
        self.assertFalse(mine.lazy_members)
        lazy = pairs(("*", "*"), (member, "$LAZY"))
        self.assertEqual(wanted(lazy), others)
        self.assertTrue(lazy.lazy_members)
        both = pairs(("*", "*"), (member, "$LAZY"), (member, OTHER))
        self.assertEqual(wanted(both), others | {(member, OTHER)})
        self.assertEqual(wanted(pairs(("*", "*"), ("m.x", "*"))), set(STATE))

    def test_lazy_members_alone_name_no_entry(self) -> None:
        lazy = pairs(("m.room.member", "$LAZY"))
        self.assertEqual(wanted(lazy), set())
        self.assertTrue(lazy.lazy_members)
        self.assertEqual(lazy.patterns, frozenset())


class NewerForm(SynchronousTestCase):
    """What is included and excluded."""

    def test_what_is_excluded_is_left_out(self) -> None:
        name = "m.room.name"
        required = RequiredState.of_patterns({(None, None)}, {(name, None), (None, ME)}, False)
        self.assertEqual(wanted(required), {k for k in STATE if k[0] != name and k[1] != ME})
        nothing = RequiredState.of_patterns((), {(name, None)}, False)
        self.assertEqual(wanted(nothing), set())

    def test_with_lazy_members_only_a_pattern_with_the_type_has_members(self) -> None:
        member = "m.room.member"
        lazy = RequiredState.of_patterns({(None, None)}, (), True)
        self.assertEqual(wanted(lazy), {key for key in STATE if key[0] != member})
        mine = RequiredState.of_patterns({(None, ""), (member, ME)}, (), True)
        self.assertEqual(wanted(mine), {("m.room.name", ""), ("m.x", ""), (member, ME)})
        # What another rule includes is not left out.
        everything = RequiredState.of_patterns({(None, None)}, (), False)
        self.assertEqual(wanted(lazy | everything), set(STATE))


class Combined(SynchronousTestCase):
    """Unions, and what is known to cover what."""

    def random(self, rng: Random) -> RequiredState:
        """Any wanted state."""

        def patterns() -> Collection[StatePattern]:
            return {
                (rng.choice([None, *TYPES]), rng.choice([None, *KEYS]))
                for _ in range(rng.randrange(3))
            }

        return RequiredState.of_patterns(patterns(), patterns(), rng.random() < 0.5)

    def test_a_union_wants_what_either_wants(self) -> None:
        for seed in range(2_000):
            rng = Random(seed)
            one, other = self.random(rng), self.random(rng)
            both = one | other
            self.assertEqual(wanted(both), wanted(one) | wanted(other))
            self.assertEqual(both.lazy_members, one.lazy_members or other.lazy_members)
            self.assertTrue(both.covers(one))
            self.assertTrue(both.covers(other))
            if one.covers(other):
                self.assertLessEqual(wanted(other), wanted(one))
            self.assertLessEqual(wanted(one), self.matching(one.patterns))

    def test_it_is_the_same_after_it_was_stored(self) -> None:
        for seed in range(500):
            one = self.random(Random(seed)) | self.random(Random(-seed))
            again = RequiredState.from_json(one.to_json())
            self.assertEqual((again.plain, again.masked), (one.plain, one.masked))
            self.assertEqual(again.digest, one.digest)

    def matching(self, patterns: Iterable[StatePattern]) -> set[StateKey]:
        """The entries that match any pattern."""
        return wanted(RequiredState(frozenset(patterns)))
