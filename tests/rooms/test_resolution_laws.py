"""What holds of state resolution whatever the room: orders that do not matter, and what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from synrepl.rooms.chains import AuthCycle, BitSetChains, MissingAuthEvent, UnknownEvent
from synrepl.rooms.resolution.resolve import resolve
from synrepl.rooms.resolution.sorting import sender_level
from synrepl.rooms.state import StateKey, StateMap
from synrepl.rooms.state_map import CompactStateMap, Slots
from synrepl.rooms.versions import Resolution
from tests.rooms.resolution_rooms import MadeRoom, VectorRoom, WalkedChains, state_map
from tests.rooms.vector_files import files, lines

#: One of each algorithm.
_VERSIONS = ("1", "2", "12")


def _cases() -> Iterator[tuple[VectorRoom, str, list[dict[StateKey, str]]]]:
    """The published cases, and those of two rooms of each version."""
    for name in files("state_res/published*"):
        for row in lines(name):
            yield VectorRoom(row), row["id"], [state_map(each) for each in row["state_sets"]]
    for name in files("state_res/random_*"):
        for row, _ in zip(lines(name), range(2), strict=False):
            room = VectorRoom(row)
            for case in row["cases"]:
                yield room, case["id"], [state_map(each) for each in case["state_sets"]]


class ResolutionInvariants(TestCase):
    """What must not make a difference."""

    def test_the_order_of_states_does_not_matter(self) -> None:
        """The order of the states, and how often each is there."""
        for room, case_id, states in _cases():
            expected = room.resolve(states)
            for other in permutations(states):
                self.assertEqual(room.resolve(other), expected, case_id)
            self.assertEqual(room.resolve([*states, states[-1], states[0]]), expected, case_id)

    def test_resolving_again_gives_the_same(self) -> None:
        """Resolving what was resolved: with itself, and with an equal state."""
        equal = 0
        for room, case_id, states in _cases():
            resolved = room.resolve(states)
            self.assertIs(room.resolve([resolved]), resolved, case_id)
            self.assertEqual(room.resolve([resolved, dict(resolved)]), resolved, case_id)
            for state in states:
                if state == resolved:
                    equal += 1
                    self.assertEqual(room.resolve([state, resolved]), resolved, case_id)
        self.assertGreater(equal, 25)

    def test_the_type_of_map_does_not_matter(self) -> None:
        """Plain maps, and compact ones that share what is the same."""
        for room, case_id, states in _cases():
            slots = Slots()
            compact = [CompactStateMap(state, slots) for state in states]
            resolved = room.resolve(compact)
            self.assertIsInstance(resolved, CompactStateMap)
            self.assertEqual(dict(resolved), room.resolve(states), case_id)

    def test_the_source_of_auth_chains_does_not_matter(self) -> None:
        """Auth chains of all events, kept, or of those that matter, read by need, or from a store."""
        for room, case_id, states in _cases():
            expected = room.resolve(states)
            fetch = room.events.__getitem__
            self.assertEqual(resolve(room.version, states, fetch), expected, case_id)
            if len(room.events) < 20 and room.version.resolution is not Resolution.V1:
                walked = WalkedChains(room.events)
                self.assertEqual(resolve(room.version, states, fetch, walked), expected, case_id)

    def test_unconflicted_entries_stay(self) -> None:
        """And nothing comes from nowhere."""
        for room, case_id, states in _cases():
            resolved = room.resolve(states).items()
            agreed = set.intersection(*(set(state.items()) for state in states))
            self.assertLessEqual(agreed, resolved, case_id)
            for (kind, state_key), event_id in resolved:
                event = room.events[event_id]
                self.assertEqual((event.type, event.state_key), (kind, state_key), case_id)

    def test_no_states_resolve_to_an_empty_state(self) -> None:
        """No state at all."""
        self.assertEqual(MadeRoom().resolve(), {})


class ResolutionGrouping(TestCase):
    """States whose events have no power over one another."""

    @given(
        st.lists(
            st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3)), min_size=1, max_size=6
        ),
        st.integers(1, 5),
    )
    @settings(max_examples=60)
    def test_resolving_in_groups(self, picked: list[dict[str, int]], size: int) -> None:
        """One after the other, in batches and all at once, they resolve to the same.

        Where events decide over one another they need not: a state that lost once does not come
        back (docs/adr/0014-state-resolution.md).
        """
        for version in _VERSIONS:
            room = MadeRoom(version)
            cites = room.begin()
            base = ("create", "a", "levels", "rules")
            for key in "xyz":
                for number in range(4):
                    # Times that often are the same.
                    room.add(f"{key}{number}", "t", key, {"n": number}, cites=cites, ts=number // 2)
            states = [
                room.state(*base, *(f"{key}{number}" for key, number in each.items()))
                for each in picked
            ]
            expected = room.resolve(*states)
            one_by_one: StateMap = states[0]
            for state in states[1:]:
                one_by_one = room.resolve(one_by_one, state)
            batches = [room.resolve(*states[at : at + size]) for at in range(0, len(states), size)]
            self.assertEqual(one_by_one, expected, version)
            self.assertEqual(room.resolve(*batches), expected, version)


class ResolutionErrors(TestCase):
    """Events that are not there are named."""

    def setUp(self) -> None:
        self.room = MadeRoom()
        cites = self.room.begin()
        self.room.add("one", "t", cites=cites)
        self.room.add("two", "t", cites=cites)
        base = ("create", "a", "levels", "rules")
        self.states = [self.room.state(*base, "one"), self.room.state(*base, "two")]

    def _without(self, *missing: str) -> Callable[[], StateMap]:
        kept = {key: event for key, event in self.room.events.items() if key not in missing}
        return lambda: resolve(self.room.version, self.states, kept.__getitem__)

    def test_a_missing_event_of_a_state_is_named(self) -> None:
        """An event of one of the states."""
        with self.assertRaisesRegex(UnknownEvent, "event two is not known"):
            self._without("two")()

    def test_a_missing_event_of_a_chain_is_named(self) -> None:
        """An auth event, near or far."""
        for name in ("levels", "create"):
            self.states = [
                {key: each for key, each in state.items() if each != name} for state in self.states
            ]
            with self.assertRaisesRegex(MissingAuthEvent, f"depends on {name}, which is not known"):
                self._without(name)()

    def test_a_missing_event_behind_known_chains_is_named(self) -> None:
        """Chains may know an event that cannot be read, and the other way round."""
        chains = BitSetChains(self.room.events.values())
        for name in ("two", "a", "levels"):
            kept = {key: event for key, event in self.room.events.items() if key != name}
            with self.assertRaisesRegex(UnknownEvent, f"event {name} is not known"):
                resolve(self.room.version, self.states, kept.__getitem__, chains)
        late = self.room.add("new", "m.room.power_levels", cites=["create", "a", "levels"])
        for state in self.states:
            state[late.type, ""] = "new"
        with self.assertRaisesRegex(UnknownEvent, "event new is not known"):
            resolve(self.room.version, self.states, self.room.events.__getitem__, chains)

    def test_a_missing_event_in_version_1_is_named(self) -> None:
        """There it is those that are looked at."""
        self.room.version = MadeRoom("1").version
        with self.assertRaisesRegex(UnknownEvent, "event two is not known"):
            self._without("two")()

    def test_a_cycle_is_named(self) -> None:
        """Events that depend on one another, where servers make IDs up."""
        self.room.add("p", "t", "p", cites=["create", "q"])
        self.room.add("q", "t", "q", cites=["create", "p"])
        with self.assertRaisesRegex(AuthCycle, "own auth chain"):
            self.room.resolve(self.room.state("create", "p"), self.room.state("create", "q"))


class AuthEventsForMissingEntries(TestCase):
    """What an event cites stands in for what the state lacks."""

    def _resolved(self, version: str, rejected: Sequence[str] = ()) -> set[str]:
        room = MadeRoom(version)
        cites = room.begin(**{"@b:x": 50})
        room.join("b", cites=["create", "levels", "rules"])
        cites = ["create", "levels", "b"]
        room.add("one", "t", sender="@b:x", cites=cites)
        room.add("two", "t", sender="@b:x", cites=cites)
        base = ("create", "a", "levels", "rules")
        states = [room.state(*base, name) for name in ("one", "two")]
        ids = [room.named[name].event_id for name in rejected]
        resolved = room.resolve(*states, rejected=ids)
        return {name for name, event in room.named.items() if event.event_id in resolved.values()}

    def test_a_missing_membership_is_taken_from_the_auth_events(self) -> None:
        """In version 2 and later; a rejected event does not."""
        for version in ("2", "10", "12"):
            self.assertIn("two", self._resolved(version), version)
            resolved = self._resolved(version, rejected=["b"])
            self.assertEqual(resolved, {"create", "a", "levels", "rules"}, version)

    def test_not_in_version_1(self) -> None:
        """There nobody is allowed, and the lowest stays."""
        self.assertIn("one", self._resolved("1"))


class SenderLevel(TestCase):
    """The power of senders, by what their events cite."""

    def _level(self, room: MadeRoom, sender: str, *cites: str) -> float:
        event = room.add(f"{sender} {cites}", "t", sender=sender, cites=cites)
        return sender_level(event, room.events.__getitem__, {room.named["levels"].event_id})

    def test_is_read_from_the_power_levels_among_the_auth_events(self) -> None:
        """The level of the user, or of all users."""
        for version in ("2", "10"):
            room = MadeRoom(version)
            room.add("create", "m.room.create", content={"creator": "@a:x"})
            content = {"users": {"@b:x": 5}, "users_default": 10}
            room.add("levels", "m.room.power_levels", content=content, cites=["create"])
            for cites in (["create", "levels"], ["levels"]):
                self.assertEqual(self._level(room, "@b:x", *cites), 5)
                self.assertEqual(self._level(room, "@a:x", *cites), 10)
            self.assertEqual(self._level(room, "@b:x", "create"), 0)
            self.assertEqual(self._level(room, "@a:x", "create"), 100)
            self.assertEqual(self._level(room, "@a:x"), 0)

    def test_creators_without_power_levels(self) -> None:
        """From version 12 they are above all levels, whatever is cited."""
        room = MadeRoom("12")
        room.add("create", "m.room.create", content={"additional_creators": ["@b:x"]})
        levels = {"users": {"@c:x": 2**53 - 1}}
        room.add("levels", "m.room.power_levels", content=levels, cites=["create"])
        for cites in ([], ["levels"]):
            self.assertEqual(self._level(room, "@a:x", *cites), inf)
            self.assertEqual(self._level(room, "@b:x", *cites), inf)
        self.assertEqual(self._level(room, "@c:x", "levels"), 2**53 - 1)
        self.assertEqual(self._level(room, "@d:x", "levels"), 0)
