"""The importing process: ``DSN EVENTS EVERY``.

Fills a database as a Synapse does with one room of so many events, and imports it into another database,
everything verified. Reports every ``EVERY`` events: the events imported, the CPU seconds used by this process and
by the PostgreSQL server, the wall time, and the resident memory in MiB; then the number of findings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from resource import getpagesize
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn
from twisted.internet.defer import Deferred
from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.child import report
from benchmarks.server_cpu import ServerProcesses
from benchmarks.synapse_room import fill
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.garbage import collect_after_batches
from synrepl.services.rooms.importing.importer import ImportProgress, RoomImporter
from synrepl.services.rooms.importing.journal import ImportJournal
from synrepl.services.rooms.importing.persisting import PersistingSink
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.commit_listener import NullCommitListener
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS

_MIB = 1 << 20


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Fill, import, report."""
    dsn, events, every = arguments[0], int(arguments[1]), int(arguments[2])
    source = _database(dsn, f"synapse_{events}")
    target = _database(dsn, f"imported_{events}")
    fill(source, events)
    scheduler = TwistedScheduler(clock)
    database = PostgresDatabase(clock, target, "importer")
    await migrate(database, load())
    statements = PostgresSingles(clock, target, "importer")
    store = PostgresStore(
        scheduler,
        database,
        lambda: open_session(clock, target, "importer"),
        "importer",
        statements=statements,
    )
    await store.prepare(ROOM_STREAMS)
    writer = StreamWriter(
        scheduler, store, "importer", ROOM_STREAMS, NullCommitListener(), Logger()
    )
    await writer.start()
    foreign = PostgresDatabase(clock, source, "importer")
    importer = RoomImporter(
        ForeignStore(foreign),
        ImportJournal(database, "benchmark"),
        PersistingSink(RoomPersister(scheduler, writer), database),
    )
    collect_after_batches()
    server = ServerProcesses(dsn)
    began, used, seen = time.perf_counter(), time.process_time(), 0
    used_by_server = server.cpu()

    def on_progress(progress: ImportProgress) -> None:
        nonlocal seen
        if progress.done >= seen + every:
            seen = progress.done
            report(
                {
                    "events": progress.done,
                    "cpu": time.process_time() - used,
                    "server": server.cpu() - used_by_server,
                    "seconds": time.perf_counter() - began,
                    "memory": _resident() / _MIB,
                }
            )

    found = await importer.run(on_progress=on_progress)
    report({"findings": sum(found.counts.findings.values()), "signed": found.counts.signatures})
    await writer.stop()
    statements.close()
    await foreign.close()
    await database.close()
    scheduler.stop()


def _database(dsn: str, name: str) -> str:
    """Create a database; its DSN."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    connection.close()
    return str(make_dsn(dsn, dbname=name))


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


if __name__ == "__main__":
    react(lambda clock, *arguments: Deferred.fromCoroutine(measure(clock, arguments)), sys.argv[1:])
