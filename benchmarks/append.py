"""Appending facts to PostgreSQL, compared with a bare psycopg2 loop that inserts the same values.

Measures facts per second of wall time, because most of the work is done by the database.
Everything is committed and synced.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least, ratio

_SINGLES, _IN_FLIGHT, _BATCHES = 1_000, 3_200, 20


def run(scale: Scale) -> Iterator[Row]:
    """Single facts, one at a time and 16 at a time; batches."""
    amounts = [scale.of(amount) for amount in (_SINGLES, _IN_FLIGHT, _BATCHES)]
    with postgres() as dsn, Child("append_process", dsn, *amounts, scale.repetitions) as child:
        found = child.receive()
    for name, sides in found.items():
        yield ratio(
            f"append, {name}",
            sides["ours"],
            sides["bare"],
            of="psycopg2 alone",
            measured_in="facts per second",
            bound=at_least(0.7),
        )
