"""Persisting events of rooms, compared with judging them in memory and copying the same rows into bare tables.

CPU time is that of the process and of the PostgreSQL server together, so that no side can hide work in the
other. One event at a time is compared with appending a fact, in wall time, because each waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least, at_most, ratio

_EVENTS, _SINGLES = 10_000, 300

#: Events of each room that two processes persist at the same time. Even a quick run needs several batches: one
#: process may start a tenth of a second after the other.
_WRITER_EVENTS = 15_000


def run(scale: Scale) -> Iterator[Row]:
    """Batches of a thousand events, of messages mostly and of members only; single events; bytes."""
    arguments = [scale.of(_EVENTS), scale.of(_SINGLES), scale.repetitions]
    with postgres() as dsn, Child("room_store_process", dsn, *arguments) as child:
        found = child.receive()
    for name in ("a chat", "members only"):
        sides = found[name]
        yield ratio(
            f"persist, {name}, batches of 1,000",
            sides["ours"],
            sides["bare"],
            of="judging in memory and COPY",
            measured_in="CPU seconds",
            bound=at_most(3.0),
        )
    sides = found["one at a time"]
    yield ratio(
        "persist, one event at a time",
        sides["ours"],
        sides["bare"],
        of="append, one at a time",
        measured_in="events per second",
        bound=at_least(0.4),
    )
    yield Row(
        "state rows and indexes of a small room of members",
        found["state bytes"],
        "bytes a state event",
    )
    yield from _writers(scale)


def _writers(scale: Scale) -> Iterator[Row]:
    """Two persisting processes, each with a room of its own, beside one."""
    count = scale.of(_WRITER_EVENTS)
    alone: list[float] = []
    both: list[float] = []
    with postgres() as dsn:
        with Child("room_state_process", dsn, 20, 100) as child:  # makes the tables
            child.receive()
        with (
            Child("room_writers_process", dsn, "one", count) as one,
            Child("room_writers_process", dsn, "two", count) as two,
        ):
            for nth in range(scale.repetitions + 1):
                first, second = _seconds([one]), _seconds([one, two])
                if nth:
                    alone.append(count / first)
                    both.append(2 * count / second)
    yield ratio(
        "persist with two processes",
        both,
        alone,
        of="one process",
        measured_in="events per second",
        bound=at_least(1.6),
    )


def _seconds(children: Sequence[Child]) -> float:
    """How long some processes take that start at the same time."""
    for child in children:
        child.resume()
    for child in children:
        child.receive()
    for child in children:
        child.resume()
    return max(float(child.receive()["seconds"]) for child in children)
