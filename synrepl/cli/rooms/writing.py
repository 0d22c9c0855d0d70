"""A process that persists rooms for as long as a command runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.configured_database import check_owned, configured_dsn, opened
from synrepl.core.errors import ConfigError
from synrepl.core.garbage import collect_after_batches
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.room_writers import check_room_writers
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.commit_listener import NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS


class NoRoomsConfigured(ConfigError):
    """the configuration has no 'rooms', so it keeps no rooms: add that section, as docs/rooms.md shows it"""


@dataclass(frozen=True, slots=True)
class RoomProcess:
    """What persists rooms.

    :ivar database: the database that they are kept in
    """

    reactor: Any
    scheduler: TwistedScheduler
    database: PostgresDatabase
    persister: RoomPersister


@asynccontextmanager
async def room_process(reactor: Any, config: Config, writer: str) -> AsyncIterator[RoomProcess]:
    """Become a writer of the streams of rooms, beside the processes that run.

    A room is locked while a batch of it is persisted, so it does not matter which process its events are
    assigned to. The master hears of each commit, and announces its facts.

    :param writer: the name of the writer; no other process may have it
    :raises NoRoomsConfigured: :raises RoomStreamMissing: :raises RoomWriterNeedsStream:
    :raises WriterTaken: another process has the name
    :raises WrongServer: :raises SchemaBehind: see :func:`.check_owned`
    """
    if config.rooms is None:
        raise NoRoomsConfigured()
    check_room_writers(config, catalogue(config))
    async with AsyncExitStack() as stack:
        dsn = await stack.enter_async_context(configured_dsn(reactor, config))
        database = await stack.enter_async_context(opened(reactor, dsn, writer, connections=2))
        await database.run("check", lambda txn: check_owned(txn, config), read_only=True)
        scheduler = TwistedScheduler(reactor)
        stack.callback(scheduler.stop)
        store = PostgresStore(
            scheduler, database, lambda: open_session(reactor, dsn, writer), writer
        )
        await store.prepare(ROOM_STREAMS)
        names = StreamWriter(scheduler, store, writer, ROOM_STREAMS, NullCommitListener(), Logger())
        await names.start()
        stack.push_async_callback(names.stop)
        persister = RoomPersister(scheduler, names, config.rooms.max_rooms, config.rooms.limits)
        collect_after_batches()
        yield RoomProcess(reactor, scheduler, database, persister)
