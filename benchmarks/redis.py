"""Publishing a writer's facts to a real Redis, against txredisapi's ``publish`` of the same lines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.child import Child
from benchmarks.harness import Row, Scale, at_least, interleaved, ratio

_FACTS = 60_000


def published(kind: str, facts: int) -> float:
    """Rows that are published and acknowledged per CPU second of the publishing process."""
    with Child("redis_process", kind, facts) as process:
        result = process.receive()
    return float(result["rows"] / result["cpu"])


def run(scale: Scale) -> Iterator[Row]:
    """Measure rows of one busy stream; synrepl starts with facts, txredisapi with lines.

    "To Redis" ends with its answers. "On to a follower" ends in a handler that counts the rows,
    and includes the CPU time of both ends.
    """
    count = scale.of(_FACTS)
    sides = {kind: partial(published, kind, count) for kind in ("ours", "followed", "bare")}
    found = interleaved(sides, scale.repetitions)
    for name, kind in (("events rows to Redis", "ours"), ("on to a follower", "followed")):
        yield ratio(
            name,
            found[kind],
            found["bare"],
            of="bare txredisapi",
            measured_in="rows per CPU second",
            bound=at_least(0.6),
        )
