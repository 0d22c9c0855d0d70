"""A database with a long stream, for benchmarks of the lake.

The rows of ``events`` are short: IDs and a type, some 170 bytes. Those of ``bodies`` also contain
the event as JSON, like a table of events, and have some 450 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import psycopg2

from benchmarks.database import postgres
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.storage.migrations import MigrationPhase, apply_next, load
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import UNTAGGED, Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.events import EVENTS


class BodyRow(Row, frozen=True):
    """An event with its JSON."""

    event_id: str
    room_id: str
    type: str
    json: str


BODIES = Stream("bodies", {UNTAGGED: BodyRow})

_FILL = """
    INSERT INTO synrepl.events (stream_id, row_no, writer, kind, event_id, room_id, type,
                                relates_to, membership, rejected, outlier)
    SELECT g, 0, CASE g %% 3 WHEN 0 THEN 'persister1' ELSE 'persister2' END, 'ev',
           '$' || md5(g::text) || 'AbCdEfGhIjK', '!' || md5((g %% 5000)::text) || ':example.org',
           'm.room.message', CASE WHEN g %% 10 = 0 THEN '$' || md5((g - 1)::text) || 'AbCdEfGhIjK' END,
           NULL, false, false
    FROM generate_series(%s, %s) AS g
"""


#: 319 bytes of JSON, which do not compress well.
_FILL_BODIES = """
    INSERT INTO synrepl.bodies (stream_id, row_no, writer, event_id, room_id, type, json)
    SELECT g, 0, CASE g %% 3 WHEN 0 THEN 'persister1' ELSE 'persister2' END,
           '$' || md5(g::text) || 'AbCdEfGhIjK', '!' || md5((g %% 5000)::text) || ':example.org',
           'm.room.message',
           '{"content":{"body":"' || md5(g::text) || md5((g + 1)::text) || md5((g + 2)::text)
           || md5((g + 3)::text) || md5((g + 4)::text) || '","msgtype":"m.text"},"depth":'
           || lpad(g::text, 10, '1') || ',"hashes":{"sha256":"' || md5((g + 5)::text)
           || '"},"origin_server_ts":1795168338395,"sender":"@someone:example.org"}'
    FROM generate_series(%s, %s) AS g
"""

_FILLS = {"events": _FILL, "bodies": _FILL_BODIES}


@contextmanager
def filled(rows: int, stream: str = "events") -> Iterator[str]:
    """The DSN of a server with a stream of ``rows`` rows, one per fact, by two writers."""
    with postgres() as dsn:
        make(dsn)
        fill(dsn, 1, rows, stream)
        yield dsn


def make(dsn: str) -> None:
    """Create the schema and the tables of the streams."""
    schema = load()
    with BlockingDatabase(dsn, "benchmark") as database:
        while database.run("migrate", lambda txn: apply_next(txn, schema, MigrationPhase.POST)):
            pass
        database.run("make", lambda txn: ensure_tables(txn, [EVENTS, BODIES]))


def fill(dsn: str, first: int, last: int, stream: str = "events") -> None:
    """Add facts, which are settled at once, and analyze the table."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(_FILLS[stream], (first, last))
        cursor.execute(f"SELECT setval('synrepl._{stream}_seq', %s)", (last,))
        cursor.execute(f"VACUUM ANALYZE synrepl.{stream}")
    connection.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, which is removed at the end."""
    found = Path(mkdtemp(prefix="synrepl-benchmark-"))
    try:
        yield found
    finally:
        rmtree(found, ignore_errors=True)


def rate(way: Callable[[Path], object], to: Path, rows: int) -> float:
    """Rows per second of wall time that ``way`` writes to a folder, which is removed before."""
    rmtree(to, ignore_errors=True)
    os.sync()  # dirty pages of earlier measurements must not slow this one down
    begun = perf_counter()
    way(to)
    return rows / (perf_counter() - begun)


def land(spark: Any, dsn: str, to: Path, stream: str = "events") -> None:
    """Land a whole stream in one round."""
    source = open_source_database(dsn, "benchmark")
    lake = Lake.open_or_create(to, source.server, source.is_lossy)
    for _ in Landing(spark, lake, source, dsn, round_rows=10**9).rounds([stream]):
        pass
    source.close()
