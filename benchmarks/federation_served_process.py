"""The process that fills a room, or answers from it: ``DSN fill MEMBERS`` or ``DSN serve EVENT_ID EARLY_EVENT_ID ANSWER``."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from benchmarks.child import limit_lifetime, report
from benchmarks.room_shapes.histories import linear
from benchmarks.room_state_process import BATCH, ROOM_ID, fill
from benchmarks.room_store_data import ChatRoom
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.rooms import Event, parse_event, room_version
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import load, migrate
from synrepl.storage.rooms.tables.events import events_by_id, raw_json

#: Seconds that filling the room may take.
_LONGEST_FILL = 1_800


async def fill_room(clock: Any, database: PostgresDatabase, dsn: str, members: int) -> None:
    """Fill the room, and report the ID of its last event and the bytes of a batch."""
    await migrate(database, load())
    events = list(ChatRoom(0, 0.0).along(linear(members, members + 4)))
    ids = await fill(clock, dsn, database, events)
    await database.run("statistics", lambda txn: txn.execute("ANALYZE"))
    report({"last": ids[-1], "early": ids[BATCH // 2], "batch": in_memory(events[-BATCH:])})


def in_memory(events: Sequence[Event]) -> int:
    """The bytes of decoded events."""
    tracemalloc.start()
    kept = [parse_event(bytes(each.raw), room_version("10")) for each in events]
    for each in kept:
        assert each.content
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size


async def serve(database: PostgresDatabase, event_id: str, early_id: str, what: str) -> None:
    """Answer, and report the time and the memory of it."""

    def read(txn: Transaction) -> list[Event]:
        raws = raw_json(txn, events_by_id(txn, [event_id, early_id]).values())
        return [parse_event(raws[each], room_version("10")) for each in (early_id, event_id)]

    streams = StateStreams(database)
    kinds: dict[str, Callable[[Event], Awaitable[AsyncIterator[bytes]]]] = {
        "state_ids": lambda event: streams.state_ids(ROOM_ID, event.event_id),
        "state": lambda event: streams.state(ROOM_ID, event.event_id),
        "send_join": lambda event: streams.joined(
            event, ["a.example"], omit_members=False, head=b'"event":{}'
        ),
        "send_join without members": lambda event: streams.joined(
            event, ["a.example"], omit_members=True, head=b'"event":{}'
        ),
    }
    early, last = await database.run("some events", read, read_only=True)
    await consume(kinds[what], early)  # plans, and what a small answer takes
    before = resident("VmRSS")
    figures = await consume(kinds[what], last)
    report({**figures, "grown": resident("VmHWM") - before})


async def consume(
    begin: Callable[[Event], Awaitable[AsyncIterator[bytes]]], event: Event
) -> dict[str, float]:
    """Read an answer to its end."""
    started = perf_counter()
    first, size = 0.0, 0
    async for part in await begin(event):
        first = first or perf_counter() - started
        size += len(part)
    return {"seconds": perf_counter() - started, "first": first, "bytes": size}


def resident(field: str) -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Do what is asked."""
    dsn, what, *more = arguments
    database = PostgresDatabase(clock, dsn, "master")
    if what == "fill":
        await fill_room(clock, database, dsn, int(more[0]))
    else:
        await serve(database, *more)
    await database.close()


if __name__ == "__main__":
    limit_lifetime(_LONGEST_FILL)
    react(lambda clock: Deferred.fromCoroutine(measure(clock, sys.argv[1:])))
