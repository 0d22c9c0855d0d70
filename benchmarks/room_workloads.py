"""States of the rooms that have been hard for servers, in a room store.

=== ================================================================================
W1  a small room: 100 state events
W3  a very large one: 85,000 members, 100,000 state events
W4  a bridge's netsplit: 1,400 members leave and come back, with 1,600 forward extremities
W5  branches of 8 that meet again and again: 4,900 members, 10,136 state events
=== ================================================================================

W2 is :mod:`benchmarks.room_state`. Every room ends in a fork, whose resolution on the store is measured as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, shown
from benchmarks.room_workloads_process import (
    BYTES,
    PAGE,
    PERSIST,
    RESOLUTION,
    WHOLE,
    WORKLOADS,
)


def run(scale: Scale) -> Iterator[Row]:
    """Bytes, whole states, look-ups and resolutions; each room in a server of its own."""
    for name in WORKLOADS:
        with postgres() as dsn, Child("room_workloads_process", dsn, name, scale.factor) as child:
            room = child.receive()
            found = child.receive()
        detail = (
            f"{room['events']:,} state events, {room['members']:,} entries,"
            f" {room['extremities']:,} forward extremities; persisted in"
            f" {shown(found[PERSIST][0])} ms an event"
        )
        yield Row(f"{name}: {BYTES}", found[BYTES][0], "bytes a state event", detail=detail)
        for what in WHOLE, PAGE, RESOLUTION:
            middle, lowest, highest = found[what]
            yield Row(f"{name}: {what}", middle, "ms", None, (lowest, highest))
