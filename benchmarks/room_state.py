"""Reading states from a room store: workload W2, a room of 10,000 members with 50,000 state events.

Measures wall time of whole requests, as the median over random events of the room's whole history. *Cold* is the
first request of a process to a server with empty shared buffers, whose files are not in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.child import Child
from benchmarks.database import postgres_server
from benchmarks.harness import Row, Scale, at_most
from benchmarks.room_shapes.cold import random_read, restart_cold
from benchmarks.room_state_process import (
    AUTH_CHAIN,
    FORK,
    PAGE,
    PURE_FORK,
    STATE_BYTES,
    STORE_FORK,
    WHOLE,
)
from synrepl.storage.launch.postgres import PostgresServer

_MEMBERS, _EVENTS = 10_000, 50_000

#: Times that the server is restarted for a cold figure.
_COLD = 3

_BOUNDS = {WHOLE: 30.0, PAGE: 2.0, FORK: 50.0, AUTH_CHAIN: 20.0}

#: A cold request may take so many times the bound of a warm one.
_COLD_FACTOR = 20


def run(scale: Scale) -> Iterator[Row]:
    """Whole states, single entries, differences and auth chains."""
    members, events = scale.of(_MEMBERS), scale.of(_EVENTS)
    detail = f"{events:,} state events, {members:,} members"
    with postgres_server() as server:
        with Child("room_state_process", server.dsn, members, events) as child:
            reported = child.receive()
        found, asked = reported["found"], reported["asked"]
        size = found.pop(STATE_BYTES)
        yield Row(f"rooms, {STATE_BYTES}", size[0], "bytes a state event", at_most(300.0))
        yield Row(
            f"rooms, {STORE_FORK}",
            found[STORE_FORK][0] / found[PURE_FORK][0],
            f"× {PURE_FORK}",
            at_most(1.5),
        )
        for name, (middle, lowest, highest) in found.items():
            bound = at_most(_BOUNDS[name]) if name in _BOUNDS else None
            yield Row(f"rooms, {name}", middle, "ms", bound, (lowest, highest), detail)
        for name, ids in asked.items():
            yield _cold(server, name, ids, found[name][0])


def _cold(server: PostgresServer, name: str, ids: Sequence[str], warm: float) -> Row:
    times = []
    for _ in range(_COLD):
        restart_cold(server)
        with Child("room_state_cold_process", server.dsn, *ids) as child:
            times.append(child.receive()["ms"])
    return Row(
        f"rooms, {name}, cold",
        median(times),
        "ms",
        at_most(_BOUNDS[name] * _COLD_FACTOR),
        (min(times), max(times)),
        f"{median(times) / warm:.1f} × warm; a random read of 8 KiB takes {random_read(server) * 1e6:.0f} µs",
    )
