"""State groups: every state is read back as it was, over few groups, and little is stored."""

from __future__ import annotations

from collections.abc import Collection
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.rooms.lookups import run
from synrepl.rooms.state import StateKey
from synrepl.rooms.state_groups import (
    LEVELS,
    BrokenChain,
    SkipLevels,
    StateGroup,
    UnknownStateGroup,
    lookup_states,
    plan_group,
    read_group,
)
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots


class Store:
    """Groups in a dictionary, each with the state that it should have beside it."""

    def __init__(self, levels: SkipLevels = LEVELS) -> None:
        self.levels = levels
        self.entries_read = 0
        self.groups: dict[int, StateGroup] = {}
        self.states: dict[int, CompactStateMap] = {}

    def put(self, state: CompactStateMap, near: list[int]) -> int:
        plan = plan_group(
            state, [(each, self.states[each]) for each in near], self.fetch, self.levels
        )
        if plan.prev is not None and not plan.delta:
            return plan.prev
        group = len(self.groups) + 1
        self.groups[group], self.states[group] = plan, state
        return group

    def fetch(self, group: int) -> StateGroup:
        stored = self.groups[group]
        self.entries_read += len(stored.delta)
        return stored

    def state_groups(self, groups: Collection[int]) -> dict[int, StateGroup]:
        return {each: self.fetch(each) for each in groups if each in self.groups}

    def hops(self, group: int) -> int:
        prev = self.groups[group].prev
        return 0 if prev is None else 1 + self.hops(prev)

    @property
    def rows(self) -> int:
        return sum(len(group.delta) for group in self.groups.values())


def member(number: int) -> StateKey:
    return "m.room.member", f"@u{number}:x"


changes = st.tuples(
    st.dictionaries(st.integers(0, 12).map(member), st.sampled_from("abc"), max_size=3),
    st.frozensets(st.integers(0, 12).map(member), max_size=2),
    st.lists(st.integers(0, 1000), max_size=3),
)


class StateGroupPlans(TestCase):
    @settings(max_examples=150, deadline=None)
    @given(st.lists(changes, max_size=30), st.integers(2, 4), st.integers(1, 3))
    def test_every_state_is_read_back(
        self,
        story: list[tuple[dict[StateKey, str], frozenset[StateKey], list[int]]],
        width: int,
        depth: int,
    ) -> None:
        levels = SkipLevels(width, depth)
        store, slots = Store(levels), Slots()
        made = [store.put(CompactStateMap(None, slots), [])]
        for entries, removed, near in story:
            base = store.states[made[near[0] % len(made)]] if near else store.states[made[-1]]
            state = base.with_delta(Delta(entries, removed - entries.keys()))
            made.append(store.put(state, [made[each % len(made)] for each in near]))
        for group, state in store.states.items():
            stored = store.groups[group]
            self.assertEqual(read_group(group, store.fetch), state)
            self.assertEqual(read_group(group, store.fetch, {}, slots), state)
            some = {each: store.states[each] for each in list(store.states)[::3]}
            read = read_group(group, store.fetch, some)
            self.assertEqual(read, state)
            self.assertLessEqual(store.hops(group), levels.max_hops)
            self.assertLess(stored.place, levels.line)
            if stored.prev is None:
                self.assertEqual(stored.place, 0)
            else:
                self.assertEqual(store.groups[stored.prev].place, levels.refers_to(stored.place))
                self.assertLess(len(stored.delta), max(2, len(state)))
        read_at_once = run(lookup_states(list(store.groups), {}, slots), store)
        self.assertEqual(read_at_once, store.states)

    def test_the_closest_candidate_is_the_base_and_an_equal_one_is_reused(self) -> None:
        store = Store()
        large = CompactStateMap({member(n): "$" for n in range(20)})
        far = store.put(large.with_delta(Delta({member(n): "$x" for n in range(9)})), [])
        close = store.put(large.with_entry(member(1), "$y"), [far])
        plan = plan_group(
            large, [(far, store.states[far]), (close, store.states[close])], store.fetch
        )
        self.assertEqual(plan, StateGroup(close, Delta({member(1): "$"}), 2))
        self.assertEqual(store.put(store.states[close], [far, close]), close)

    def test_a_group_refers_to_the_number_with_its_last_digit_lowered(self) -> None:
        levels = SkipLevels(10, 3)
        places = {237: 236, 230: 220, 200: 100, 100: 0, 1: 0}
        self.assertEqual({each: levels.refers_to(each) for each in places}, places)
        self.assertEqual((levels.line, levels.max_hops), (1000, 27))

    def test_the_cost_grows_with_the_change_and_not_with_the_room(self) -> None:
        """As many groups as changes: a few entries are stored, and read, for each."""
        for members in 1000, 4000:
            store, slots = Store(), Slots()
            state = CompactStateMap({member(n): "$join" for n in range(members)}, slots)
            last = store.put(state, [])
            for n in range(4000):
                state = state.with_entry(member(n * 7 % members), f"${n}")
                last = store.put(state, [last])
            read = store.entries_read
            self.assertLess(store.rows, members + 4000 * 5)
            self.assertLess(read, 4000 * 20)
            self.assertEqual(read_group(last, store.fetch), state)

    def test_states_share_memory_where_their_chains_meet(self) -> None:
        store, slots = Store(), Slots()
        state = CompactStateMap({member(n): "$join" for n in range(500)}, slots)
        last = store.put(state, [])
        for n in range(5):
            state = state.with_entry(member(n), f"${n}")
            last = store.put(state, [last])
        ends = [store.put(state.with_entry(member(100 + n), "$"), [last]) for n in range(3)]
        store.entries_read = 0
        read = run(lookup_states(ends, {}, slots), store)
        self.assertEqual(read, {each: store.states[each] for each in ends})
        self.assertEqual(store.entries_read, 500 + 5 + 3)

    def test_entries_removed_and_set_again_above_a_known_state(self) -> None:
        key, base = member(1), CompactStateMap({member(1): "$a", member(2): "$b"})
        groups = {
            2: StateGroup(1, Delta({}, frozenset({key, member(2)})), 1),
            3: StateGroup(2, Delta({key: "$c"}), 2),
        }
        read = read_group(3, groups.__getitem__, {1: base})
        self.assertEqual(read, {key: "$c"})
        self.assertIs(read.slots, base.slots)
        self.assertIs(read_group(1, groups.__getitem__, {1: base}), base)

    def test_a_missing_group_is_named(self) -> None:
        groups = {2: StateGroup(1, Delta({}), 1)}
        with self.assertRaisesRegex(UnknownStateGroup, "no state group 1"):
            read_group(2, groups.__getitem__)
        with self.assertRaises(UnknownStateGroup):
            plan_group({}, [(7, {})], groups.__getitem__)

    def test_a_cycle_of_groups_is_reported(self) -> None:
        groups = {1: StateGroup(2, Delta({}), 1), 2: StateGroup(1, Delta({}), 1)}
        with self.assertRaisesRegex(BrokenChain, "does not come before it"):
            read_group(1, groups.__getitem__)
        circle = {n: StateGroup(n % 3 + 1, Delta({member(n): "$"}), 1 + n % 3) for n in (1, 2, 3)}
        with self.assertRaisesRegex(BrokenChain, "does not come before it"):
            read_group(2, circle.__getitem__)
        story = {**circle, 3: StateGroup(1, Delta({member(3): "$"}), LEVELS.width**2 - 1)}
        with self.assertRaisesRegex(BrokenChain, "does not come before it"):
            plan_group({}, [(3, {member(0): "$"})], story.__getitem__)
