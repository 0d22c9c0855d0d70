"""Catching up on a long stream, compared with ``COPY … TO STDOUT`` of the same table.

Measures rows per second of wall time, one reader at a time: the legacy catch-up lane over TCP, pages
over HTTP, and pages from the database (read by the follower itself). Also measures the peak memory of
the master above its idle memory; a slow reader must not cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import psycopg2

from benchmarks.child import Child, ChildFailed
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most, ratio
from benchmarks.recorded import WRITER, event_facts
from benchmarks.running_master import RunningMaster
from synrepl.streams.columns import columns
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS

_ROWS = 1_000_000
_REPETITIONS = 3

#: The slow reader: bytes per second, and bytes after which it stops.
_SLOW, _SLOW_BYTES = 2_000_000, 8_000_000

#: Maximum memory of the master for one catch-up, in MiB.
_MEMORY = at_most(64)

_MIB = 2**20


class FilledDatabase(NamedTuple):
    """A database with a long stream in it."""

    dsn: str
    rows: int
    upto: int


def run(scale: Scale) -> Iterator[Row]:
    """The readers, and their memory."""
    with (
        _filled(scale.of(_ROWS)) as filled,
        TemporaryDirectory() as directory,
        RunningMaster(filled.dsn, Path(directory)) as master,
    ):
        yield from _readers(filled, master)


def _readers(filled: FilledDatabase, master: RunningMaster) -> Iterator[Row]:
    ways: dict[str, Callable[[], float]] = {
        "over TCP (legacy lane)": lambda: tcp(master.port, filled),
        "over HTTP (pages)": lambda: pages("http", master.http, filled),
        "out of the database (pages)": lambda: pages("database", filled.dsn, filled),
    }
    speeds: dict[str, list[float]] = {name: [] for name in ["COPY", *ways]}
    growth: dict[str, list[float]] = {name: [] for name in ways}
    idle = master.memory()
    for _ in range(_REPETITIONS):
        speeds["COPY"].append(copy_out(filled))
        for name, way in ways.items():
            master.memory()
            speeds[name].append(way())
            growth[name].append((master.peak() - idle) / _MIB)
    for name in ways:
        yield ratio(
            f"catch-up {name}",
            speeds[name],
            speeds["COPY"],
            of="COPY TO STDOUT",
            measured_in="rows per second",
            bound=None,
        )
    for name in list(ways)[:2]:
        yield _memory(f"master's memory, {name}", growth[name])
    master.memory()
    slow_reader(master.port)
    name = f"master's memory, slow reader ({_SLOW / 1e6:g} MB/s)"
    yield _memory(name, [(master.peak() - idle) / _MIB])


def _memory(name: str, found: list[float]) -> Row:
    return Row(name, max(found), "MiB above idle", _MEMORY, (min(found), max(found)))


def copy_out(filled: FilledDatabase) -> float:
    """Rows per second of COPY, the maximum for Postgres."""
    connection = psycopg2.connect(filled.dsn)
    with connection, connection.cursor() as cursor:
        began = perf_counter()
        cursor.copy_expert('COPY synrepl."events" TO STDOUT', _NullWriter())
        seconds = perf_counter() - began
    connection.close()
    return filled.rows / seconds


def tcp(port: int, filled: FilledDatabase) -> float:
    """Rows per second to a client that requests everything and only counts lines."""
    end = f"POSITION events {filled.upto}|"
    with Child(
        "counting_reader", port, 1, "NAME reader|PING 1|REPLICATE events 0|", "--end", end
    ) as reader:
        reader.receive()
        got = reader.receive()
    lines = got["lines"] - 3  # SERVER, PING, POSITION
    if lines != filled.rows:
        raise ChildFailed(f"{lines} of {filled.rows} rows came")
    return filled.rows / float(got["wall"])


def slow_reader(port: int) -> None:
    """Start a catch-up, read slowly, and disconnect in the middle."""
    limits = ("--rate", _SLOW, "--limit", _SLOW_BYTES)
    with Child(
        "counting_reader", port, 1, "NAME slow|PING 1|REPLICATE events 0|", *limits
    ) as reader:
        reader.receive()
        reader.receive()


def pages(kind: str, where: str, filled: FilledDatabase) -> float:
    """Rows per second to a follower that fetches pages."""
    with Child("pages_process", kind, where, filled.upto) as follower:
        got = follower.receive()
    if got["rows"] != filled.rows:
        raise ChildFailed(f"{got['rows']} of {filled.rows} rows came")
    return filled.rows / float(got["wall"])


@contextmanager
def _filled(rows: int) -> Iterator[FilledDatabase]:
    """A database with about ``rows`` rows of recorded events, repeated."""
    facts = event_facts()
    times = max(1, rows // sum(map(len, facts)))
    names = ", ".join(f'"{column.name}"' for column in columns(EVENTS))
    cells = RowCodec(EVENTS).cells
    with postgres() as dsn, TemporaryDirectory() as directory:
        with RunningMaster(dsn, Path(directory)):
            pass  # it makes the tables
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute('CREATE TEMP TABLE recorded (LIKE synrepl."events")')
            insert = f"INSERT INTO recorded VALUES (%s, %s, %s{', %s' * len(columns(EVENTS))})"
            for token, fact in enumerate(facts, 1):
                for number, row in enumerate(fact):
                    cursor.execute(insert, (token, number, WRITER, *cells(row)))
            cursor.execute(
                f'INSERT INTO synrepl."events" (stream_id, row_no, writer, {names})'
                f" SELECT stream_id + n * %s, row_no, writer, {names}"
                " FROM generate_series(0, %s) AS n, recorded ORDER BY 1, 2",
                (len(facts), times - 1),
            )
            upto = len(facts) * times
            cursor.execute("SELECT setval('synrepl.\"_events_seq\"', %s)", (upto,))
            cursor.execute("UPDATE synrepl._streams SET position = %s", (upto,))
            cursor.execute(
                "UPDATE synrepl._writers SET position = %s WHERE writer = %s", (upto, WRITER)
            )
        connection.autocommit = True
        connection.cursor().execute('VACUUM ANALYZE synrepl."events"')
        connection.close()
        yield FilledDatabase(dsn, times * sum(map(len, facts)), upto)


class _NullWriter:
    """Discards the output of COPY."""

    def write(self, data: bytes, /) -> None: ...
