"""Landings of few rows, which need no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
from deltalake import DeltaTable

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import DataFileDamaged, FolderNotShared
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.land import landing
from synrepl.pipeline.lake.land.landing import Vectors
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.on_demand import SessionOnDemand
from synrepl.pipeline.lake.spark_tasks import run_tasks
from synrepl.pipeline.lake.storage import remove_tree
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import LOG, commit_name
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from tests.storage.postgres import PostgresCase

ALICE = "@alice:example.org"

ROWS_HERE = 10


class SessionAskedFor(Exception):
    """A session was called for."""


class Killed(BaseException):
    """The process was killed."""


def no_session() -> NoReturn:
    raise SessionAskedFor


class SmallLakeCase(PostgresCase):
    """Maintenance of a lake with a session on demand that nobody should call for."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(self.source.close)
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, False)
        spark = SessionOnDemand(no_session, ROWS_HERE)
        self.maintenance = LakeMaintenance(spark, self.lake, self.source, self.dsn)

    def append(self, *texts: str) -> None:
        for text in texts:
            self.sql(
                "SELECT synrepl.append('notes', jsonb_build_array(jsonb_build_object('text', %s::text,"
                " 'n', 1)), 'sql')",
                text,
            )

    def run_once(self) -> MaintenanceReport:
        with self.lake.write_lock():
            return self.maintenance.run(["notes"])

    def texts(self) -> list[str | None]:
        table = self.lake.table("notes")
        files = sorted(table.files, key=lambda file: file.low)
        return [
            text
            for file in files
            for text in pq.read_table(table.path_of(file)).column("text").to_pylist()
        ]


class SmallLandings(SmallLakeCase):
    def test_few_rows_are_landed_without_spark(self) -> None:
        self.append("one", "two")
        self.assertEqual(self.run_once().rows, {"notes": 2})
        self.append("three")
        self.assertEqual(self.run_once().rows, {"notes": 1})
        self.assertEqual(self.texts(), ["one", "two", "three"])

    def test_cells_are_erased_without_spark(self) -> None:
        self.append("one", ALICE)
        self.run_once()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        report = self.run_once()
        self.assertEqual((report.erased.files, report.erased.rows), (1, 1))
        self.assertEqual(self.texts(), ["one", None])

    def test_small_files_are_compacted_without_spark(self) -> None:
        for text in "abcdefgh":
            self.append(text)
            self.run_once()
        self.assertEqual(len(self.texts()), 8)
        self.assertLess(len(self.lake.table("notes").files), 8)

    def damage(self) -> Path:
        """Damage the footer of the first file, and return its path."""
        table = self.lake.table("notes")
        path = table.path_of(table.files[0])
        assert isinstance(path, Path)
        path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
        return path

    def test_a_new_table_and_its_first_rows_are_one_commit(self) -> None:
        self.append("one")
        self.run_once()
        self.assertEqual(DeltaTable(self.lake.table("notes").path).version(), 0)
        self.assertEqual(self.texts(), ["one"])

    def test_a_folder_that_a_task_does_not_reach_is_named(self) -> None:
        def elsewhere(*arguments: Any) -> Any:
            (self.lake.path / "streams").rename(self.lake.path / "moved")
            return run_tasks(*arguments)

        self.append("one")
        self.patch(landing, "run_tasks", elsewhere)
        error = self.assertRaises(FolderNotShared, self.run_once)
        self.assertIn(str(self.lake.path / "streams/notes"), str(error))

    def test_a_damaged_file_is_named_by_a_compaction(self) -> None:
        for text in "ab":
            self.append(text)
            self.run_once()
        path = self.damage()
        spark = SessionOnDemand(no_session, ROWS_HERE)
        error = self.assertRaises(DataFileDamaged, compact, spark, self.lake, "notes", full=True)
        self.assertIn(str(path), str(error))

    def test_a_damaged_file_is_named_by_an_erasure(self) -> None:
        self.append(ALICE)
        self.run_once()
        path = self.damage()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        self.assertIn(str(path), str(self.assertRaises(DataFileDamaged, self.run_once)))

    def test_an_erasure_removes_what_an_interrupted_landing_left(self) -> None:
        def killed(*arguments: Any, **options: Any) -> NoReturn:
            raise Killed

        self.append(ALICE)
        real = StreamTable.append
        self.patch(StreamTable, "append", killed)
        self.assertRaises(Killed, self.run_once)
        self.patch(StreamTable, "append", real)
        (left,) = (self.lake.path / "streams").iterdir()
        self.assertEqual(len([*left.glob("*.parquet")]), 1)
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        with self.lake.write_lock():
            self.maintenance.run(["everything"])
        self.assertFalse(left.exists())

    def test_a_stream_is_landed_although_an_erasure_removed_its_new_folder(self) -> None:
        def failing(*arguments: Any, **options: Any) -> NoReturn:
            raise Killed

        self.append("one")
        real = StreamTable.append
        self.patch(StreamTable, "append", failing)
        self.assertRaises(Killed, self.run_once)
        self.patch(StreamTable, "append", real)
        remove_tree(self.lake.path / "streams" / "notes")
        self.run_once()
        self.assertEqual(self.texts(), ["one"])

    def test_an_erasure_is_durable_before_files_are_deleted(self) -> None:
        self.append("one", ALICE)
        self.run_once()
        self.sql("SELECT synrepl.erase(%s)", ALICE)
        durable, vacuum = self.durable_commits(), DeltaTable.vacuum
        versions: list[int] = []

        def removing(table: DeltaTable, *args: Any, **options: Any) -> list[str]:
            if "notes" in table.table_uri:
                versions.append(table.version())
                self.assertIn(commit_name(table.version()), durable)
            return vacuum(table, *args, **options)

        self.patch(DeltaTable, "vacuum", removing)
        self.run_once()
        self.assertEqual(len(versions), 1)

    def test_what_is_acknowledged_is_durable_although_another_process_committed_it(self) -> None:
        def killed(table: StreamTable) -> NoReturn:
            raise Killed

        self.append("one")
        real = StreamTable.make_durable
        self.patch(StreamTable, "make_durable", killed)
        self.assertRaises(Killed, self.run_once)
        self.patch(StreamTable, "make_durable", real)
        durable = self.durable_commits()
        acknowledged: list[Vectors] = []

        def acknowledge(upto: Vectors) -> None:
            acknowledged.append(upto)
            self.assertIn(commit_name(DeltaTable(self.lake.table("notes").path).version()), durable)
            self.assertIn(LOG, durable)

        spark = SessionOnDemand(no_session, ROWS_HERE)
        self.maintenance = LakeMaintenance(
            spark, self.lake, self.source, self.dsn, acknowledge=acknowledge
        )
        self.run_once()
        self.assertEqual([upto["notes"].linear for upto in acknowledged], [1])

    def durable_commits(self) -> list[str]:
        """The names of commits that are made durable from now on."""
        names: list[str] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            names.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])

        self.patch(os, "fsync", noted)
        return names

    def test_spark_is_called_for_to_land_more_rows(self) -> None:
        self.append(*map(str, range(ROWS_HERE + 1)))
        self.assertRaises(SessionAskedFor, self.run_once)
        self.assertEqual(self.lake.streams, [])

    def test_rows_of_all_streams_count(self) -> None:
        """Several streams are landed together."""
        half = ROWS_HERE // 2 + 1
        self.append(*map(str, range(half)))
        for number in range(half):
            self.sql(
                "SELECT synrepl.append('everything', jsonb_build_array(jsonb_build_object('text', '',"
                " 'whole', %s, 'flag', true, 'real', 1.5, 'doc', '{}'::jsonb, 'list', '[]'::jsonb)),"
                " 'sql')",
                number,
            )
        with self.lake.write_lock():
            self.assertRaises(
                SessionAskedFor, self.maintenance.run, ["everything", "notes"], settle_timeout_s=0.0
            )
