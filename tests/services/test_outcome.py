"""Outcomes that are deduced for unanswered commits are true."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import TestCase

from hypothesis import given, settings
from hypothesis import strategies as st

from synrepl.services.writing.outcome import (
    FactCounts,
    FactRows,
    WriteOutcome,
    count_facts,
    deduce_outcome,
    rows_key,
)
from synrepl.streams.declared import declare
from synrepl.streams.definition import UNTAGGED

JOBS = declare("jobs", {"name": "text", "doc": "json?"})
Job = JOBS.kinds[UNTAGGED]

#: Transactions by the numbers of their facts; 0 is a fact without rows. What comes
#: second it writes only if it was not written before.
TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), max_size=3),
        st.lists(st.integers(0, 3), max_size=2),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def facts(numbers: Sequence[int]) -> FactRows:
    """A fact for each number."""
    return {"jobs": [[Job(f"job {n}", None)] if n else [] for n in numbers]}


def count(*numbers: int) -> FactCounts:
    """The kinds of these facts."""
    return count_facts(facts(numbers))


class DeducingOutcomes(TestCase):
    @settings(max_examples=500, deadline=None)
    @given(TRANSACTIONS)
    def test_proves_nothing_that_is_false(
        self, transactions: list[tuple[list[int], list[int], bool, bool]]
    ) -> None:
        found, possible = FactCounts(), [count(*sure, *maybe) for sure, maybe, _, _ in transactions]
        for sure, maybe, committed, fresh in transactions:
            if committed:
                found += count(*sure, *(maybe if fresh else ()))
        for n, (sure, _, committed, _) in enumerate(transactions):
            others = sum((each for m, each in enumerate(possible) if m != n), FactCounts())
            verdict = deduce_outcome(count(*sure), possible[n], others, found)
            self.assertNotEqual(
                verdict,
                WriteOutcome.ROLLED_BACK if committed else WriteOutcome.COMMITTED,
                (n, transactions),
            )

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=5))
    def test_facts_that_no_other_transaction_writes_prove_the_outcome(
        self, transactions: list[tuple[int, bool]]
    ) -> None:
        mine = [
            [10 * n + m for m in range(1, many + 1)] for n, (many, _) in enumerate(transactions)
        ]
        found = count(
            *(f for fs, (_, done) in zip(mine, transactions, strict=True) if done for f in fs)
        )
        for n, (_, committed) in enumerate(transactions):
            others = count(*(f for m, fs in enumerate(mine) if m != n for f in fs))
            verdict = deduce_outcome(count(*mine[n]), count(*mine[n]), others, found)
            self.assertIs(
                verdict, WriteOutcome.COMMITTED if committed else WriteOutcome.ROLLED_BACK
            )

    def test_the_number_of_equal_facts_proves_the_outcome(self) -> None:
        one, two = count(1), count(1, 1)
        self.assertIs(deduce_outcome(one, one, one, count()), WriteOutcome.ROLLED_BACK)
        self.assertIs(deduce_outcome(one, one, one, one), WriteOutcome.UNKNOWN)
        self.assertIs(deduce_outcome(one, one, one, two), WriteOutcome.COMMITTED)
        self.assertIs(deduce_outcome(two, two, one, one), WriteOutcome.ROLLED_BACK)

    def test_facts_without_rows_prove_nothing(self) -> None:
        self.assertIs(deduce_outcome(count(0), count(0), count(), count()), WriteOutcome.UNKNOWN)

    def test_a_missing_fact_with_a_key_proves_no_rollback(self) -> None:
        self.assertIs(deduce_outcome(count(), count(1), count(), count()), WriteOutcome.UNKNOWN)
        self.assertIs(deduce_outcome(count(), count(1), count(), count(1)), WriteOutcome.COMMITTED)

    def test_proves_nothing_if_a_fact_of_unknown_origin_is_found(self) -> None:
        self.assertIs(deduce_outcome(count(1), count(1), count(), count(2)), WriteOutcome.UNKNOWN)
        self.assertIs(
            deduce_outcome(count(1), count(1), count(), count(1, 1)), WriteOutcome.UNKNOWN
        )


class ComparingRows(TestCase):
    def test_compares_rows_that_hold_lists_and_objects(self) -> None:
        row = Job("a", {"x": [1, {"y": None}], "z": "é"})
        again = Job("a", {"z": "é", "x": [1, {"y": None}]})
        self.assertEqual(rows_key([row, row]), rows_key([again, again]))
        self.assertEqual(len({rows_key([row]), rows_key([again]), rows_key([Job("a", [1])])}), 2)
        self.assertNotEqual(rows_key([row]), rows_key([row, row]))
