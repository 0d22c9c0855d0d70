"""``python -m benchmarks lake_kills lake_kills_cluster --kills 200``: landings that are killed repeatedly.

Facts are appended the whole time. ``synrepl lake land --follow`` runs as a separate process. At
random moments it, its JVM, one of its Python workers, or PostgreSQL is killed (SIGKILL), and
restarted if it does not recover by itself. After each kill the lake has to advance beyond its
position, and is compared with the table, range by range. The figure is the total number of
differences.

In ``lake_kills_cluster`` everything happens at once. The lake is in an object store; two processes
land into it, one on a standalone cluster of two workers, whose executors are killed, too, and one without Spark. A
reader of Delta tables never stops, files are compacted, and users are erased. A victim is one that
has landed something since it was hit. At the end, each of the two processes has to land something,
one more landing has to erase what is left to erase, and every file in the store is searched for
those users.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks.harness import Row, at_most
from benchmarks.lake_kills_site import LakeReader, LakeSite
from benchmarks.lake_reader_process import is_erased
from benchmarks.lake_table import scratch
from synrepl.core.errors import SynreplError
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.check.report import CheckReport
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.erase.erasures import Erasures
from synrepl.pipeline.lake.erase.mask import mask
from synrepl.pipeline.lake.maintenance import LakeMaintenance
from synrepl.pipeline.lake.storage import open_input
from synrepl.pipeline.lake.table_log import LakeConflict
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.source.database.open import open_source_database
from system_tests.pipeline.object_store import credentials, shared_store
from system_tests.pipeline.spark_fixture import EXECUTORS
from system_tests.pipeline.spark_servers import standalone_cluster

#: What is killed, with its relative frequency.
VICTIMS = {"driver": 3, "JVM": 2, "Python worker": 3, "PostgreSQL": 1}
_ON_CLUSTER = {**VICTIMS, "executor": 3}

#: How often somebody is erased, and files are compacted, per kill.
_ERASURES, _COMPACTIONS = 0.25, 0.2

#: How often a comparison is begun again because files were deleted by an erasure meanwhile.
_COMPARISONS = 10

#: Lands on Spark, however few rows there are.
_ON_SPARK = ("--spark-above", "0")


def run(kills: int, seed: int | None, *, on_cluster: bool = False) -> Iterator[Row]:
    """Kill and compare repeatedly."""
    seed = random.randrange(10**8) if seed is None else seed
    print(f"  seed {seed}", flush=True)
    dice = random.Random(seed)
    with ExitStack() as stack:
        place: str | None = None
        landers: list[Sequence[str]] = [(*_ON_SPARK, "--master", "local[2]")]
        if on_cluster:
            place, options = stack.enter_context(_cluster())
            # Both in the same way would leave the other one untried.
            landers = [(*_ON_SPARK, *options), ()]
        # Workers of the session have to know how to reach the lake.
        spark = stack.enter_context(open_session(SessionOptions(master="local[1]")))
        site = stack.enter_context(LakeSite(place, landers, dice))
        trial = _Trial(spark, site, site.start_reader() if on_cluster else None)
        victims = _ON_CLUSTER if on_cluster else VICTIMS
        while trial.killed.total() < kills:
            if not trial.kill(dice.choices([*victims], [*victims.values()])[0]):
                continue
            if on_cluster and dice.random() < _ERASURES:
                site.erase_somebody()
            if on_cluster and dice.random() < _COMPACTIONS:
                trial.compact()
            trial.compare()
        site.wait_all_land()
        if on_cluster:
            trial.settle()
        for problem in trial.problems[:20]:
            print("  " + problem)
        yield Row("differences after kills", len(trial.problems), "", at_most(0),
                  detail=f"{trial.summary()}; seed {seed}")  # fmt: skip


@contextmanager
def _cluster() -> Iterator[tuple[str, Sequence[str]]]:
    """An object store and a cluster, whose processes know how to reach it: a lake's place, and the options of a landing."""
    store = shared_store()
    os.environ.update(credentials(store.port))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with scratch() as folder, standalone_cluster(folder, workers=2, cores=1) as master:
        settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", **EXECUTORS}
        conf = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
        yield store.empty_place(), ("--master", master, "--driver-memory", "512m", *conf)


class _Trial:
    """Kills, compares and counts."""

    def __init__(self, spark: SparkSession, site: LakeSite, reader: LakeReader | None) -> None:
        self._spark = spark
        self._site = site
        self._reader = reader
        self._counts: Counter[str] = Counter()
        self._rows = 0
        self._found: list[str] = []
        self.killed: Counter[str] = Counter()

    @property
    def problems(self) -> list[str]:
        """All differences, what the reader found, and landings that did not end in words."""
        return [
            *self._found,
            *(self._reader.problems() if self._reader else []),
            *self._site.problems(),
        ]

    def kill(self, victim: str) -> bool:
        """Kill a victim, and wait until the lake advances; False if there is no such process now."""
        before = self._site.kill(victim)
        if before is None:
            return False
        self.killed[victim] += 1
        self._site.wait_beyond(before)
        return True

    def compact(self) -> None:
        """Join all small files while others land."""
        try:
            self._counts["files joined"] += compact(
                self._spark, self._site.lake(), "events", full=True
            ).joined
        except (SynreplError, OSError, PySparkException) as error:
            # Another process compacts or erases, too.
            if not (isinstance(error, LakeConflict) or self._is_erased(str(error))):
                self._problem(f"compaction: {error}")
            self._counts["compactions given up"] += 1

    def compare(self) -> None:
        """Compare the lake with the database, and report."""
        if self._site.erased:
            self._site.wait_erased()
        report = self._compared()
        if not report.equal:
            for problem in report.problems or [str(report.to_json())]:
                self._problem(problem)
        self._rows = sum(each.lake_rows for each in report.streams)
        if self.killed.total() % 10 == 0:
            print(f"  {self.summary()}: {len(self.problems)} problems", flush=True)

    def settle(self) -> None:
        """Land once more, compare, and search all files for who was erased."""
        self._site.end_landings()
        with self._maintained() as maintenance:
            maintenance.run(["events"])
        self.compare()
        table = self._site.lake().table("events")
        known = {file.name for file in table.files}
        for path in table.path.iterdir():
            if path.name.endswith(".parquet"):
                with open_input(path) as file:
                    cells = pq.read_table(file, columns=["state_key"])["state_key"].to_pylist()
                if left := self._site.erased.intersection(cells):
                    kind = "a file" if path.name in known else "an unused file"
                    self._problem(f"{kind} has {len(left)} who were erased: {path}")

    def summary(self) -> str:
        """What was done so far."""
        found = [f"{count} × {name}" for name, count in sorted(self.killed.items())]
        counts = {
            "rows": self._rows,
            "users erased": len(self._site.erased),
            **self._site.landings(),
            **self._counts,
        }
        if self._reader is not None:
            ended = self._reader.counts()
            counts |= {"reads": ended["read"], "reads that an erasure ended": ended["erased"]}
        found.append("; ".join(f"{count:,} {name}" for name, count in counts.items() if count))
        return ", ".join(found[:-1]) + "; " + found[-1]

    def _problem(self, text: str) -> None:
        print(f"  after {self.killed.total()} kills: {text}", flush=True)
        self._found.append(text)

    def _compared(self) -> CheckReport:
        """Compare; again if an erasure deletes files meanwhile."""
        masked = partial(mask, erasures=Erasures(frozenset(self._site.erased)))
        for again in reversed(range(_COMPARISONS)):
            lake = self._site.lake()
            try:
                with closing(open_source_database(self._site.dsn, "benchmark")) as source:
                    report = check(self._spark, lake, source, self._site.dsn, mask=masked)
                if report.equal or not (again and self._is_erased(str(report.to_json()))):
                    return report
            except (SynreplError, OSError, PySparkException) as error:
                if not (again and self._is_erased(str(error))):
                    raise
            self._counts["comparisons that an erasure ended"] += 1
        raise AssertionError("unreachable")

    def _is_erased(self, error: str) -> bool:
        return is_erased(error, self._site.lake().table("events").epoch)

    @contextmanager
    def _maintained(self) -> Iterator[LakeMaintenance]:
        with closing(open_source_database(self._site.dsn, "benchmark")) as source:
            yield LakeMaintenance(self._spark, self._site.lake(), source, self._site.dsn)
