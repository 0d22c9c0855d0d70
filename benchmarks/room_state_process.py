"""The process that fills a room store and reads from it: ``DSN MEMBERS EVENTS``."""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.child import limit_lifetime, report
from benchmarks.room_store_data import ChatRoom
from benchmarks.room_store_process import STATE_TABLES
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.rooms import (
    CompactStateMap,
    Event,
    ResolutionCache,
    Room,
    StateKey,
    lookup_state_after,
    run,
)
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.store import RoomStore
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.streams.rows import RowCodec

#: Events that are persisted together.
BATCH = 1_000

#: Measurements of each kind, and those that warm up.
TIMES, WARM = 30, 10

#: Branches of the fork at the end of the room.
WIDTH = 8

#: What is read warm, and by another process cold.
WHOLE = "whole state at an old event"
PAGE = "200 entries at 100 events"

#: What is reported of resolving the fork, and of sizes.
FORK = "resolution of a fork of width 8"
STORE_FORK = "resolution of the fork, the room remembered"
PURE_FORK = "resolution of the fork in memory"
STATE_BYTES = "rows and indexes that hold states"
AUTH_CHAIN = "auth chain of an event"

CREATE: StateKey = ("m.room.create", "")
LEVELS: StateKey = ("m.room.power_levels", "")

ROOM_ID = "!benchmark:a.example"


async def fill(
    clock: Any,
    dsn: str,
    database: PostgresDatabase,
    events: Iterable[Event],
    room_id: str = ROOM_ID,
) -> list[str]:
    """Persist a room; returns the IDs of its events."""
    scheduler, log = TwistedScheduler(clock), Logger()
    statements = PostgresSingles(clock, dsn, "master")
    store = PostgresStore(
        scheduler,
        database,
        lambda: open_session(clock, dsn, "master"),
        "this",
        notify=False,
        statements=statements,
    )
    await store.prepare(list(ROOM_STREAMS))
    codecs = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}
    announcer = Announcer(scheduler, store, ROOM_STREAMS, Publisher(scheduler, codecs), log)
    writer = StreamWriter(scheduler, store, "master", ROOM_STREAMS, announcer, log)
    await writer.start()
    await announcer.start()
    persister = RoomPersister(scheduler, writer)
    ids: list[str] = []
    batch: list[IncomingEvent] = []
    for event in events:
        batch.append(IncomingEvent(event))
        ids.append(event.event_id)
        if len(batch) == BATCH:
            await persister.persist(room_id, "10", batch)
            batch = []
    if batch:
        await persister.persist(room_id, "10", batch)
    await announcer.stop()
    await writer.stop()
    statements.close()
    scheduler.stop()
    return ids


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of wall time."""
    before = perf_counter()
    await work()
    return (perf_counter() - before) * 1e3


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Fill the room, and read from it."""
    dsn, members, count = arguments[0], int(arguments[1]), int(arguments[2])
    database = PostgresDatabase(clock, dsn, "master")
    await migrate(database, load())
    started = perf_counter()
    chat = ChatRoom(members, 0.0)
    events = list(chat.events(count))
    ids = await fill(clock, dsn, database, events)
    filled = perf_counter() - started
    size = await database.run("size", state_bytes)
    await database.run("statistics", lambda txn: txn.execute("ANALYZE"))
    rng = random.Random(5)
    found: dict[str, tuple[float, float, float]] = {}

    def old() -> str:
        return ids[rng.randrange(members, len(ids))]

    async def several(name: str, times: int, work: Callable[[], Awaitable[object]]) -> None:
        samples = [await timed(work) for _ in range(times)]
        kept = samples[WARM:] if times > WARM else samples
        found[name] = median(kept), min(kept), max(kept)

    keys = [CREATE, LEVELS]
    store = RoomStore(database)
    asked = {PAGE: rng.sample(ids, 100), WHOLE: [old()]}
    await several(WHOLE, TIMES + WARM, lambda: store.state_ids_at(old()))
    await several(PAGE, TIMES + WARM, lambda: entries(store, rng, ids, keys))
    await several("current state", TIMES + WARM, lambda: store.current_state_ids(ROOM_ID))
    await several(
        "difference of two old states", TIMES + WARM, lambda: store.state_difference(old(), old())
    )
    await several(AUTH_CHAIN, TIMES + WARM, lambda: store.auth_chain([old()]))
    member: StateKey = ("m.room.member", "@user7:a.example")
    await several(
        "explanation of an entry", TIMES + WARM, lambda: store.explain_state(old(), member)
    )

    found[STATE_BYTES] = (size / count,) * 3
    events += chat.fork(WIDTH, 6)
    await fill(clock, dsn, database, events[count:])
    await _resolutions(database, events, found)
    found["persisting an event of the room"] = (filled / len(ids) * 1e3,) * 3
    await database.close()
    report({"asked": asked, "found": found})


async def _resolutions(
    database: PostgresDatabase,
    events: Sequence[Event],
    found: dict[str, tuple[float, float, float]],
) -> None:
    """Resolve the states after the room's forward extremities: on the store, and in memory."""
    room = Room(events[0].version)
    for event in events:
        room.receive(event)
    ends = sorted(room.forward_extremities)
    samples: dict[str, list[float]] = {FORK: [], STORE_FORK: [], PURE_FORK: []}

    def work(txn: Transaction) -> None:
        began = perf_counter()
        version, view = read_view(txn, require_room(txn, ROOM_ID))
        run(lookup_state_after(version, ends, ResolutionCache[StoredState]()), view)
        between = perf_counter()
        run(lookup_state_after(version, ends, ResolutionCache[StoredState]()), view)
        again = perf_counter()
        run(lookup_state_after(version, ends, ResolutionCache[CompactStateMap]()), room)
        ended = perf_counter()
        samples[FORK].append((between - began) * 1e3)
        samples[STORE_FORK].append((again - between) * 1e3)
        samples[PURE_FORK].append((ended - again) * 1e3)

    for _ in range(TIMES):
        await database.run("resolve", work, read_only=True)
    for name, kept in samples.items():
        found[name] = median(kept), min(kept), max(kept)


def state_bytes(txn: Transaction) -> int:
    """Bytes of what holds states, with indexes."""
    names = [f"synrepl.{table}" for table in STATE_TABLES]
    txn.execute(
        "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name",
        (names,),
    )
    return int(txn.fetchone()[0])


async def entries(
    store: RoomStore, rng: random.Random, ids: Sequence[str], keys: Sequence[StateKey]
) -> object:
    return await store.entries_at(rng.sample(ids, 100), keys)


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock, *arguments: Deferred.fromCoroutine(measure(clock, arguments)), sys.argv[1:])
