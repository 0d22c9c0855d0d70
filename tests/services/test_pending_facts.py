"""Pending facts, compared with a simple model."""

from __future__ import annotations

from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.services.announcing.stream_state import PendingFacts
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row


class Cell(Row, frozen=True):
    """A row with one number."""

    number: int


def fact(token: int, rows: int = 1) -> Fact:
    return Fact(token, "w", tuple(Cell(number) for number in range(rows)))


class QueueingPendingFacts(TestCase):
    def setUp(self) -> None:
        self.waiting = PendingFacts()

    def taken(self, position: int) -> list[int]:
        return [fact.token for fact in self.waiting.take(position)]

    def test_returns_one_run_of_facts_as_it_was_added(self) -> None:
        facts = [fact(1), fact(2)]
        self.waiting.add(facts)
        self.assertIs(self.waiting.take(2), facts)
        self.assertEqual(self.taken(9), [])

    def test_returns_facts_up_to_a_position_in_between(self) -> None:
        self.waiting.add([fact(1), fact(3)])
        self.assertEqual(self.taken(2), [1])
        self.assertEqual(self.taken(3), [3])
        self.assertEqual(self.waiting.rows, 0)

    def test_sorts_facts_that_are_added_late(self) -> None:
        self.waiting.add([fact(4), fact(6)])
        self.waiting.add([fact(1), fact(5)])
        self.assertEqual(self.taken(5), [1, 4, 5])
        self.assertEqual(self.taken(6), [6])

    def test_counts_rows_until_it_is_cleared(self) -> None:
        self.waiting.add([fact(1, 3)])
        self.waiting.add([fact(2, 4)])
        self.assertEqual((self.waiting.rows, self.waiting.last), (3, 2))
        self.assertEqual(self.waiting.rows, 7)
        self.waiting.clear()
        self.assertEqual((self.waiting.rows, self.waiting.last, self.taken(9)), (0, 0, []))

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(
            st.one_of(st.sets(st.integers(1, 60), max_size=6), st.integers(0, 70)), max_size=25
        )
    )
    def test_behaves_like_a_sorted_list(self, steps: list[set[int] | int]) -> None:
        waiting, model, used = PendingFacts(), set[int](), set[int]()
        for step in steps:
            if isinstance(step, set):
                tokens = step - used  # a token is one fact's
                used |= tokens
                model |= tokens
                waiting.add([fact(token) for token in sorted(tokens)])
            else:
                passed = sorted(token for token in model if token <= step)
                model -= set(passed)
                self.assertEqual([one.token for one in waiting.take(step)], passed)
        self.assertEqual(waiting.last, max(model, default=0))
        self.assertEqual(waiting.rows, len(model))
