"""One cache, against a naive model, and its index of key prefixes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any
from unittest import TestCase

import cachetools
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from synrepl.caches.cache import MANY_KEYS, BadCache, Cache, Declaration, UnusableKey
from synrepl.caches.load import Load
from synrepl.streams.effects import Key

ARITY = 3
KEYS = st.sampled_from(
    [("!a", "@x", "D"), ("!a", "@x", "E"), ("!a", None, "D"), ("!b", "@x", "D"), ("!b", 1, "E")]
)
PARTS = st.one_of(
    KEYS,
    KEYS.map(lambda key: key[:1]),
    KEYS.map(lambda key: key[:2]),
    KEYS.map(lambda key: (*key, "more")),
    st.sampled_from([None, (), ("!nowhere",), ("!a", ["@x"]), ("!nowhere", "@x", "D")]),
)

MACHINE = settings(max_examples=150, stateful_step_count=40, deadline=None)


def size_of(value: tuple[Key, int]) -> int:
    """Sizes from one byte to more than the limit."""
    return {"D": 1, "E": 3}[value[0][2]] * (3 if value[0][1] == 1 else 1)


class AgainstTheModel(RuleBasedStateMachine):
    """True values change, always with an invalidation; loads return the value from their beginning.

    The model keeps entries in the order of their last use, and forgets nothing else.
    """

    @initialize(
        tree=st.booleans(),
        most=st.integers(1, 5),
        most_bytes=st.sampled_from([None, 4, 10]),
        ttl_s=st.sampled_from([None, 5.0]),
    )
    def start(self, tree: bool, most: int, most_bytes: int | None, ttl_s: float | None) -> None:
        self.declared = Declaration(
            name="get",
            arity=ARITY,
            max_entries=most,
            max_bytes=most_bytes,
            size_of=None if most_bytes is None else size_of,
            ttl_s=ttl_s,
            tree=tree,
        )
        self.now = 0.0
        self.cache = Cache(self.declared, lambda: self.now, lambda: 7, lambda: None)
        self.truth: dict[Key, int] = {}
        self.kept: OrderedDict[Key, float] = OrderedDict()
        self.under_way: list[tuple[Key, Load, int]] = []
        self.counted: dict[Key, Load] = {}
        self.evictions = 0

    @rule(key=KEYS)
    def find(self, key: Key) -> None:
        entry = self.cache.find(key)
        if key in self.kept and self.kept[key] <= self.now:
            del self.kept[key]
        self.assert_equal(None if entry is None else entry.value, self.expected(key))
        if key in self.kept:
            self.kept.move_to_end(key)

    def expected(self, key: Key) -> tuple[Key, int] | None:
        return (key, self.truth.get(key, 0)) if key in self.kept else None

    @rule(key=KEYS)
    def begin(self, key: Key) -> None:
        load = self.cache.begin(key)
        self.under_way.append((key, load, self.truth.get(key, 0)))
        self.counted[key] = load

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def loaded(self, data: st.DataObject) -> None:
        key, load, version = self.ended(data)
        self.cache.loaded(key, load, (key, version))
        if self.counted.get(key) is not load:
            return
        del self.counted[key]
        declared, size = self.declared, size_of((key, version))
        if declared.max_bytes is not None and size > declared.max_bytes:
            self.kept.pop(key, None)
            return
        others = [other for other in self.kept if other != key]
        while len(others) >= declared.max_entries or (
            declared.max_bytes is not None
            and size + sum(size_of((other, 0)) for other in others) > declared.max_bytes
        ):
            del self.kept[others.pop(0)]
            self.evictions += 1
        self.kept[key] = float("inf") if declared.ttl_s is None else self.now + declared.ttl_s
        self.kept.move_to_end(key)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def failed(self, data: st.DataObject) -> None:
        key, load, _ = self.ended(data)
        self.cache.failed(key, load, RuntimeError())
        if self.counted.get(key) is load:
            del self.counted[key]

    def ended(self, data: st.DataObject) -> tuple[Key, Load, int]:
        return self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))

    @rule(part=PARTS)
    def changed(self, part: Key | None) -> None:
        """A value changes and is invalidated, perhaps with other entries."""
        self.cache.invalidate(part)
        self.note(part)

    @rule(parts=st.lists(st.one_of(KEYS, KEYS, KEYS, KEYS, KEYS, PARTS), max_size=4))
    def several_changed(self, parts: list[Key | None]) -> None:
        """Values change, and are invalidated together with many that are not here."""
        others: list[Key | None] = [("!nowhere", "@x", number) for number in range(MANY_KEYS)]
        self.cache.invalidate_several([*parts, *others])
        for part in parts:
            self.note(part)

    def note(self, part: Key | None) -> None:
        known = part[:ARITY] if part else ()
        everything = not known or ["@x"] in known or (len(known) < ARITY and not self.declared.tree)
        for key in {*self.kept, *self.truth, *self.counted, *(key for key, *_ in self.under_way)}:
            if key[: len(known)] == known:
                self.truth[key] = self.truth.get(key, 0) + 1
            if everything or key[: len(known)] == known:
                self.kept.pop(key, None)
                self.counted.pop(key, None)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.kept.clear()
        self.counted.clear()

    @rule(seconds=st.sampled_from([1.0, 4.0, 5.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_stale(self) -> None:
        for key, entry in self.entries().items():
            self.assert_equal(entry.value, (key, self.truth.get(key, 0)))

    @invariant()
    def keeps_what_the_model_keeps(self) -> None:
        self.assert_equal(set(self.entries()), set(self.kept))
        self.assert_equal(self.cache.loads, self.counted)
        self.assert_equal(self.cache.evictions, self.evictions)

    @invariant()
    def bounded(self) -> None:
        counts, declared = self.cache.counts(), self.declared
        assert counts["size"] <= declared.max_entries
        if declared.max_bytes is not None:
            assert counts["bytes"] <= declared.max_bytes
            self.assert_equal(counts["bytes"], sum(size_of((key, 0)) for key in self.kept))

    @invariant()
    def the_index_has_the_prefixes_of_entries(self) -> None:
        kept = self.kept if self.declared.tree else ()
        prefixes = {key[:length] for key in kept for length in range(1, ARITY)}
        self.assert_equal(self.cache.prefixes, len(prefixes))

    def entries(self) -> dict[Key, Any]:
        # As the library looks at them below the LRU: this is no use of an entry.
        look = cachetools.Cache.__getitem__
        return {key: look(self.cache.entries, key) for key in self.cache.entries}

    def assert_equal(self, found: object, expected: object) -> None:
        assert found == expected, f"{found} != {expected}"


class CacheProperties(TestCase):
    def test_behaves_like_the_model(self) -> None:
        run_state_machine_as_test(AgainstTheModel, settings=MACHINE)


def tree(arity: int = 3) -> Cache:
    declared = Declaration(name="get", arity=arity, max_entries=10, tree=True)
    return Cache(declared, lambda: 0.0, lambda: 0, lambda: None)


def fill(cache: Cache, *keys: Key) -> None:
    for key in keys:
        cache.loaded(key, cache.begin(key), key)


class TreeOfKeys(TestCase):
    def setUp(self) -> None:
        self.cache = tree()
        self.keys = [("!a", "@x", "D"), ("!a", "@x", "E"), ("!a", "@y", "D"), ("!b", "@x", "D")]
        fill(self.cache, *self.keys)

    def left(self) -> list[Key]:
        return [key for key in self.keys if key in self.cache.entries]

    def test_a_prefix_invalidates_entries_that_begin_with_it(self) -> None:
        self.cache.invalidate(("!a", "@x"))
        self.assertEqual(self.left(), self.keys[2:])
        self.cache.invalidate(("!a",))
        self.assertEqual(self.left(), self.keys[3:])

    def test_a_prefix_invalidates_no_other_entries(self) -> None:
        for part in (("@x",), ("!",), ("!a", "@"), ("!b", "@y")):
            self.cache.invalidate(part)
        self.assertEqual(self.left(), self.keys)

    def test_longer_keys_are_cut_to_the_arguments(self) -> None:
        self.cache.invalidate(self.keys[0])
        self.cache.invalidate((*self.keys[1], "an argument of another version", ["or", "two"]))
        self.assertEqual(self.left(), self.keys[2:])

    def test_the_empty_key_invalidates_everything(self) -> None:
        for key in ((), None, (["!a"],), ("!a", {}), ("!a", ("@x",)), "!a"):
            with self.subTest(str(key)):
                fill(self.cache, *self.keys)
                self.cache.invalidate(key)  # type: ignore[arg-type]
                self.assertEqual((self.left(), self.cache.prefixes), ([], 0))

    def test_a_prefix_invalidates_loads_in_progress(self) -> None:
        loads = {key: self.cache.begin(key) for key in self.keys}
        self.cache.invalidate(("!a", "@x"))
        self.assertEqual(list(self.cache.loads), self.keys[2:])
        for key, load in loads.items():
            self.cache.loaded(key, load, "new")
        self.assertEqual(self.left(), self.keys[2:])

    def test_works_with_one_argument(self) -> None:
        cache = tree(arity=1)
        fill(cache, ("a",), ("b",))
        cache.invalidate(("a",))
        self.assertEqual(list(cache.entries), [("b",)])
        cache.invalidate(("b", "more"))
        self.assertEqual((list(cache.entries), cache.prefixes), ([], 0))

    def test_works_without_arguments(self) -> None:
        cache = tree(arity=0)
        for key in ((), ("more",), None):
            fill(cache, ())
            cache.invalidate(key)
            self.assertEqual(list(cache.entries), [])


class CacheRefusals(TestCase):
    def test_refuses_keys_that_no_row_can_name(self) -> None:
        cache = tree(arity=1)
        for bad in (b"bytes", ("tuple",), float("nan"), float("-inf"), object()):
            with self.assertRaises(UnusableKey):
                cache.begin((bad,))
        self.assertEqual(cache.loads, {})

    def test_refuses_bad_declarations(self) -> None:
        good: dict[str, Any] = {"name": "get", "arity": 1, "max_entries": 1}
        Declaration(**good)
        for wrong, reason in (
            ({"name": ""}, "name has to be a word"),
            ({"name": "two words"}, "name has to be a word"),
            ({"name": "line\nbreak"}, "name has to be a word"),
            ({"max_entries": 0}, "max_entries has to be 1 or more"),
            ({"max_bytes": 0, "size_of": len}, "max_bytes has to be 1 or more"),
            ({"max_bytes": 1}, "max_bytes and size_of need each other"),
            ({"size_of": len}, "max_bytes and size_of need each other"),
            ({"ttl_s": 0.0}, "ttl_s has to be above 0"),
            ({"immutable": True, "by_name": True}, "immutable is not invalidated"),
        ):
            with self.subTest(reason), self.assertRaisesRegex(BadCache, reason):
                Declaration(**{**good, **wrong})


class LoadsOfACache(TestCase):
    def test_a_value_that_grew_too_large_leaves_no_entry(self) -> None:
        declared = Declaration(name="get", arity=1, max_entries=9, max_bytes=9, size_of=len)
        cache = Cache(declared, lambda: 0.0, lambda: 0, lambda: None)
        for value in ("small", "far too large"):
            cache.loaded(("a",), cache.begin(("a",)), value)
        self.assertEqual(cache.counts()["size"], 0)

    def test_returns_the_result_of_a_load(self) -> None:
        good, bad = Load(0), Load(0)
        good.succeed(5)
        good.fail(RuntimeError())  # a second end changes nothing
        bad.fail(KeyError())
        self.assertEqual(good.result(), 5)
        self.assertRaises(KeyError, bad.result)
