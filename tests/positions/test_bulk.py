"""Bulk operations give the same result as single ones."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.positions.cursor import Cursor, CursorDecision
from synrepl.positions.linear import LinearTracker

SOME = settings(max_examples=150, deadline=None)

groups = st.lists(st.lists(st.integers(1, 25), max_size=8), max_size=8)


class LinearTrackerInBulk(TestCase):
    @SOME
    @given(groups, st.integers(0, 5))
    def test_settling_in_bulk_equals_settling_one_by_one(
        self, tokens: list[list[int]], start: int
    ) -> None:
        bulk, single = LinearTracker(start), LinearTracker(start)
        for group in tokens:
            bulk.all_settled(group)
            for token in group:
                single.settled(token)
            self.assertEqual((bulk.position, bulk.has_hole), (single.position, single.has_hole))

    def test_advances_to_a_hole_and_over_it(self) -> None:
        tracker = LinearTracker(0)
        tracker.all_settled([1, 2, 4])
        self.assertEqual((tracker.position, tracker.has_hole), (2, True))
        tracker.all_settled([3, 5])
        self.assertEqual((tracker.position, tracker.has_hole), (5, False))


class CursorInBulk(TestCase):
    @SOME
    @given(groups, st.booleans(), st.booleans())
    def test_applying_in_bulk_equals_applying_one_by_one(
        self, tokens: list[list[int]], unordered: bool, run: bool
    ) -> None:
        bulk, single = (Cursor(0, unordered=unordered) for _ in range(2))
        for cursor in (bulk, single):
            cursor.subscribed() if run else cursor.on_position(0, 0)
        for given_tokens in tokens:
            group = given_tokens if unordered else sorted(set(given_tokens))
            taken = [t for t in group if bulk.on_rdata(t) is CursorDecision.APPLY]
            if taken:
                bulk.all_applied(taken)
            for token in taken:
                single.applied(token)
            self.assertEqual(bulk.position, single.position)
        self.assertEqual(bulk.on_position(3, 30), single.on_position(3, 30))
        self.assertEqual(bulk.position, single.position)
