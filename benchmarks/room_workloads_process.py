"""The process that fills a room store with one workload and reads from it: ``DSN WORKLOAD FACTOR``."""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from benchmarks.child import limit_lifetime, report
from benchmarks.room_shapes.histories import Step, forked, linear, netsplit
from benchmarks.room_state_process import (
    CREATE,
    LEVELS,
    PAGE,
    ROOM_ID,
    WHOLE,
    WIDTH,
    fill,
    state_bytes,
    timed,
)
from benchmarks.room_store_data import ChatRoom
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.rooms import Event, ResolutionCache, lookup_state_after, run
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import load, migrate
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.numbers import require_room

#: What is reported besides what :mod:`benchmarks.room_state_process` measures.
BYTES = "rows and indexes that hold states"
RESOLUTION = "resolution of all forward extremities"
PERSIST = "persisting an event"

#: Measurements of each kind, and those that warm up.
TIMES, WARM = 10, 5

Workload = Callable[[float], Iterator[Event]]


def _linear(members: int, events: int) -> Workload:
    """Members who join, one after the other; then a fork."""

    def events_of(factor: float) -> Iterator[Event]:
        room = ChatRoom(0, 0.0)
        steps = linear(max(20, int(members * factor)), max(80, int(events * factor)))
        end = len(steps) - 1
        users = [step.key for step in steps[-6 * WIDTH :]]
        for branch in range(WIDTH):
            for nth in range(6):
                parent = len(steps) - 1 if nth else end
                steps.append(Step((parent,), users[6 * branch + nth]))
        return room.along(steps)

    return events_of


def _unmerged(steps: list[Step]) -> Iterator[Event]:
    """The events of steps up to the last time that there were most branches."""
    while len(steps[-1].parents) > 1:
        steps.pop()
    return ChatRoom(0, 0.0).along(steps)


WORKLOADS: Mapping[str, Workload] = {
    "W1, 100 state events": _linear(60, 100),
    "W3, 85,000 members": _linear(85_000, 100_000),
    "W4, a netsplit": lambda factor: _unmerged(netsplit(int(1_400 * factor), int(200 * factor), 1)),
    "W5, branches of 8": lambda factor: _unmerged(
        forked(int(4_900 * factor), int(10_136 * factor), 8)
    ),
}


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Fill the room, and read from it."""
    dsn, name, factor = arguments[0], arguments[1], float(arguments[2])
    database = PostgresDatabase(clock, dsn, "master")
    await migrate(database, load())
    events = WORKLOADS[name](factor)
    started = perf_counter()
    ids = await fill(clock, dsn, database, events)
    filled = perf_counter() - started
    size = await database.run("size", state_bytes)
    await database.run("statistics", lambda txn: txn.execute("ANALYZE"))
    store = RoomStore(database)
    rng = random.Random(5)
    found: dict[str, tuple[float, float, float]] = {
        BYTES: (size / len(ids),) * 3,
        PERSIST: (filled / len(ids) * 1e3,) * 3,
    }

    async def several(what: str, work: Callable[[], Awaitable[object]]) -> None:
        kept = [await timed(work) for _ in range(TIMES + WARM)][WARM:]
        found[what] = median(kept), min(kept), max(kept)

    half = len(ids) // 2
    some = min(100, half)
    await several(WHOLE, lambda: store.state_ids_at(ids[rng.randrange(half, len(ids))]))
    await several(PAGE, lambda: store.entries_at(rng.sample(ids, some), [CREATE, LEVELS]))
    resolved: list[int] = []

    def resolve(txn: Transaction) -> None:
        room = require_room(txn, ROOM_ID)
        version, view = read_view(txn, room)
        ends = sorted(forward_extremities(txn, room.room_no).values())
        run(lookup_state_after(version, ends, ResolutionCache[StoredState]()), view)
        resolved.append(len(ends))

    await several(RESOLUTION, lambda: database.run("resolve", resolve, read_only=True))
    entries = len(await store.current_state_ids(ROOM_ID))
    await database.close()
    report({"events": len(ids), "members": entries, "extremities": resolved[0]})
    report(found)


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock, *arguments: Deferred.fromCoroutine(measure(clock, arguments)), sys.argv[1:])
