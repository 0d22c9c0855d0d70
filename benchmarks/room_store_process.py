"""The persisting process: ``DSN EVENTS SINGLES REPETITIONS``; see :mod:`benchmarks.room_store`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import perf_counter, process_time
from typing import Any

import psycopg2
from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import event_facts
from benchmarks.room_store_data import ChatRoom
from benchmarks.server_cpu import ServerProcesses
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.short_transactions import PostgresShortTransactions
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.garbage import collect_after_batches
from synrepl.rooms import Event, Room
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS

BATCH = 1_000

#: Single events, and then as many facts, between two looks at the clock.
TURN = 10

#: Tables whose rows a batch writes; those of streams are tables of the schema, too.
WRITTEN = (
    "_room_events",
    "_room_event_json",
    "_room_keys",
    "_state_groups",
    "_state_line",
    "_state_group_lines",
    "_current_state",
    "_memberships",
    "_branch_memberships",
    "events",
    "caches",
)
STATE_TABLES = (
    "_state_groups",
    "_state_line",
    "_state_lines",
    "_state_group_lines",
    "_current_state",
)
EMPTIED = (
    *WRITTEN,
    "_rooms",
    "_state_lines",
    "_room_heads",
    "_forward_extremities",
    "_backward_extremities",
    "_waiting_events",
    "_redactions",
)


class CopiedTables:
    """Bare copies of the tables, with their indexes, and the rows as COPY has them."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)
        self._cursor = self._connection.cursor()
        self._rows: dict[str, bytes] = {}
        for table in WRITTEN:
            self._cursor.execute(
                f'CREATE TABLE "bare_{table}" (LIKE synrepl."{table}" INCLUDING ALL)'
            )
        self._connection.commit()

    def read(self) -> None:
        """Take the rows that were persisted."""
        for table in WRITTEN:
            parts: list[bytes] = []

            class Sink:
                """Collects what COPY sends."""

                @staticmethod
                def write(data: bytes) -> int:
                    parts.append(data)  # noqa: B023
                    return len(data)

            self._cursor.copy_expert(f'COPY synrepl."{table}" TO STDOUT', Sink)
            self._rows[table] = b"".join(parts)
        self._connection.commit()

    def write(self, batches: int) -> None:
        """Copy them into the bare tables, in as many transactions as there were batches."""
        for part in range(batches):
            for table, rows in self._rows.items():
                lines = rows.splitlines(keepends=True)
                share = -(-len(lines) // batches)
                chosen = b"".join(lines[part * share : (part + 1) * share])
                if chosen:
                    self._cursor.copy_expert(f'COPY "bare_{table}" FROM STDIN', _Source(chosen))
            self._connection.commit()

    def empty(self) -> None:
        """Empty all tables."""
        bare = [f'"bare_{table}"' for table in WRITTEN]
        ours = [f'synrepl."{table}"' for table in EMPTIED]
        self._cursor.execute("ALTER TABLE synrepl.events DISABLE TRIGGER USER")
        self._cursor.execute("ALTER TABLE synrepl.caches DISABLE TRIGGER USER")
        self._cursor.execute(f"TRUNCATE {', '.join([*bare, *ours])}")
        self._connection.commit()

    def state_bytes(self) -> int:
        """Bytes of what holds states, with indexes."""
        names = [f"synrepl.{table}" for table in STATE_TABLES]
        self._cursor.execute(
            "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s) AS name", (names,)
        )
        (found,) = self._cursor.fetchone() or (0,)
        return int(found)


class _Source:
    """A file for COPY."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, size: int = 8192) -> bytes:
        found, self._data = bytes(self._data[:size]), self._data[size:]
        return found

    def readline(self, size: int = 8192) -> bytes:  # psycopg2 requires it
        raise NotImplementedError


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Measure everything."""
    dsn, count, singles, repetitions = arguments[0], *map(int, arguments[1:])
    collect_after_batches()  # as a daemon does
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
        short=PostgresShortTransactions(clock, dsn, "master", database.was_committed),
    )
    await store.prepare(list(ROOM_STREAMS))
    codecs = {stream.name: RowCodec(stream) for stream in ROOM_STREAMS}
    announcer = Announcer(scheduler, store, list(ROOM_STREAMS), Publisher(scheduler, codecs), log)
    writer = StreamWriter(scheduler, store, "master", ROOM_STREAMS, announcer, log)
    await writer.start()
    await announcer.start()
    tables, server = CopiedTables(dsn), ServerProcesses(dsn)
    found: dict[str, Any] = {}
    for name, messages in (("a chat", 0.8), ("members only", 0.0)):
        events = list(ChatRoom(count // 5, messages).events(count))
        sides = found[name] = {"ours": [], "bare": []}
        for nth in range(repetitions + 1):
            tables.empty()
            persister = RoomPersister(scheduler, writer)
            began = process_time() + server.cpu()
            for part in _parts(events):
                await persister.persist(
                    events[0].room_id, "10", [IncomingEvent(each) for each in part]
                )
            ours = process_time() + server.cpu() - began
            tables.read()
            if name == "members only":
                found["state bytes"] = tables.state_bytes() / count
            began = process_time() + server.cpu()
            room = Room(events[0].version)
            for event in events:
                room.receive(event)
            tables.write(-(-count // BATCH))
            bare = process_time() + server.cpu() - began
            if nth:
                sides["ours"].append(ours)
                sides["bare"].append(bare)
    found["one at a time"] = await _one_at_a_time(scheduler, writer, tables, singles, repetitions)
    report(found)
    scheduler.stop()


async def _one_at_a_time(
    scheduler: TwistedScheduler,
    writer: StreamWriter,
    tables: CopiedTables,
    singles: int,
    repetitions: int,
) -> dict[str, list[float]]:
    """Events and facts a second, in short turns, so that a slow moment of the disk meets both."""
    sides: dict[str, list[float]] = {"ours": [], "bare": []}
    rows = [row for rows in event_facts() for row in rows]
    events = list(ChatRoom(200, 0.8).events(singles + 200))
    for nth in range(repetitions + 1):
        tables.empty()
        persister = RoomPersister(scheduler, writer)
        warm = [IncomingEvent(each) for each in events[:200]]
        await persister.persist(events[0].room_id, "10", warm)
        ours = bare = 0.0
        for at in range(200, len(events), TURN):
            turn = events[at : at + TURN]
            began = perf_counter()
            for event in turn:
                await persister.persist(event.room_id, "10", [IncomingEvent(event)])
            between = perf_counter()
            for number in range(at, at + len(turn)):
                await writer.append(EVENTS, [(rows[number % len(rows)],)])
            ours += between - began
            bare += perf_counter() - between
        if nth:
            sides["ours"].append(singles / ours)
            sides["bare"].append(singles / bare)
    return sides


def _parts(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    for at in range(0, len(events), BATCH):
        yield events[at : at + BATCH]


if __name__ == "__main__":
    limit_lifetime()
    react(measure, [sys.argv[1:]])
