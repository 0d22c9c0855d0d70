"""The appending process: ``DSN SINGLES IN_FLIGHT BATCHES REPETITIONS``.

Reports, for each way to append, the facts per second of both sides by repetition.
``bare`` is a psycopg2 loop that inserts the same values into a table of the same
shape, with IDs from a sequence, and commits as often.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Any

import psycopg2
from psycopg2.extras import execute_values
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import react

from benchmarks.assembled import build_master, master_config
from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import event_facts
from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import open_session
from synrepl.adapters.postgres.single import PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.migrations import load, migrate
from synrepl.storage.postgres.store import PostgresStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.columns import columns
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS

#: Facts of one batch, and appends at a time.
BATCH, FLIGHT = 1_000, 16

_NAMES = ", ".join(["stream_id", "row_no", "writer", *(f'"{c.name}"' for c in columns(EVENTS))])
_CELLS = "(nextval('bare_seq'), 0, %s" + ", %s" * len(columns(EVENTS)) + ")"


class Baseline:
    """The bare minimum: INSERT and COMMIT."""

    def __init__(self, dsn: str, rows: Sequence[Row]) -> None:
        self._connection = psycopg2.connect(dsn)
        self._cursor = self._connection.cursor()
        self._cursor.execute('CREATE TABLE bare (LIKE synrepl."events" INCLUDING ALL)')
        self._cursor.execute("CREATE SEQUENCE bare_seq")
        self._connection.commit()
        cells = RowCodec(EVENTS).cells
        self._values = cycle([("master", *cells(row)) for row in rows])

    def singles(self, count: int) -> None:
        """One row, one transaction."""
        insert = f"INSERT INTO bare ({_NAMES}) VALUES {_CELLS} RETURNING stream_id"
        for _ in range(count):
            self._cursor.execute(insert, next(self._values))
            self._cursor.fetchone()
            self._connection.commit()

    def batches(self, count: int) -> None:
        """Many rows by one statement, one transaction."""
        insert = f"INSERT INTO bare ({_NAMES}) VALUES %s RETURNING stream_id"
        for _ in range(count // BATCH):
            values = [next(self._values) for _ in range(BATCH)]
            execute_values(self._cursor, insert, values, _CELLS, page_size=BATCH, fetch=True)
            self._connection.commit()

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


class Product:
    """The product, from ``append`` to the answer: committed, settled and announced."""

    def __init__(self, writer: StreamWriter, rows: Sequence[Row]) -> None:
        self._writer = writer
        self._facts: Iterator[tuple[Row]] = cycle([(row,) for row in rows])

    async def singles(self, count: int) -> None:
        """One at a time."""
        for _ in range(count):
            await self._writer.append(EVENTS, [next(self._facts)])

    async def in_flight(self, count: int) -> None:
        """As from several requests at a time."""
        share = partial(self.singles, count // FLIGHT)
        await gatherResults([Deferred.fromCoroutine(share()) for _ in range(FLIGHT)])

    async def batches(self, count: int) -> None:
        """Many facts at a time."""
        for _ in range(count // BATCH):
            await self._writer.append(EVENTS, [next(self._facts) for _ in range(BATCH)])


async def measure(clock: Any, arguments: Sequence[str]) -> None:
    """Measure both sides alternately."""
    dsn, singles, in_flight, batches, repetitions = arguments[0], *map(int, arguments[1:])
    scheduler = TwistedScheduler(clock)
    database = PostgresDatabase(clock, dsn, "master")
    await migrate(database, load())
    statements = PostgresSingles(clock, dsn, "master")
    store = PostgresStore(  # as in a master
        scheduler,
        database,
        lambda: open_session(clock, dsn, "master"),
        "this",
        notify=False,
        statements=statements,
    )
    await store.prepare([EVENTS])
    config = master_config("example.org")
    master = build_master(scheduler, config, store, Catalogue([EVENTS]), [EVENTS])
    await master.take_name()
    await master.begin()
    rows = [row for rows in event_facts() for row in rows]
    bare, ours = Baseline(dsn, rows), Product(master.writer, rows)
    ways: dict[str, tuple[int, Callable[[int], Awaitable[None]], Callable[[int], None]]] = {
        "one at a time": (singles, ours.singles, bare.singles),
        f"{FLIGHT} in flight": (in_flight, ours.in_flight, bare.singles),
        f"batches of {BATCH:,}": (batches * BATCH, ours.batches, bare.batches),
    }
    found_by_way: dict[str, dict[str, list[float]]] = {}
    for name, (count, our_way, bare_way) in ways.items():
        found = found_by_way[name] = {"ours": [], "bare": []}
        for nth in range(repetitions + 1):
            began = perf_counter()
            await our_way(count)
            between = perf_counter()
            bare_way(count)
            ended = perf_counter()
            if nth:
                found["ours"].append(count / (between - began))
                found["bare"].append(count / (ended - between))
    report(found_by_way)
    bare.close()
    await master.stop()
    scheduler.stop()
    await master.writer.stop()
    statements.close()
    await database.close()


if __name__ == "__main__":
    limit_lifetime()
    react(lambda clock, *arguments: Deferred.fromCoroutine(measure(clock, arguments)), sys.argv[1:])
