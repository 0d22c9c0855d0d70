"""``python -m benchmarks lake_kills --kills 200``: a landing that is killed repeatedly.

Facts are appended the whole time. ``synrepl lake land --follow`` runs as a separate process. At
random moments it, its JVM, one of its Python workers, or PostgreSQL is killed (SIGKILL), and
restarted if it does not recover by itself. After each kill the lake has to advance beyond its
position, and is compared with the table, range by range. The figure is the total number of
differences.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from signal import SIGKILL, SIGTERM
from tempfile import mkdtemp
from time import monotonic, sleep

import psycopg2

from benchmarks.child import REPOSITORY
from benchmarks.harness import Row, at_most
from benchmarks.lake_table import fill, make
from benchmarks.process_tree import descendants
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.storage.launch.postgres import PostgresServer

#: What is killed, with its relative frequency.
VICTIMS = {"driver": 4, "JVM": 2, "Python worker": 3, "PostgreSQL": 1}

_APPEND = """
    SELECT synrepl.append('events', jsonb_agg(jsonb_build_object('kind', 'ev', 'event_id',
        '$' || md5(random()::text), 'room_id', '!a:example.org', 'type', 'm.room.message',
        'rejected', false, 'outlier', false)), 'sql') FROM generate_series(1, %s)
"""

#: How long the lake may take to advance after a kill, in seconds; this includes starting Spark.
_PATIENCE_S = 180.0


def run(kills: int, seed: int | None) -> Iterator[Row]:
    """Kill and compare repeatedly."""
    seed = random.randrange(10**8) if seed is None else seed
    print(f"  seed {seed}", flush=True)
    with _LakeSite() as site, open_session(SessionOptions(master="local[1]")) as spark:
        dice = random.Random(seed)
        done: Counter[str] = Counter()
        problems: list[str] = []
        for nth in range(kills):
            victim = dice.choices([*VICTIMS], [*VICTIMS.values()])[0]
            sleep(dice.uniform(0.0, 4.0))
            before = site.position()
            if site.kill(victim):
                done[victim] += 1
            site.wait_beyond(before)
            source = open_source_database(site.dsn, "benchmark")
            report = check(spark, site.lake(), source, site.dsn)
            source.close()
            problems += report.problems
            if nth % 10 == 9:
                rows = sum(each.lake_rows for each in report.streams)
                print(f"  {nth + 1} kills, {rows:,} rows, {len(problems)} problems", flush=True)
        rows = sum(each.lake_rows for each in report.streams)
    detail = ", ".join(f"{count} × {name}" for name, count in sorted(done.items()))
    for problem in problems[:20]:
        print("  " + problem)
    yield Row("differences after kills", len(problems), "", at_most(0),
              detail=f"{detail}; {rows:,} rows; seed {seed}")  # fmt: skip


class _LakeSite:
    """The database, the landing, and a thread that appends facts."""

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="synrepl-benchmark-"))
        self._folder.chmod(0o755)
        self._server = PostgresServer(self._folder / "postgres")
        self._over = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _LakeSite:
        self.dsn = self._server.start()
        make(self.dsn)
        fill(self.dsn, 1, 100_000)
        self._writer = threading.Thread(target=self._write)
        self._writer.start()
        self._land()
        self.wait_beyond(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._writer.join()
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(SIGTERM)
            self._child.wait(60)
        self._server.stop()
        rmtree(self._folder, ignore_errors=True)

    def lake(self) -> Lake:
        """The lake."""
        return Lake(self._folder / "lake")

    def position(self) -> int:
        """The linear position of the lake; 0 if nothing is landed yet."""
        try:
            return self.lake().table("events").position.linear
        except Exception:  # nothing there yet
            return 0

    def kill(self, victim: str) -> bool:
        """Kill a victim; False if it is not running at the moment."""
        if victim == "PostgreSQL":
            assert self._server.child is not None
            self._server.child.end([(SIGKILL, 10.0)])
            self._server.restart()
            return True
        assert self._child is not None
        driver = self._child.pid
        pids = {"driver": [driver], "JVM": descendants(driver, "java")}.get(victim)
        if pids is None:
            pids = [
                pid for jvm in descendants(driver, "java") for pid in descendants(jvm, "python")
            ]
        for pid in pids[-1:]:
            os.kill(pid, SIGKILL)
        return bool(pids)

    def wait_beyond(self, token: int) -> None:
        """Wait until the lake is beyond a token; restart the landing if it has ended."""
        give_up = monotonic() + _PATIENCE_S
        while self.position() <= token:
            if monotonic() > give_up:
                raise TimeoutError(f"the lake stays at {token}: {self._log()}")
            assert self._child is not None
            if self._child.poll() is not None:
                self._land()
            sleep(0.1)

    def _land(self) -> None:
        with open(self._folder / "log", "ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "synrepl", "lake", "land", str(self._folder / "lake"),
                 "--follow", "--every", "0.1", "--master", "local[2]", "--stream", "events"],
                cwd=REPOSITORY, env={**os.environ, "SYNREPL_DATABASE": self.dsn},
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip

    def _log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def _write(self) -> None:
        connection = None
        while not self._over.is_set():
            try:
                if connection is None:
                    connection = psycopg2.connect(self.dsn)
                    connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(_APPEND, (5,))
            except psycopg2.Error:  # killed: an uncommitted append leaves no fact
                connection = None
            sleep(0.01)
