"""Deduces the outcome of a transaction whose COMMIT was not answered.

A process that acquires a writer's lease again waits until nothing of the lost term can
still commit, and then reads the facts of that term. Facts that were not announced are in
doubt: each was written by one of the transactions that were in flight when the lease was
lost. What each of them would have written is known, but a row does not show which
transaction wrote it. A transaction commits as a whole, so counting facts with equal rows
gives a proof:

- A fact is missing that the transaction certainly writes: it was rolled back.
- There are more facts with the same rows than all the other transactions could have
  written: it was committed.
- Otherwise the other transactions may account for everything that was found, and the
  outcome is unknown. Facts without rows leave no trace and prove nothing.

If none of the transactions would have written some fact in doubt, the count is unreliable
(another process held the lease in between, or a row was read back changed). Then nothing
is proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from synrepl.streams.row import Row

#: The rows of facts, by stream name.
FactRows = Mapping[str, Sequence[Sequence[Row]]]

#: Number of facts with equal rows, by stream and :func:`rows_key`.
FactCounts = Counter[tuple[str, Hashable]]


class WriteOutcome(Enum):
    """What is proved about a write."""

    COMMITTED = "it was committed"
    ROLLED_BACK = "it was rolled back"
    UNKNOWN = "neither is proved"


def deduce_outcome(
    certain: FactCounts, possible: FactCounts, others: FactCounts, found: FactCounts
) -> WriteOutcome:
    """Deduce the outcome of a transaction from the facts that were found.

    :param certain: the facts that it writes if it commits
    :param possible: these, and facts that it writes unless they were written before
    :param others: the facts that all other transactions in flight could have written
    :param found: the facts in doubt
    """
    if found - (possible + others):
        return WriteOutcome.UNKNOWN
    if certain - found:
        return WriteOutcome.ROLLED_BACK
    if any(found[kind] > others[kind] for kind in possible):
        return WriteOutcome.COMMITTED
    return WriteOutcome.UNKNOWN


def count_facts(facts: FactRows) -> FactCounts:
    """Count facts that have rows."""
    return Counter(
        (stream, rows_key(rows)) for stream, many in facts.items() for rows in many if rows
    )


def rows_key(rows: Sequence[Row]) -> Hashable:
    """A hashable key, equal for equal rows, even if they hold lists and objects."""
    return tuple((type(row), _hashable(msgspec.structs.astuple(row))) for row in rows)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return value  # type: ignore[no-any-return]  # text, a number, a Boolean or None
