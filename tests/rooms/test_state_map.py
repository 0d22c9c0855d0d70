"""State maps behave as dictionaries do, share what they have in common, and know how they differ."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from unittest import TestCase

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from synrepl.rooms.state import StateKey
from synrepl.rooms.state_map import CompactStateMap, Delta, Slots, delta

keys = st.integers(0, 700).map(lambda number: ("m.room.member", f"@u{number}:example.org"))
ids = st.sampled_from(["$a", "$b", "$c", ""])
many = st.dictionaries(keys, ids, max_size=60)
SOME = settings(max_examples=60, stateful_step_count=25, deadline=None)
Pair = tuple[CompactStateMap, dict[StateKey, str]]


class Maps(RuleBasedStateMachine):
    """Each map is made from another one, and has a dictionary beside it."""

    maps = Bundle[Pair]("maps")

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots()
        self.all: list[Pair] = []

    def keep(self, made: CompactStateMap, expected: dict[StateKey, str]) -> Pair:
        assert dict(made) == expected == made.as_dict(), (made, expected)
        assert len(made) == len(expected)
        assert made == expected
        self.all.append((made, expected))
        return made, expected

    @initialize(target=maps)
    def nothing(self) -> Pair:
        return self.keep(CompactStateMap(None, self.slots), {})

    @rule(target=maps, entries=many)
    def whole(self, entries: dict[StateKey, str]) -> Pair:
        return self.keep(CompactStateMap(entries, self.slots), entries)

    @rule(target=maps, entries=many)
    def other_room(self, entries: dict[StateKey, str]) -> Pair:
        return self.keep(CompactStateMap(entries), entries)

    @rule(target=maps, pair=maps, key=keys, event_id=ids)
    def one(self, pair: Pair, key: StateKey, event_id: str) -> Pair:
        made = pair[0].with_entry(key, event_id)
        assert (made is pair[0]) == (pair[1].get(key) == event_id)
        return self.keep(made, {**pair[1], key: event_id})

    @rule(target=maps, pair=maps, entries=many, removed=st.frozensets(keys, max_size=60))
    def some(self, pair: Pair, entries: dict[StateKey, str], removed: frozenset[StateKey]) -> Pair:
        removed = (removed | set(list(pair[1])[::3])) - entries.keys()
        whole = {key: value for key, value in (pair[1] | entries).items() if key not in removed}
        return self.keep(pair[0].with_delta(Delta(entries, removed)), whole)

    @rule(target=maps, pair=maps, last=st.integers(1, 12))
    def without_the_last(self, pair: Pair, last: int) -> Pair:
        removed = frozenset(list(pair[0])[-last:])
        rest = {key: value for key, value in pair[1].items() if key not in removed}
        return self.keep(pair[0].with_delta(Delta({}, removed)), rest)

    @rule(pair=maps, other=maps)
    def compared(self, pair: Pair, other: Pair) -> None:
        (a, a_dict), (b, b_dict) = pair, other
        assert (a == b) == (a_dict == b_dict)
        assert a != b or hash(a) == hash(b)
        assert (a == b_dict) == (a_dict == b_dict)
        change = delta(a, b)
        assert change == delta(a_dict, b_dict) == delta(a, b_dict)
        assert bool(change) == bool(len(change)) == (a_dict != b_dict)
        assert a.with_delta(change) == b
        became = a.becoming(b_dict)
        assert became == b
        assert became.slots is a.slots
        assert (became is a) == (a_dict == b_dict)
        assert a.becoming(b) == b

    @rule(pair=maps, key=keys)
    def looked_up(self, pair: Pair, key: StateKey) -> None:
        made, expected = pair
        assert made.get(key) == expected.get(key)
        assert made.get(key, "$") == expected.get(key, "$")
        assert (key in made) == (key in expected)

    @invariant()
    def nothing_has_changed(self) -> None:
        for made, expected in self.all[-3:]:
            assert made.as_dict() == expected


class StateMapsAgainstDictionaries(TestCase):
    def test_they_behave_as_dictionaries(self) -> None:
        run_state_machine_as_test(Maps, settings=SOME)


class StructuralSharing(TestCase):
    def test_a_change_copies_one_path(self) -> None:
        entries = {("m.room.member", f"@u{n}:x"): f"$e{n}" for n in range(1000)}
        before = CompactStateMap(entries)
        after = before.with_entry(("m.room.member", "@u500:x"), "$new")
        before_nodes, after_nodes = _nodes(before), _nodes(after)
        self.assertLessEqual(len(after_nodes.keys() - before_nodes.keys()), 4)
        self.assertEqual(delta(before, after), Delta({("m.room.member", "@u500:x"): "$new"}))

    def test_entries_come_in_the_order_of_the_room(self) -> None:
        slots = Slots()
        first = CompactStateMap({("b", ""): "$1", ("a", ""): "$2"}, slots)
        second = CompactStateMap({("c", ""): "$3", ("a", ""): "$4"}, slots)
        self.assertEqual(list(first), [("b", ""), ("a", "")])
        self.assertEqual(list(second), [("a", ""), ("c", "")])

    def test_a_key_of_another_map_is_missing(self) -> None:
        slots = Slots()
        small = CompactStateMap({("a", ""): "$1"}, slots)
        large = CompactStateMap({("a", str(n)): f"${n}" for n in range(1000)}, slots)
        self.assertIsNone(small.get(("a", "999")))
        self.assertNotIn(("a", "7"), small)
        self.assertEqual(large.get(("a", "999")), "$999")
        self.assertRaises(KeyError, small.__getitem__, ("a", "999"))

    def test_a_root_with_one_child_is_collapsed(self) -> None:
        """Equal maps are equally small trees, however they came about."""
        made = CompactStateMap({("a", str(n)): f"${n}" for n in range(100)})
        small = made.with_delta(Delta({}, frozenset(("a", str(n)) for n in range(1, 100))))
        slow = made
        for n in range(99, 0, -1):
            slow = slow.with_delta(Delta({}, frozenset({("a", str(n))})))
        self.assertEqual((len(_nodes(small)), len(_nodes(slow))), (1, 1))
        self.assertEqual(slow, {("a", "0"): "$0"})

    def test_is_not_equal_to_other_types(self) -> None:
        self.assertNotEqual(CompactStateMap({("a", ""): "$"}), 7)


def _nodes(state: CompactStateMap) -> Mapping[int, object]:
    """The nodes of its tree, which are tuples, by identity."""
    found: dict[int, object] = {}
    stack = gc.get_referents(state)
    while stack:
        node = stack.pop()
        if isinstance(node, tuple) and id(node) not in found:
            found[id(node)] = node
            stack.extend(node)
    return found
