"""Reading states from a room store: workload W2, a room of 10,000 members with 50,000 state events.

Measures wall time of whole requests, as the median over random events of the room's whole history. *Cold* is the
first request of a process that has read nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.room_state_process import FORK, PURE_FORK, STATE_BYTES, STORE_FORK

_MEMBERS, _EVENTS = 10_000, 50_000


def run(scale: Scale) -> Iterator[Row]:
    """Whole states, single entries, differences and auth chains."""
    members, events = scale.of(_MEMBERS), scale.of(_EVENTS)
    with postgres() as dsn, Child("room_state_process", dsn, members, events) as child:
        found = child.receive()
    detail = f"{events:,} state events, {members:,} members"
    bounds = {
        "whole state at an old event": 30.0,
        "200 entries at 100 events": 2.0,
        "whole state at an old event, cold": 600.0,
        "200 entries at 100 events, cold": 40.0,
        FORK: 50.0,
    }
    size = found.pop(STATE_BYTES)
    yield Row(f"rooms, {STATE_BYTES}", size[0], "bytes a state event", at_most(300.0))
    yield Row(
        f"rooms, {STORE_FORK}",
        found[STORE_FORK][0] / found[PURE_FORK][0],
        f"× {PURE_FORK}",
        at_most(1.5),
    )
    for name, (middle, lowest, highest) in found.items():
        bound = at_most(bounds[name]) if name in bounds else None
        yield Row(f"rooms, {name}", middle, "ms", bound, (lowest, highest), detail)
