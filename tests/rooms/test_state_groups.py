"""State groups: every state is read back as it was, over few groups, and little is stored."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.rooms.state import StateKey
from synrepl.rooms.state_groups import (
    MAX_CHAIN,
    BrokenChain,
    StateGroup,
    UnknownStateGroup,
    plan_group,
    read_group,
)
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots


class Store:
    """Groups in a dictionary, each with the state that it should have beside it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.groups: dict[int, StateGroup] = {}
        self.states: dict[int, CompactStateMap] = {}

    def put(self, state: CompactStateMap, near: list[int]) -> int:
        plan = plan_group(
            state, [(each, self.states[each]) for each in near], self.fetch, self.limit
        )
        if plan.prev is not None and not plan.delta:
            return plan.prev
        group = len(self.groups) + 1
        self.groups[group], self.states[group] = plan, state
        return group

    def fetch(self, group: int) -> StateGroup:
        return self.groups[group]

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


class Groups(TestCase):
    @settings(max_examples=150, deadline=None)
    @given(st.lists(changes, max_size=30), st.integers(0, 6))
    def test_read_back(
        self,
        story: list[tuple[dict[StateKey, str], frozenset[StateKey], list[int]]],
        limit: int,
    ) -> None:
        store, slots = Store(limit), Slots()
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
            self.assertLessEqual(stored.chain, limit)
            if stored.prev is None:
                self.assertEqual(stored.chain, 0)
            else:
                self.assertEqual(stored.chain, store.groups[stored.prev].chain + 1)
                if stored.chain < limit:
                    self.assertLess(len(stored.delta), max(1, len(state)))

    def test_the_closest_is_taken_and_the_same_is_not_stored_again(self) -> None:
        store = Store(5)
        large = CompactStateMap({member(n): "$" for n in range(20)})
        far = store.put(large.with_delta(Delta({member(n): "$x" for n in range(9)})), [])
        close = store.put(large.with_entry(member(1), "$y"), [far])
        plan = plan_group(
            large, [(far, store.states[far]), (close, store.states[close])], store.fetch
        )
        self.assertEqual(plan, StateGroup(close, Delta({member(1): "$"}), 2))
        self.assertEqual(store.put(store.states[close], [far, close]), close)

    def test_little_is_stored_of_a_long_story(self) -> None:
        """As many groups as changes: some rows for each, not a whole state now and then."""
        store, slots = Store(MAX_CHAIN), Slots()
        state = CompactStateMap({member(n): "$join" for n in range(1000)}, slots)
        last = store.put(state, [])
        for n in range(2000):
            state = state.with_entry(member(n * 7 % 1000), f"${n}")
            last = store.put(state, [last])
        self.assertEqual(read_group(last, store.fetch), state)
        self.assertLess(store.rows, 1000 + 2000 * 4)

    def test_what_is_removed_and_set_again_above_a_known_state(self) -> None:
        key, base = member(1), CompactStateMap({member(1): "$a", member(2): "$b"})
        groups = {
            2: StateGroup(1, Delta({}, frozenset({key, member(2)})), 1),
            3: StateGroup(2, Delta({key: "$c"}), 2),
        }
        read = read_group(3, groups.__getitem__, {1: base})
        self.assertEqual(read, {key: "$c"})
        self.assertIs(read.slots, base.slots)
        self.assertIs(read_group(1, groups.__getitem__, {1: base}), base)

    def test_a_group_that_is_not_there(self) -> None:
        groups = {2: StateGroup(1, Delta({}), 1)}
        with self.assertRaisesRegex(UnknownStateGroup, "no state group 1"):
            read_group(2, groups.__getitem__)
        with self.assertRaises(UnknownStateGroup):
            plan_group({}, [(7, {})], groups.__getitem__)

    def test_groups_that_refer_to_one_another_in_a_circle(self) -> None:
        groups = {1: StateGroup(2, Delta({}), 1), 2: StateGroup(1, Delta({}), 1)}
        with self.assertRaisesRegex(BrokenChain, "state group 1 .* group 2"):
            read_group(1, groups.__getitem__)
