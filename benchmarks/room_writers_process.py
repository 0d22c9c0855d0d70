"""One of several persisting processes: ``DSN WRITER EVENTS``; see :mod:`benchmarks.room_store`.

For each line that it receives it makes another room and says so; at the next line it persists the room, and
reports the seconds that this took.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from twisted.internet.task import react
from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from benchmarks.child import limit_lifetime, report
from benchmarks.room_store_data import ChatRoom
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.garbage import collect_after_batches
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.streams.rows import RowCodec

_BATCH = 1_000


async def persist(clock: Any, arguments: Sequence[str]) -> None:
    """Persist rooms until the input ends."""
    dsn, name, count = arguments[0], arguments[1], int(arguments[2])
    collect_after_batches()  # as a daemon does
    scheduler, log = TwistedScheduler(clock), Logger()
    database = PostgresDatabase(clock, dsn, name)
    store = PostgresStore(
        scheduler, database, lambda: open_session(clock, dsn, name), "this", notify=False
    )
    codecs = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}
    announcer = Announcer(scheduler, store, list(ROOM_STREAMS), Publisher(scheduler, codecs), log)
    writer = StreamWriter(scheduler, store, name, ROOM_STREAMS, announcer, log)
    await writer.start()
    await announcer.start()
    nth = 0
    while await deferToThread(sys.stdin.readline):
        nth += 1
        room_id = f"!room{nth}of{name}:a.example"
        events = list(ChatRoom(count // 5, 0.8, room_id).events(count))
        persister = RoomPersister(scheduler, writer)
        report({"ready": nth})
        await deferToThread(sys.stdin.readline)
        began = perf_counter()
        for at in range(0, count, _BATCH):
            part = [IncomingEvent(each) for each in events[at : at + _BATCH]]
            await persister.persist(room_id, "10", part)
        report({"seconds": perf_counter() - began})
    scheduler.stop()


if __name__ == "__main__":
    limit_lifetime()
    react(persist, [sys.argv[1:]])
