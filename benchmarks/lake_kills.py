"""``python -m benchmarks lake_kills --kills 200 [--cluster]``: a landing that is killed repeatedly.

Facts are appended the whole time. ``synrepl lake land --follow`` runs as a separate process. At
random moments it, its JVM, one of its Python workers, or PostgreSQL is killed (SIGKILL), and
restarted if it does not recover by itself. After each kill the lake has to advance beyond its
position, and is compared with the table, range by range. The figure is the total number of
differences.

With ``--cluster`` the lake is in an object store, and tasks run on a standalone cluster of two workers, whose
executors are killed, too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from signal import SIGKILL, SIGTERM
from tempfile import mkdtemp
from time import monotonic, sleep
from typing import NamedTuple

import psycopg2

from benchmarks.child import REPOSITORY
from benchmarks.harness import Row, at_most
from benchmarks.lake_table import fill, make, scratch
from benchmarks.process_tree import descendants, runs
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database
from synrepl.storage.launch.postgres import PostgresServer
from system_tests.pipeline.object_store import credentials, shared_store
from system_tests.pipeline.spark_fixture import EXECUTORS
from system_tests.pipeline.spark_servers import standalone_cluster

#: What is killed, with its relative frequency.
VICTIMS = {"driver": 4, "JVM": 2, "Python worker": 3, "PostgreSQL": 1}
_ON_CLUSTER = {**VICTIMS, "executor": 3}

_EXECUTOR = "CoarseGrainedExecutorBackend"

_APPEND = """
    SELECT synrepl.append('events', jsonb_agg(jsonb_build_object('kind', 'ev', 'event_id',
        '$' || md5(random()::text), 'room_id', '!a:example.org', 'type', 'm.room.message',
        'rejected', false, 'outlier', false)), 'sql') FROM generate_series(1, %s)
"""

#: How long the lake may take to advance after a kill, in seconds; this includes starting Spark.
_PATIENCE_S = 180.0


def run(kills: int, seed: int | None, *, on_cluster: bool = False) -> Iterator[Row]:
    """Kill and compare repeatedly."""
    seed = random.randrange(10**8) if seed is None else seed
    print(f"  seed {seed}", flush=True)
    victims = _ON_CLUSTER if on_cluster else VICTIMS
    with ExitStack() as stack:
        landing = stack.enter_context(_cluster()) if on_cluster else _Landing()
        site = stack.enter_context(_LakeSite(landing))
        spark = stack.enter_context(open_session(SessionOptions(master="local[1]")))
        dice = random.Random(seed)
        done: Counter[str] = Counter()
        problems: list[str] = []
        for nth in range(kills):
            victim = dice.choices([*victims], [*victims.values()])[0]
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


class _Landing(NamedTuple):
    """How the landing is run.

    :ivar lake: the lake's URL; None for a folder
    :ivar options: where Spark runs
    """

    lake: str | None = None
    options: Sequence[str] = ("--master", "local[2]")


@contextmanager
def _cluster() -> Iterator[_Landing]:
    """An object store and a cluster, whose processes know how to reach it."""
    store = shared_store()
    os.environ.update(credentials(store.port))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with scratch() as folder, standalone_cluster(folder, workers=2, cores=1) as master:
        settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", **EXECUTORS}
        conf = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
        yield _Landing(store.empty_place(), ("--master", master, "--driver-memory", "512m", *conf))


class _LakeSite:
    """The database, the landing, and a thread that appends facts."""

    def __init__(self, landing: _Landing) -> None:
        self._landing = landing
        self._folder = Path(mkdtemp(prefix="synrepl-benchmark-"))
        self._folder.chmod(0o755)
        self._server = PostgresServer(self._folder / "postgres")
        self._place = landing.lake or str(self._folder / "lake")
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
        return Lake(self._place)

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
        jvms = descendants(driver, "java")
        executors = [each for each in descendants(os.getpid(), "java") if runs(each, _EXECUTOR)]
        pids = {"driver": [driver], "JVM": jvms, "executor": executors}.get(victim)
        if pids is None:
            pids = [pid for jvm in executors or jvms for pid in descendants(jvm, "python")]
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
                [sys.executable, "-m", "synrepl", "lake", "land", self._place, "--follow",
                 "--every", "0.1", "--stream", "events", *self._landing.options],
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
