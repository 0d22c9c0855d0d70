"""The purging process: ``DSN MEMBERS EVENTS``; see :mod:`benchmarks.room_purge`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.child import limit_lifetime, report
from benchmarks.room_store_data import ChatRoom
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.maintenance.findings import RoomProblem
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.streams.rows import RowCodec

_BATCH = 1_000

#: In seconds: before anything is purged, 50,000 events are persisted and verified.
_LONGEST_LIFE = 900


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Measure everything."""
    dsn, members, count = arguments[0], int(arguments[1]), int(arguments[2])
    scheduler, log = TwistedScheduler(clock), Logger()
    database = PostgresDatabase(clock, dsn, "master")
    await migrate(database, load())
    store = PostgresStore(
        scheduler,
        database,
        lambda: open_session(clock, dsn, "master"),
        "this",
        notify=False,
        statements=PostgresSingles(clock, dsn, "master"),
    )
    await store.prepare(list(ROOM_STREAMS))
    codecs = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}
    announcer = Announcer(scheduler, store, list(ROOM_STREAMS), Publisher(scheduler, codecs), log)
    writer = StreamWriter(scheduler, store, "master", ROOM_STREAMS, announcer, log)
    await writer.start()
    await announcer.start()
    events = list(ChatRoom(members, 0.0).events(count))
    persister = RoomPersister(scheduler, writer)
    for at in range(0, len(events), _BATCH):
        part = [IncomingEvent(each) for each in events[at : at + _BATCH]]
        await persister.persist(events[0].room_id, "10", part)
    found: dict[str, Any] = {}
    room_id = events[0].room_id
    await _verify(database, room_id, "before", found)
    began = perf_counter()
    done = await RoomMaintenance(database).purge(
        room_id, PurgePoint.of_topological(count // 2), index_check=False
    )
    found["seconds"] = perf_counter() - began
    found["rows"] = done.rows
    found["leftovers"] = sum(done.leftovers.values())
    found |= done.locks.to_json()
    await _verify(database, room_id, "after", found)
    report(found)
    scheduler.stop()


async def _verify(
    database: PostgresDatabase, room_id: str, when: str, found: dict[str, Any]
) -> None:
    began = perf_counter()
    findings = [
        each
        async for each in RoomVerification(database).findings(room_id)
        # The events have no content hashes.
        if each.problem is not RoomProblem.WRONG_CONTENT
    ]
    found[f"verify {when}"] = perf_counter() - began
    found[f"findings {when}"] = len(findings)


if __name__ == "__main__":
    limit_lifetime(_LONGEST_LIFE)
    react(measure, [sys.argv[1:]])
