"""Auth chains as bit sets against walks over the events."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import TestCase

from synrepl.rooms.chains import (
    AuthCycle,
    BitSetChains,
    MissingAuthEvent,
    UnknownEvent,
    chains_of,
)
from synrepl.rooms.differing import DifferingEvents, EventChange
from synrepl.rooms.event import Event, event_of
from synrepl.rooms.resolution.conflict import conflict
from synrepl.rooms.state_map import CompactStateMap
from synrepl.rooms.versions import V12
from tests.rooms.resolution_rooms import MadeRoom, WalkedChains

#: For each event, how far back those are that it cites.
_GRAPHS = st.lists(st.lists(st.integers(1, 12), max_size=4), min_size=1, max_size=40)


#: What the events are, in turn: some are cited by nearly all others in a real room, most are not.
_KINDS = (
    ["m.room.power_levels"],
    ["m.room.member"],
    ["m.room.member", "m.room.member", "m.room.power_levels", None],
)

#: How many events get a bit whatever they are.
_BITS = st.sampled_from([0, 0, 5, 100])


def _room(steps: list[list[int]], kinds: Sequence[str | None] = _KINDS[0]) -> MadeRoom:
    room = MadeRoom()
    for at, back in enumerate(steps):
        cites = sorted({str(at - step) for step in back if step <= at})
        kind = kinds[at % len(kinds)]
        key = None if kind is None else "" if at % 3 else "x"
        room.add(str(at), kind or "m.room.message", key, cites=cites)
    return room


_differing = DifferingEvents.of_states


class AuthChainsAgainstWalks(TestCase):
    """Random graphs."""

    @given(_GRAPHS, st.sampled_from(_KINDS), _BITS)
    @settings(max_examples=200)
    def test_chains_equal_a_walk(
        self, steps: list[list[int]], kinds: list[str | None], bits: int
    ) -> None:
        """Each chain."""
        room = _room(steps, kinds)
        chains, walked = BitSetChains(room.events.values(), bits), WalkedChains(room.events)
        for event_id in room.events:
            self.assertEqual(chains.chain(event_id), walked.chain(event_id))
        self.assertEqual(chains.power_levels, walked.power_levels)

    @given(_GRAPHS, st.sampled_from(_KINDS), _BITS, st.data())
    @settings(max_examples=200)
    def test_the_auth_difference_equals_a_walk(
        self, steps: list[list[int]], kinds: list[str | None], bits: int, data: st.DataObject
    ) -> None:
        """The auth difference."""
        room = _room(steps, kinds)
        # States have state events only.
        in_states = [each for each, event in room.events.items() if event.state_key is not None]
        subset = st.sets(st.sampled_from(sorted(in_states)))
        states = data.draw(st.lists(subset, min_size=1, max_size=6))
        shared = set.intersection(*states)
        differing = _differing([sorted(state - shared) for state in states])
        self.assertEqual(
            BitSetChains(room.events.values(), bits).difference(differing, shared),
            WalkedChains(room.events).difference(differing, shared),
        )

    def test_an_event_that_a_state_has_under_two_keys_may_change_under_one(self) -> None:
        """It is still in that state."""
        room = _room([[1]] * 4)
        chains, walked = BitSetChains(room.events.values()), WalkedChains(room.events)
        differing = DifferingEvents(
            ["2", "2", "1"], [EventChange(["0"], [1]), EventChange([], [2])]
        )
        self.assertEqual(chains.difference(differing, []), walked.difference(differing, []))
        self.assertEqual(walked.difference(differing, []), set())

    def test_differing_events_of_many_states_go_with_what_differs(self) -> None:
        """After a netsplit there are as many states as keys, and all but one or two entries are shared."""
        joined = CompactStateMap({("m.room.member", f"@{n}"): f"join {n}" for n in range(100)})
        states = [joined.with_entry(("m.room.member", f"@{n}"), f"leave {n}") for n in range(100)]
        differing = conflict(states).differing_events()
        self.assertEqual(len(differing.first), 100)
        for added, removed in differing.changes:
            self.assertEqual((len(added), len(removed)), (2, 2))
        self.assertEqual(len(differing.events()), 200)

    def test_the_auth_difference_of_states_that_share_much(self) -> None:
        """What takes an event out of the difference may come late."""
        room = _room([[1]] * 200)
        room.add("leaf", "t", cites=["199"])
        others = [room.add(f"other {n}", "t", cites=["0"]).event_id for n in range(100)]
        chains = BitSetChains(room.events.values())
        self.assertEqual(len(chains.difference(_differing([["leaf"], []]), others)), 200)
        self.assertEqual(chains.difference(_differing([["leaf"], []]), [*others, "199"]), {"leaf"})

    def test_shared_events_remove_events_without_a_bit(self) -> None:
        """A membership that only one state has, and that shared state depends on."""
        room = MadeRoom()
        cites = room.begin()
        room.join("u", [*cites[:3:2], "rules"])
        room.add("topic", "m.room.topic", sender="@u:x", cites=["create", "levels", "u"])
        room.join("w", [*cites[:3:2], "rules"])
        chains = BitSetChains(room.events.values(), bits_for_all=0)
        self.assertEqual(chains.difference(_differing([["u"], []]), ["w"]), {"u"})
        self.assertEqual(chains.difference(_differing([["u"], []]), ["w", "topic"]), set())
        # Also where the states differ in nothing that has a bit.
        self.assertEqual(chains.difference(_differing([["u"], ["w"]]), []), {"u", "w"})
        self.assertEqual(chains.difference(_differing([["u"], ["w"]]), ["topic"]), {"w"})

    def test_what_each_state_has_by_one_of_two_events_is_in_no_difference(self) -> None:
        room = MadeRoom()
        cites = room.begin()
        room.join("u", [*cites[:3:2], "rules"])
        for name in "t1", "t2":
            room.add(name, "m.room.topic", sender="@u:x", cites=["create", "levels", "u"])
        for name in "t3", "t4":
            room.add(name, "m.room.topic", cites=["create", "levels"])
        chains = BitSetChains(room.events.values(), bits_for_all=0)
        differing = _differing([["t1", "t2"], ["t3", "t2"], ["t1", "t4"]])
        self.assertEqual(chains.difference(differing, []), {"t1", "t2", "t3", "t4"})

    @given(_GRAPHS, st.sampled_from(_KINDS), _BITS, st.data())
    @settings(max_examples=200)
    def test_the_conflicted_subgraph_equals_a_walk(
        self, steps: list[list[int]], kinds: list[str | None], bits: int, data: st.DataObject
    ) -> None:
        """The paths between events."""
        room = _room(steps, kinds)
        ends = data.draw(st.sets(st.sampled_from(sorted(room.events))))
        self.assertEqual(
            BitSetChains(room.events.values(), bits).subgraph(ends),
            WalkedChains(room.events).subgraph(ends),
        )

    @given(_GRAPHS, st.data())
    @settings(max_examples=50)
    def test_chains_are_read_with_a_fetch_function(
        self, steps: list[list[int]], data: st.DataObject
    ) -> None:
        """Chains that are read by need hold the same as those that are built up."""
        room = _room(steps)
        built = BitSetChains(room.events.values())
        starts = data.draw(st.lists(st.sampled_from(sorted(room.events)), max_size=5))
        read = chains_of(starts, room.events.__getitem__)
        for start in starts:
            self.assertEqual(read.chain(start), built.chain(start))


class AuthChainSize(TestCase):
    """What chains take in memory."""

    def test_members_who_leave_and_rejoin_take_no_bits(self) -> None:
        """Each has a chain of its own, which is not copied into the next."""
        room = MadeRoom()
        cites = room.begin()
        for turn in range(3):
            for n in range(50):
                before = [f"{turn - 1} {n}"] if turn else []
                room.join(f"u{n}", [*cites[:3:2], "rules", *before], f"{turn} {n}")
        chains = BitSetChains(room.events.values(), bits_for_all=0)
        self.assertEqual(chains.bit_count, 4)
        self.assertIn("0 7", chains.chain("2 7"))
        self.assertNotIn("0 8", chains.chain("2 7"))


class ImpliedCreateEvent(TestCase):
    """Where the room's ID is the hash of its creation."""

    def setUp(self) -> None:
        self.create = self._event("m.room.create", [])
        room_id = "!" + self.create.event_id[1:]
        self.member = self._event("m.room.member", [], room_id)
        self.topic = self._event("m.room.topic", [self.member.event_id], room_id)

    def _event(self, kind: str, cites: list[str], room_id: str | None = None) -> Event:
        fields = {
            "type": kind,
            "sender": "@a:x",
            "state_key": "",
            "content": {},
            "depth": 1,
            "origin_server_ts": 1,
            "prev_events": [],
            "auth_events": cites,
            "hashes": {},
        }
        return event_of(fields if room_id is None else {**fields, "room_id": room_id}, V12)

    def test_is_in_every_chain(self) -> None:
        """Though nobody cites it."""
        chains = BitSetChains([self.create, self.member, self.topic])
        self.assertEqual(chains.chain(self.create.event_id), set())
        self.assertEqual(chains.chain(self.member.event_id), {self.create.event_id})
        self.assertEqual(
            chains.chain(self.topic.event_id), {self.create.event_id, self.member.event_id}
        )

    def test_must_be_known(self) -> None:
        """Without it there is no chain."""
        with self.assertRaisesRegex(MissingAuthEvent, re.escape(self.create.event_id)):
            BitSetChains([self.member])


class AuthChainErrors(TestCase):
    """What is missing is named."""

    def setUp(self) -> None:
        self.room = MadeRoom()
        self.room.add("a", "t")
        self.room.add("b", "t", cites=["a"])
        self.chains = BitSetChains(self.room.events.values())

    def test_an_unknown_event_is_named(self) -> None:
        """Asking about an event that was never added."""
        for ask in (
            lambda: self.chains.chain("x"),
            lambda: self.chains.difference(_differing([["x"], []]), []),
            lambda: self.chains.difference(_differing([["b"], []]), ["x"]),
            lambda: self.chains.subgraph(["b", "a", "x"]),
            lambda: self.chains.subgraph(["x"]),
            lambda: chains_of(["x"], self.room.events.__getitem__),
        ):
            with self.assertRaisesRegex(UnknownEvent, "x"):
                ask()

    def test_a_missing_auth_event_is_named(self) -> None:
        """Adding an event before what it cites; nothing of it stays."""
        late = self.room.add("d", "t", cites=["a", "c"])
        with self.assertRaisesRegex(MissingAuthEvent, "d depends on c"):
            self.chains.add(late)
        self.assertNotIn("d", self.chains)
        with self.assertRaisesRegex(MissingAuthEvent, "d depends on c"):
            chains_of(["d"], self.room.events.__getitem__)

    def test_a_cycle_is_named(self) -> None:
        """Servers that make IDs up can make events depend on one another."""
        self.room.add("p", "t", cites=["a", "q"])
        self.room.add("q", "t", cites=["p"])
        self.room.add("s", "t", cites=["s"])
        for start in ("p", "q", "s"):
            with self.assertRaisesRegex(AuthCycle, "own auth chain"):
                chains_of([start], self.room.events.__getitem__)

    def test_adding_an_event_twice_changes_nothing(self) -> None:
        """Adding twice changes nothing."""
        self.chains.add(self.room.events["b"])
        self.assertEqual(len(self.chains), 2)
        self.assertEqual(self.chains.chain("b"), {"a"})
