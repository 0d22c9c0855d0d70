"""Persisting events of rooms, compared with judging them in memory and copying the same rows into bare tables.

CPU time is that of the process and of the PostgreSQL server together, so that no side can hide work in the
other. One event at a time is compared with appending a fact, in wall time, because each waits for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least, at_most, ratio

_EVENTS, _SINGLES = 10_000, 300

#: Bytes a state event of everything that holds states.
_STATE_BYTES = 300.0


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
        "state rows and indexes of a room of members",
        found["state bytes"],
        "bytes a state event",
        at_most(_STATE_BYTES),
    )
