"""Cache entries are sampled evenly, and described without their contents."""

from __future__ import annotations

from math import nan
from random import Random
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.caches.cache import Cache, Declaration
from synrepl.tools.audit.audit import sample_caches
from synrepl.tools.audit.sample import are_equal, describe, pick
from tests.tools.audit_fixtures import SECRET, AuditedProcess


class CacheSamples(TestCase):
    """The entries that are audited, and when."""

    @given(
        st.lists(st.integers(0, 20), max_size=6),
        st.integers(0, 50),
        st.integers(0, 1000),
    )
    @settings(max_examples=200)
    def test_pick_distinct_entries_up_to_a_number(
        self, sizes: list[int], count: int, seed: int
    ) -> None:
        caches = [self.cache_of_size(size) for size in sizes]
        picked = pick(caches, count, Random(seed))
        self.assertEqual(len(picked), min(count, sum(sizes)))
        self.assertEqual(len({(id(cache), key) for cache, key in picked}), len(picked))
        for cache, key in picked:
            self.assertIn(key, cache.entries)

    def test_pick_every_entry_with_equal_probability(self) -> None:
        caches, random = [self.cache_of_size(1), self.cache_of_size(9)], Random(7)
        found = [pick(caches, 1, random)[0] for _ in range(2000)]
        first = sum(place.cache is caches[0] for place in found)
        self.assertTrue(140 < first < 260, first)
        self.assertEqual(len({place.key for place in found}), 9)

    def cache_of_size(self, size: int) -> Cache:
        declared = Declaration(name="c", arity=1, max_entries=100)
        cache = Cache(declared, lambda: 0.0, lambda: 0, lambda: None)
        for key in range(size):
            cache.loaded((key,), cache.begin((key,)), key)
        return cache

    def test_are_audited_evenly_over_time(self) -> None:
        process = AuditedProcess()
        self.addCleanup(process.stop)
        process.name_of("a")
        process.scheduler.spawn(
            "sample", sample_caches(process.scheduler, process.auditor, 60.0, 20)
        )
        process.clock.pump([0.5, 0] * 121)
        self.assertEqual(process.loads, 1 + 20)

    def test_values_are_described_and_compared(self) -> None:
        class Odd:
            def __len__(self) -> int:
                raise ValueError(SECRET)

        self.assertEqual(
            [describe(value) for value in (None, 1, "abc", [1], Odd())],
            [
                "None",
                "int",
                "str of 3",
                "list of 1",
                "CacheSamples.test_values_are_described_and_compared.<locals>.Odd",
            ],
        )
        self.assertEqual(
            [
                are_equal(1, 1.0),
                are_equal([1], (1,)),
                are_equal(None, None),
                are_equal(None, 1),
                are_equal(Odd(), Odd()),
            ],
            [True, False, True, False, None],
        )
        self.assertIs(are_equal(nan, nan), True)
