"""``python -m benchmarks lake_places``: landing in an object store against a folder, and many streams against one.

The object store is SeaweedFS on this machine, so it takes of the same two cores. In each measurement a
new lake is landed in one round, in one session with two threads. Of the many streams, each has a few
thousand rows; the one stream that they are compared with has as many as all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import psycopg2

from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_least, at_most, interleaved, ratio
from benchmarks.lake_table import fill, make, scratch
from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land.landing import Landing
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.storage.tables import ensure_tables
from synrepl.streams.declared import declare
from system_tests.pipeline.object_store import credentials, shared_store

_ROWS = 1_000_000
_STREAMS, _ROWS_OF_ALL = 64, 128_000
_REPETITIONS = 5

#: How many times as often what takes less than a second is measured.
_SHORT = 4

_WHOLE = "whole"
_SMALL = [f"small_{number:02}" for number in range(_STREAMS)]

_FILL = """
    INSERT INTO synrepl.{0} (stream_id, row_no, writer, name, n)
    SELECT g, 0, 'sql', md5(g::text), g FROM generate_series({1}, {2}) AS g;
    SELECT setval('synrepl._{0}_seq', {2});
    ANALYZE synrepl.{0}
"""


def run(scale: Scale) -> Iterator[Row]:
    """Measure both."""
    rows, repetitions = scale.of(_ROWS), min(_REPETITIONS, scale.repetitions)
    with postgres() as dsn, scratch() as folder, _store_variables():
        make(dsn)
        fill(dsn, 1, rows)
        _make_streams(dsn)
        with open_session(SessionOptions(master="local[2]")) as spark:
            places = (str(folder / f"lake-{number}") for number in count())
            times = partial(_seconds, spark, dsn)
            found = interleaved(
                {
                    "folder": lambda: rows / times(next(places), ["events"]),
                    "store": lambda: rows / times(shared_store().empty_place(), ["events"]),
                },
                repetitions,
            )
            found |= interleaved(
                {
                    "one": lambda: times(next(places), [_WHOLE]),
                    "many": lambda: times(next(places), _SMALL),
                },
                _SHORT * repetitions,
            )
            later = partial(_seconds_of_later_round, spark, dsn)
            found |= interleaved(
                {
                    "one later": lambda: later(next(places), [_WHOLE]),
                    "many later": lambda: later(next(places), _SMALL),
                },
                _SHORT * repetitions,
            )
    yield ratio("landing in an object store", found["store"], found["folder"],
                of="landing in a folder", measured_in="rows/s", bound=at_least(0.7))  # fmt: skip
    yield ratio(f"a round of {_STREAMS} streams", found["many"], found["one"],
                of="one stream of all rows", measured_in="s", bound=at_most(2.0))  # fmt: skip
    yield ratio(f"a later round of {_STREAMS} streams", found["many later"], found["one later"],
                of="one stream of all rows", measured_in="s", bound=at_most(2.0))  # fmt: skip


def _make_streams(dsn: str) -> None:
    columns = {"name": "text", "n": "bigint"}
    streams = [declare(name, columns) for name in (_WHOLE, *_SMALL)]
    with BlockingDatabase(dsn, "benchmark") as database:
        database.run("make", lambda txn: ensure_tables(txn, streams))
    _add_rows(dsn, [_WHOLE, *_SMALL])


def _add_rows(dsn: str, streams: list[str]) -> None:
    """Add the rows of a round to each stream."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for name in streams:
            share = _ROWS_OF_ALL if name == _WHOLE else _ROWS_OF_ALL // _STREAMS
            cursor.execute(f"SELECT coalesce(max(stream_id), 0) FROM synrepl.{name}")
            last = cursor.fetchone()[0]
            cursor.execute(_FILL.format(name, last + 1, last + share))
    connection.close()


def _seconds(spark: Any, dsn: str, place: str, streams: list[str]) -> float:
    """Wall time of a round that lands streams in a new lake."""
    os.sync()  # dirty pages of earlier measurements must not slow this one down
    source = open_source_database(dsn, "benchmark")
    try:
        begun = perf_counter()
        lake = Lake.open_or_create(place, source.server, source.is_lossy)
        for _ in Landing(spark, lake, source, dsn, round_rows=10**9).rounds(streams):
            pass
        return perf_counter() - begun
    finally:
        source.close()


def _seconds_of_later_round(spark: Any, dsn: str, place: str, streams: list[str]) -> float:
    """Wall time of a round that lands new rows in a lake that has the streams already."""
    source = open_source_database(dsn, "benchmark")
    try:
        lake = Lake.open_or_create(place, source.server, source.is_lossy)
        landing = Landing(spark, lake, source, dsn, round_rows=10**9)
        for _ in landing.rounds(streams):
            pass
        _add_rows(dsn, streams)
        os.sync()
        begun = perf_counter()
        for _ in landing.rounds(streams):
            pass
        return perf_counter() - begun
    finally:
        source.close()


@contextmanager
def _store_variables() -> Iterator[None]:
    """The credentials of the store in the environment, from which Python workers inherit them."""
    given = credentials(shared_store().port)
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
