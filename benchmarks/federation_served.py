"""Answers about the state of a large room to other servers: how long they take, and how much memory.

The room has the members of workload W3 (see :mod:`benchmarks.room_workloads`). The process that answers has nothing of the room
in memory. *A batch* is as much as the events that are persisted together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.child import Child
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most

_MEMBERS = 85_000

_ANSWERS = ("send_join without members", "send_join", "state", "state_ids")


def run(scale: Scale) -> Iterator[Row]:
    """Wall time, and growth of the process."""
    members = scale.of(_MEMBERS)
    with postgres() as dsn:
        with Child("federation_served_process", dsn, "fill", members) as child:
            room = child.receive()
        found = {what: _served(dsn, what, room) for what in _ANSWERS}
    for what, figures in found.items():
        yield Row(
            f"{what}, {members:,} members",
            figures["seconds"],
            "s",
            detail=f"{figures['bytes'] / 1e6:.1f} MB, the first of them after {figures['first'] * 1e3:.0f} ms",
        )
        yield Row(
            f"memory of the same: {what}",
            figures["grown"] / room["batch"],
            "× a batch of events",
            at_most(2.0),
            detail=f"{figures['grown'] / 1e6:.1f} MB; a batch of 1,000 events is {room['batch'] / 1e6:.1f} MB in memory",
        )


def _served(dsn: str, what: str, room: dict[str, Any]) -> dict[str, Any]:
    """Have a process of its own answer."""
    arguments = "serve", room["last"], room["early"], what
    with Child("federation_served_process", dsn, *arguments) as child:
        return child.receive()
