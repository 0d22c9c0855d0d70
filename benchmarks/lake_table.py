"""A database with a long stream like ``events``, for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg2

from benchmarks.database import postgres
from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.migrations import Phase, apply_next, load
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.events import EVENTS

_FILL = """
    INSERT INTO synrepl.events (stream_id, row_no, writer, kind, event_id, room_id, type,
                                relates_to, membership, rejected, outlier)
    SELECT g, 0, CASE g %% 3 WHEN 0 THEN 'persister1' ELSE 'persister2' END, 'ev',
           '$' || md5(g::text) || 'AbCdEfGhIjK', '!' || md5((g %% 5000)::text) || ':example.org',
           'm.room.message', CASE WHEN g %% 10 = 0 THEN '$' || md5((g - 1)::text) || 'AbCdEfGhIjK' END,
           NULL, false, false
    FROM generate_series(%s, %s) AS g
"""


@contextmanager
def filled(rows: int) -> Iterator[str]:
    """A running server whose ``events`` has so many rows, one to a fact, from two writers; its DSN."""
    with postgres() as dsn:
        make(dsn)
        fill(dsn, 1, rows)
        yield dsn


def make(dsn: str) -> None:
    """The schema, and the table of ``events``."""
    schema = load()
    with BlockingDatabase(dsn, "benchmark") as database:
        while database.run("migrate", lambda txn: apply_next(txn, schema, Phase.POST)):
            pass
        database.run("make", lambda txn: ensure_tables(txn, [EVENTS]))


def fill(dsn: str, first: int, last: int) -> None:
    """Add facts, settled at once, and have the table's statistics made."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(_FILL, (first, last))
        cursor.execute("SELECT setval('synrepl._events_seq', %s)", (last,))
        cursor.execute("VACUUM ANALYZE synrepl.events")
    connection.close()
