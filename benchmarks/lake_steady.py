"""``python -m benchmarks lake_steady``: the delay between appending facts at a steady rate and landing them.

A writer commits 2,000 rows a second in batches of 100, while ``synrepl lake land --follow`` runs
as a separate process. The lake's position is polled every 20 ms. The delay of a batch is the time
from its commit to the first poll that finds the position at or above it. The last minute is
compared with the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM
from statistics import quantiles
from time import monotonic, sleep

import psycopg2

from benchmarks.child import REPOSITORY
from benchmarks.database import postgres
from benchmarks.harness import Row, Scale, at_most
from benchmarks.lake_table import make, scratch
from synrepl.pipeline.lake.lake import Lake

_BATCH, _PER_S = 100, 2_000

_APPEND = """
    WITH taken AS (
        SELECT id, n FROM synrepl._writers w,
            synrepl.reserve(w.number, w.epoch, false, 'synrepl._events_seq', %s, 0)
            WITH ORDINALITY AS t (id, n)
        WHERE w.stream = 'events' AND w.writer = 'sql'
    ), new AS (
        INSERT INTO synrepl.events (stream_id, row_no, writer, kind, event_id, room_id, type, rejected, outlier)
        SELECT id, 0, 'sql', 'ev', '$' || md5(id::text), '!' || (id %% 5000) || ':example.org', 'm.room.message',
               false, false FROM taken
    )
    SELECT max(id) FROM taken
"""


def run(scale: Scale, minutes: float) -> Iterator[Row]:
    """Measure the delays, and whether they grow."""
    with postgres() as dsn, scratch() as folder:
        make(dsn)
        begun = monotonic()
        committed: list[tuple[float, int]] = []
        over = threading.Event()
        with _landing(folder / "lake", dsn):
            lake = _begun(folder / "lake")
            writer = threading.Thread(target=_write, args=(dsn, committed, over))
            writer.start()
            seen = _watch(lake, begun=monotonic(), seconds=minutes * 60)
            over.set()
            writer.join()
        took = monotonic() - begun
    delays = list(_delays(committed, seen))
    first = [delay for at, delay in delays if at < 60]
    last = [delay for at, delay in delays if at > minutes * 60 - 60]
    for name, some in ("p50", 50), ("p99", 99):
        figure = quantiles([delay for _, delay in delays], n=100)[some - 1]
        yield Row(
            f"delay, {name}", figure, "s", detail=f"{len(delays):,} batches, {took / 60:.0f} min"
        )
    grown = quantiles(last, n=100)[49] / quantiles(first, n=100)[49]
    yield Row("delay of the last minute, p50", grown, "× first minute", at_most(1.5))


@contextmanager
def _landing(lake: Path, dsn: str) -> Iterator[None]:
    child = subprocess.Popen(
        [sys.executable, "-m", "synrepl", "lake", "land", str(lake), "--follow", "--every", "0.1",
         "--master", "local[2]", "--stream", "events"],
        cwd=REPOSITORY, env={**os.environ, "SYNREPL_DATABASE": dsn}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        child.send_signal(SIGTERM)
        child.wait(60)


def _begun(path: Path) -> Lake:
    while not (path / "streams" / "events" / "_delta_log").is_dir():
        sleep(0.1)
    sleep(5)  # the first round after the start is slow, and is not measured
    return Lake(path)


def _write(dsn: str, committed: list[tuple[float, int]], over: threading.Event) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    begun = monotonic()
    with connection.cursor() as cursor:
        while not over.is_set():
            cursor.execute(_APPEND, (_BATCH,))
            row = cursor.fetchone()
            assert row is not None
            committed.append((monotonic(), int(row[0])))
            sleep(max(0.0, begun + len(committed) * _BATCH / _PER_S - monotonic()))
    connection.close()


def _watch(lake: Lake, begun: float, seconds: float) -> list[tuple[float, int]]:
    table = lake.table("events")
    seen = [(monotonic(), table.position.linear)]
    while monotonic() < begun + seconds:
        sleep(0.02)
        table.refresh()
        at = table.position.linear
        if at > seen[-1][1]:
            seen.append((monotonic(), at))
    return seen


def _delays(
    committed: list[tuple[float, int]], seen: list[tuple[float, int]]
) -> Iterator[tuple[float, float]]:
    """Commit time of each batch in seconds since the first, and its delay in seconds."""
    nth = 0
    for at, token in committed:
        while nth < len(seen) and seen[nth][1] < token:
            nth += 1
        if nth == len(seen):
            return
        yield at - committed[0][0], max(0.0, seen[nth][0] - at)
