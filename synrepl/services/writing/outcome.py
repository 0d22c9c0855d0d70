"""What became of a transaction whose commit was not answered.

Whoever takes a writer's name again waits until nothing of its predecessor can
still commit, and then reads the predecessor's facts. Those that nobody was
told of are in doubt: each was written by one of the transactions that were
under way when the name was lost. What each of these would have written is
known, but rows do not say which transaction they came with. So it is proved by
counting facts with equal rows, for a transaction commits as a whole:

- one is missing that it writes for certain: it was rolled back;
- there are more of a kind than all the others could have written: it was
  committed;
- otherwise the others may account for all that is there, and nobody can say.
  Facts without rows leave no trace and prove nothing.

A fact in doubt that none of them would have written spoils the count (the name
was somebody else's in between, or a row came back other than it was given):
then nothing is proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from synrepl.streams.row import Row

#: The rows of facts, by the name of the stream.
FactRows = Mapping[str, Sequence[Sequence[Row]]]

#: How many facts with the same rows, by stream and :func:`rows_key`.
FactCounts = Counter[tuple[str, Hashable]]


class WriteOutcome(Enum):
    """What is proved."""

    COMMITTED = "it was committed"
    ROLLED_BACK = "it was rolled back"
    UNKNOWN = "nobody can say"


def deduce_outcome(
    certain: FactCounts, possible: FactCounts, others: FactCounts, found: FactCounts
) -> WriteOutcome:
    """What became of a transaction, by what was found.

    :param certain: what it writes when it is committed
    :param possible: that, and what it writes unless it had been written before
    :param others: what all other transactions under way could have written
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
    """Count facts that leave a trace."""
    return Counter(
        (stream, rows_key(rows)) for stream, many in facts.items() for rows in many if rows
    )


def rows_key(rows: Sequence[Row]) -> Hashable:
    """Equal for equal rows, also for those that hold lists and objects."""
    return tuple((type(row), _hashable(msgspec.structs.astuple(row))) for row in rows)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return value  # type: ignore[no-any-return]  # text, a number, a truth value or None
