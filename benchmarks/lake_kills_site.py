"""The processes of ``lake_kills``: a database that is written to, landings, and readers that know nothing of them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM
from time import monotonic, sleep
from typing import IO

import psycopg2
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from benchmarks.child import REPOSITORY
from benchmarks.lake_table import fill, make, scratch
from benchmarks.process_tree import descendants, runs
from synrepl.pipeline.lake.lake import Lake
from synrepl.storage.launch.postgres import PostgresServer

#: How many rows the lake has at first.
_FIRST_ROWS = 20_000

#: How many users there are. Every tenth row names one.
USERS = 500

#: Victims that only a landing on Spark has.
_OF_SPARK = ("JVM", "Python worker", "executor")

_EXECUTOR = "CoarseGrainedExecutorBackend"

_APPEND = """
    SELECT synrepl.append('events', jsonb_agg(jsonb_build_object('kind', 'ev', 'event_id',
        '$' || md5(random()::text), 'room_id', '!a:example.org', 'type', 'm.room.member', 'state_key',
        CASE WHEN random() < 0.1 THEN '@' || floor(random() * %s)::int || ':example.org' END,
        'rejected', false, 'outlier', false)), 'sql') FROM generate_series(1, %s)
"""

#: How long the lake may take to advance after a kill, in seconds; this includes starting Spark.
_PATIENCE_S = 600.0

#: How often the lake and its landings are looked at while something is waited for, in seconds.
_POLL_S = 0.2


class Lander:
    """A process of ``synrepl lake land --follow``, which is started again when it has ended.

    :param name: the name of its files
    :param folder: where its output goes
    :param options: where Spark runs; empty if it lands without Spark
    """

    def __init__(self, name: str, place: str, folder: Path, options: Sequence[str]) -> None:
        self.name = name
        self.uses_spark = bool(options)
        self.command = [sys.executable, "-m", "synrepl", "lake", "land", place, "--follow",
                         "--stream", "events", "--json", *options]  # fmt: skip
        self._reports, self._log = folder / f"{name}.json", folder / f"{name}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._reports_at_hit = -1

    def ensure(self, dsn: str) -> None:
        """Start it if it does not run."""
        if self._child is not None and self._child.poll() is None:
            return
        with self._reports.open("ab") as reports, self._log.open("ab") as log:
            environ = {**os.environ, "SYNREPL_DATABASE": dsn}
            self._child = subprocess.Popen(
                self.command, cwd=REPOSITORY, env=environ, stdout=reports, stderr=log
            )
        self.hit()

    def hit(self) -> None:
        """Note that it has to recover from something."""
        self._reports_at_hit = self.landed()

    @property
    def pid(self) -> int:
        """Its process ID."""
        assert self._child is not None
        return self._child.pid

    @property
    def has_recovered(self) -> bool:
        """True if it has landed something since it was hit."""
        assert self._child is not None
        return self._child.poll() is None and self.landed() > self._reports_at_hit

    def end(self) -> None:
        """End it as a supervisor does."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(SIGTERM)
            self._child.wait(_PATIENCE_S)

    def log(self) -> str:
        """Its name, and the end of what it has reported on stderr."""
        return f"{self.name}: " + self._log.read_text(errors="replace")[-2000:]

    def tracebacks(self) -> int:
        """How often it has ended with a traceback, which is no way to report anything."""
        return self._log.read_text(errors="replace").count("Traceback (most recent call last)")

    def landed(self) -> int:
        """How often it has landed; now and then nothing new."""
        return self._reports.read_bytes().count(b"\n")


class LakeSite:
    """A database, a thread that appends facts to it, landings of it, and perhaps a reader.

    :param place: the lake; None for a folder of its own
    :param landers: for each, where Spark runs
    :ivar landers: the landings
    """

    def __init__(
        self, place: str | None, landers: Sequence[Sequence[str]], dice: random.Random
    ) -> None:
        self._kept = ExitStack()
        self.folder = self._kept.enter_context(scratch())
        self.folder.chmod(0o755)
        self._server = PostgresServer(self.folder / "postgres")
        self.place = place or str(self.folder / "lake")
        self.landers = [Lander(f"lander{number}", self.place, self.folder, options)
                         for number, options in enumerate(landers)]  # fmt: skip
        self._dice = dice
        self.erased: set[str] = set()

    def __enter__(self) -> LakeSite:
        with ExitStack() as stack:
            stack.push(self._kept)
            self.dsn = self._server.start()
            stack.callback(self._server.stop)
            make(self.dsn)
            fill(self.dsn, 1, _FIRST_ROWS)
            stack.callback(self.end_landings)
            over = threading.Event()
            writer = threading.Thread(target=self._write, args=(over,))
            writer.start()
            stack.callback(writer.join)
            stack.callback(over.set)
            self.wait_beyond(0)
            self._kept = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def wait_all_land(self, patience_s: float = _PATIENCE_S) -> None:
        """Wait until each landing has landed something from now on. One that hangs is not noticed before: any other will do.

        :param patience_s: how long all of them may take, in seconds
        :raises TimeoutError: one has not, with the logs
        """
        give_up = monotonic() + patience_s
        for lander in self.landers:
            lander.hit()
        for lander in self.landers:
            while not lander.has_recovered:
                self._check_patience(give_up, f"{lander.name} lands nothing")

    def end_landings(self) -> None:
        """End the landings."""
        for lander in self.landers:
            lander.end()

    def problems(self) -> list[str]:
        """What landings have reported that they must not."""
        found = sum(lander.tracebacks() for lander in self.landers)
        return [f"landings: {found} tracebacks"] if found else []

    def landings(self) -> Counter[str]:
        """The number of landings so far, with Spark and without."""
        counts: Counter[str] = Counter()
        for lander in self.landers:
            name = "landings on Spark" if lander.uses_spark else "landings without Spark"
            counts[name] += lander.landed()
        return counts

    def lake(self) -> Lake:
        """The lake."""
        return Lake(self.place)

    def position(self) -> int:
        """The linear position of the lake; 0 if nothing is landed yet."""
        try:
            return self.lake().table("events").position.linear
        except Exception:  # nothing there yet
            return 0

    def start_reader(self) -> LakeReader:
        """Start a reader, which ends with the site."""
        seed = self._dice.randrange(10**6)
        return self._kept.enter_context(LakeReader(self.place, self.folder / "reader", seed))

    def kill(self, victim: str) -> int | None:
        """Kill a victim, once the landing that it is a part of has recovered from earlier kills.

        :returns: the lake's position before; None if there is no such process now
        """
        lander = self._dice.choice(self._recovered(on_spark=victim in _OF_SPARK))
        sleep(self._dice.uniform(0.0, 2.0))
        before = self.position()
        if victim == "PostgreSQL":
            assert self._server.child is not None
            self._server.child.end([(SIGKILL, 10.0)])
            self._server.restart()
            return before
        jvms = descendants(lander.pid, "java")
        executors = [each for each in descendants(os.getpid(), "java") if runs(each, _EXECUTOR)]
        pids = {"driver": [lander.pid], "JVM": jvms, "executor": executors}.get(victim)
        if pids is None:
            pids = [pid for jvm in executors or jvms for pid in descendants(jvm, "python")]
        if not pids:
            return None
        os.kill(self._dice.choice(pids), SIGKILL)
        lander.hit()
        return before

    def erase_somebody(self) -> None:
        """Ask for the erasure of one more user."""
        user = f"@{self._dice.randrange(USERS)}:example.org"
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT synrepl.erase(%s)", (user,))
        connection.close()
        self.erased.add(user)

    def wait_beyond(self, token: int) -> None:
        """Wait until the lake is beyond a token."""
        give_up = monotonic() + _PATIENCE_S
        while self.position() <= token:
            self._check_patience(give_up, f"the lake stays at {token}")

    def wait_erased(self) -> None:
        """Wait until the lake's newest version names nobody who was erased."""
        give_up = monotonic() + _PATIENCE_S
        while self.erased.intersection(self._users()):
            self._check_patience(give_up, "the lake names users who were erased")

    def _users(self) -> Sequence[str]:
        table = DeltaTable(f"{self.place}/streams/events")
        while True:
            try:
                return table.to_pyarrow_table(columns=["state_key"])["state_key"].to_pylist()
            except (DeltaError, OSError):
                before = table.version()
                table.update_incremental()
                if table.version() == before:
                    raise

    def _recovered(self, *, on_spark: bool) -> Sequence[Lander]:
        """Those of the landings that have recovered, at least one; those that have ended are started again.

        :param on_spark: only those that use Spark
        """
        give_up = monotonic() + _PATIENCE_S
        self._ensure()
        wanted = [lander for lander in self.landers if lander.uses_spark or not on_spark]
        while not (found := [lander for lander in wanted if lander.has_recovered]):
            self._check_patience(give_up, "no landing recovers")
        return found

    def _ensure(self) -> None:
        for lander in self.landers:
            lander.ensure(self.dsn)

    def _check_patience(self, give_up: float, what: str) -> None:
        if monotonic() > give_up:
            raise TimeoutError(f"{what}: {[lander.log() for lander in self.landers]}")
        self._ensure()
        sleep(_POLL_S)

    def _write(self, over: threading.Event) -> None:
        connection = None
        while not over.is_set():
            try:
                if connection is None:
                    connection = psycopg2.connect(self.dsn)
                    connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(_APPEND, (USERS, 5))
            except psycopg2.Error:  # killed: an uncommitted append leaves no fact
                connection = None
            over.wait(0.05)


class LakeReader:
    """A process that reads the lake over and over, see :mod:`.lake_reader_process`."""

    def __init__(self, place: str, output: Path, seed: int) -> None:
        self._output = output
        self._file: IO[bytes] = output.open("wb")
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.lake_reader_process", place, "events", str(seed)],
            cwd=REPOSITORY, stdout=self._file, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def __enter__(self) -> LakeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        self._file.close()

    def counts(self) -> Counter[str]:
        """The number of reads by how they ended."""
        return Counter(line.split(" ")[0] for line in self._lines())

    def problems(self) -> list[str]:
        """What it has found, and whether it has ended."""
        lines = self._lines()
        found = [
            f"reader: {line}" for line in lines if line.split(" ")[0] not in ("read", "erased")
        ]
        if self._child.poll() is not None:
            found.append("reader: it has ended")
        return found

    def _lines(self) -> list[str]:
        return self._output.read_text(errors="replace").splitlines()
