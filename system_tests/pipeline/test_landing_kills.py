"""Landing with killed processes: whichever dies, each row is in the lake once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.spark_tasks import TaskFailed
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.reading.chunk_reader import ReadingAway
from synrepl.storage.launch.postgres import PostgresServer
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.landing_child import die_once, wait_amid
from system_tests.pipeline.spark_fixture import PATIENCE_S, REPOSITORY, ChildResult, shared_session
from tests.driver.embedded_server import existing_data_dir
from tests.storage.postgres import prepare


class KillCase(LandingCase):
    """A database with rows in three streams, and landings in child processes."""

    def fill(self, first: int, last: int) -> None:
        """Append facts by two writers to some streams."""
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'sql', 'x' || n, n FROM generate_series(%s, %s) n",
            first, last,
        )  # fmt: skip
        self.sql("SELECT setval('synrepl._notes_seq', %s)", last)
        for stream in ("everything", "backfill"):
            self.sql(
                f"INSERT INTO synrepl.{stream} SELECT (r).* FROM (SELECT jsonb_populate_record("
                f"NULL::synrepl.{stream}, to_jsonb(t) || %s) AS r FROM (SELECT"
                f" {'-n' if stream == 'backfill' else 'n'} AS stream_id, n %% 3 AS row_no,"
                " 'sql' AS writer FROM generate_series(%s, %s) n) t) rows",
                _CELLS[stream], first, last,
            )  # fmt: skip
            sign = -1 if stream == "backfill" else 1
            self.sql(f"SELECT setval('synrepl._{stream}_seq', %s)", sign * last)

    def child(self, point: str) -> ChildResult:
        """Land in a child process, which has ended with all its children on return."""
        scratch = Path(self.mktemp()).absolute()  # killed processes leave it behind
        scratch.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-m", "system_tests.pipeline.landing_child",
             self.dsn, str(self.lake.path), point],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(scratch)},
            start_new_session=True,
        )  # fmt: skip
        try:
            output, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            end_session(process.pid)
            process.wait()
        return ChildResult(process.returncode, output, errors)

    def assert_up_to_position(self) -> None:
        """Check that the lake has exactly the rows up to its positions."""
        for stream in self.lake.streams:
            at = self.lake.table(stream).position.linear
            self.assertEqual(self.in_lake(stream), self.in_table(stream, f"abs(stream_id) <= {at}"))


_CELLS = {
    "everything": '{"text": "t", "whole": 1, "flag": true, "real": 0.5, "doc": {}, "list": ["a"]}',
    "backfill": '{"event_id": "$e", "room_id": "!r", "type": "t"}',
}


def end_session(leader: int) -> None:
    """Kill all processes of a child's session: the JVM and its workers."""
    found = True
    while found:
        found = False
        for each in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = each.read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    os.kill(int(each.parent.name), signal.SIGKILL)
                    found = True


class KilledDrivers(KillCase):
    """Kills of the driver."""

    def test_a_driver_killed_at_any_step_neither_loses_nor_duplicates_rows(self) -> None:
        last = 0
        for point in ("task", "files", "commit 2"):
            self.fill(last + 1, last + 300)
            last += 300
            ended = self.child(point)
            self.assertEqual(ended.status, -signal.SIGKILL, ended.errors[-2000:])
            self.assert_up_to_position()
        # One table exists, and files that no table refers to.
        (table,) = map(self.lake.table, self.lake.streams)
        self.assertEqual(table.position.linear, last)
        there = [*(self.lake.path / "streams").glob("*/*.parquet")]
        self.assertEqual(len({path.parent for path in there}), 3)
        self.assertGreater(len(there), len(table.files))
        with self.lake.write_lock():  # dead processes hold no locks
            self.land()
        self.assert_landed()
        self.assert_no_leftovers()
        self.assert_landed()

    def test_a_driver_killed_while_it_commits_to_several_tables_leaves_each_whole(self) -> None:
        self.fill(1, 300)
        ended = self.child("commits")
        self.assertEqual(ended.status, -signal.SIGKILL, ended.errors[-2000:])
        self.assert_up_to_position()
        ends = [self.lake.table(stream).position.linear for stream in self.lake.streams]
        self.assertIn(300, ends)
        self.land()
        self.assert_landed()
        self.assert_no_leftovers()


class KilledWorkers(KillCase):
    """Kills of the processes that run tasks."""

    def test_a_killed_worker_fails_the_landing_without_retries(self) -> None:
        self.fill(1, 300)
        flag = Path(self.mktemp()).absolute()
        error = self.assertRaises(TaskFailed, self.land, partial(die_once, flag), task_rows=100)
        self.assertIn("a task of Spark was lost", str(error))
        self.assertNotIn("\n", str(error))
        self.assert_up_to_position()
        self.land()
        self.assert_landed()
        self.assert_no_leftovers()

    def test_a_cluster_retries_after_a_killed_worker_or_executor(self) -> None:
        self.fill(1, 300)
        lakes = {"worker": self.lake, "executor": self.new_lake()}
        flags = {what: Path(self.mktemp()).absolute() for what in lakes}
        kills = {
            what: [str(lake.path.absolute()), str(flags[what])] for what, lake in lakes.items()
        }
        ended = self.child(f"cluster {json.dumps(kills)}")
        self.assertEqual(ended.status, 0, ended.errors[-2000:])
        self.assertEqual(ended.output, 2 * "backfill 300\neverything 300\nnotes 300\n")
        for what, self.lake in lakes.items():
            self.assertTrue(flags[what].exists(), what)
            self.assert_landed()
            before = self.count_files()
            self.assert_no_leftovers()
            # The file of the worker that died.
            self.assertGreater(before, self.count_files(), what)

    def count_files(self) -> int:
        """The files in all tables' folders, including those that no table refers to."""
        tables = [self.lake.table(stream).path for stream in self.lake.streams]
        return sum(len(list(path.glob("*.parquet"))) for path in tables)


class KilledServers(KillCase):
    """Kills of the database."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.server = PostgresServer(existing_data_dir(), fsync=False)
        self.server.start()
        self.addCleanup(self.server.stop)
        self.dsn = self.server.dsn
        self.sql("DROP SCHEMA IF EXISTS synrepl CASCADE")
        await prepare(self.dsn)
        self.spark = shared_session()
        self.source = self.opened(SynreplDatabase(BlockingDatabase(self.dsn, "tests")))
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)

    def test_a_database_killed_during_a_read_commits_nothing(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'sql', repeat('x', 1000), n"
            " FROM generate_series(1, 20000) n"
        )
        self.sql("SELECT setval('synrepl._notes_seq', 20000)")
        pipes = [Path(self.mktemp()).absolute() for _ in range(2)]
        for pipe in pipes:
            os.mkfifo(pipe)

        def crash() -> None:
            pipes[0].open().close()
            assert self.server.child is not None
            self.server.child.end([(signal.SIGKILL, 30.0)])
            pipes[1].open("w").close()

        crashing = Thread(target=crash, daemon=True)
        crashing.start()
        error = self.assertRaises(ReadingAway, self.land, partial(wait_amid, *pipes))
        self.assertIn("stream 'notes'", str(error))
        crashing.join()
        self.server.restart()
        self.assert_up_to_position()
        self.land()
        self.assert_landed()
        self.assertEqual(len(self.in_lake("notes")), 20_000)
        self.assert_no_leftovers()
