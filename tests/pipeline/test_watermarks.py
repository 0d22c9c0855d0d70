"""Watermarks of a lake: when they are recorded, and that none is lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake import data_files
from synrepl.pipeline.lake import watermarks as module
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.storage import ObjectUnreadable, open_output
from synrepl.pipeline.lake.table_log import LakeConflict, LakeFailed, TableLog
from synrepl.pipeline.lake.watermarks import SCHEMA, Watermarks, WatermarksDamaged
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.storage.position_marks import PositionMark
from tests.pipeline.synthetic_lake import begin, schema_of
from tests.storage.postgres import PostgresCase

NOON = 1_750_000_000.25


class RecordingWatermarks(SynchronousTestCase):
    def setUp(self) -> None:
        self.lake = begin(Path(self.mktemp()))

    def all(self) -> list[tuple[str, int, float]]:
        return sorted(
            (row["stream"], row["token"], row["at"].timestamp())
            for row in Watermarks(self.lake).table().to_pylist()
        )

    def test_marks_are_recorded_once_a_minute_and_stream(self) -> None:
        marks = Watermarks(self.lake)
        self.assertTrue(marks.record("events", 10, NOON))
        self.assertFalse(marks.record("events", 11, NOON + 59.9))
        self.assertTrue(marks.record("caches", 5, NOON + 59.9))
        self.assertTrue(marks.record("events", 12, NOON + 60))
        self.assertEqual(
            self.all(),
            [("caches", 5, NOON + 59.9), ("events", 10, NOON), ("events", 12, NOON + 60)],
        )

    def test_only_streams_that_advanced_are_recorded(self) -> None:
        marks = Watermarks(self.lake)
        self.assertEqual(marks.record_all({"events": 10, "caches": 5}, NOON), 2)
        self.assertEqual(marks.record_all({"events": 10, "caches": 6}, NOON + 100), 1)
        self.assertEqual(marks.record_all({}, NOON + 200), 0)
        self.assertEqual(len(self.all()), 3)

    def test_the_next_process_knows_the_newest(self) -> None:
        Watermarks(self.lake).record("events", 10, NOON)
        Watermarks(self.lake).record("events", 20, NOON + 100)
        self.assertFalse(Watermarks(self.lake).record("events", 21, NOON + 150))
        self.assertFalse(Watermarks(self.lake).record("events", 20, NOON + 500))
        self.assertTrue(Watermarks(self.lake).record("events", 21, NOON + 160))

    def test_a_clock_that_was_set_back_does_not_stop_them(self) -> None:
        Watermarks(self.lake).record("events", 10, NOON)
        marks = Watermarks(self.lake)
        self.assertTrue(marks.record("events", 11, NOON - 86_400))
        self.assertFalse(marks.record("events", 12, NOON - 86_390))
        self.assertFalse(Watermarks(self.lake).record("events", 12, NOON - 86_390))

    def test_small_files_become_one(self) -> None:
        self.patch(module, "MAX_FILES", 8)
        marks = Watermarks(self.lake)
        wanted = [("events", token, NOON + 60 * token) for token in range(1, 21)]
        for stream, token, at in wanted:
            marks.record(stream, token, at)
        self.assertEqual(self.all(), wanted)
        self.assertEqual(len(list(marks.path.glob("*.parquet"))), 22)
        self.assertEqual(marks.remove_unused(retention_hours=0), 18)
        self.assertEqual(self.all(), wanted)

    def test_two_that_join_the_same_files_at_once_leave_each_mark_once(self) -> None:
        self.patch(module, "MAX_FILES", 2)
        marks, other = Watermarks(self.lake), Watermarks(self.lake)
        begun: list[Path] = []

        def opened(path: Path) -> Any:
            begun.append(path)
            if len(begun) == 4:  # the one that joins the first three
                self.assertTrue(other.record("caches", 5, NOON))
            return open_output(path)

        self.patch(module, "open_output", opened)
        for token in range(1, 4):
            self.assertTrue(marks.record("events", token, NOON + 60 * token))
        events = [("events", token, NOON + 60 * token) for token in range(1, 4)]
        self.assertEqual(self.all(), [("caches", 5, NOON), *events])
        self.assertEqual(len(begun), 6)
        self.assertTrue(marks.record("events", 4, NOON + 240))
        self.assertEqual(len(self.all()), 5)

    def test_a_new_lake_has_no_marks(self) -> None:
        marks = Watermarks(self.lake)
        self.assertEqual(marks.table().num_rows, 0)
        self.assertEqual(marks.remove_unused(retention_hours=0), 0)
        self.assertFalse(marks.path.exists())

    def test_a_damaged_table_is_named(self) -> None:
        marks = Watermarks(self.lake)
        marks.record("events", 10, NOON)
        (log,) = (marks.path / "_delta_log").glob("*1.json")
        log.write_text("{")
        with self.assertRaises(LakeFailed) as caught:
            Watermarks(self.lake).record("events", 11, NOON + 90)
        self.assertIn(f"the lake's table {marks.path} cannot be read", str(caught.exception))

    def test_a_creation_that_was_interrupted_is_completed(self) -> None:
        marks = Watermarks(self.lake)
        (marks.path / "_delta_log").mkdir(parents=True)
        self.assertEqual(marks.table().num_rows, 0)
        self.assertTrue(marks.record("events", 10, NOON))
        self.assertEqual(self.all(), [("events", 10, NOON)])

    def test_one_that_another_process_has_just_created_is_used(self) -> None:
        create = TableLog.create

        def late(*arguments: Any) -> TableLog:
            self.patch(TableLog, "create", create)
            Watermarks(self.lake).record("events", 10, NOON)
            return create(*arguments)

        self.patch(TableLog, "create", late)
        Watermarks(self.lake).record("caches", 5, NOON)
        self.assertEqual(self.all(), [("caches", 5, NOON), ("events", 10, NOON)])

    def test_other_readers_find_marks_and_statistics(self) -> None:
        Watermarks(self.lake).record_all({"events": 10, "caches": 5}, NOON)
        table = DeltaTable(str(Watermarks(self.lake).path))
        self.assertEqual(table.to_pyarrow_table().cast(SCHEMA).num_rows, 2)
        (action,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        self.assertEqual(
            [action[f"{end}.{name}"] for name in ("stream", "token") for end in ("min", "max")],
            ["caches", "events", 5, 10],
        )
        self.assertEqual(action["max.at"].timestamp(), NOON)


class DurableWatermarks(SynchronousTestCase):
    """What the disk has when a commit gets its name."""

    def setUp(self) -> None:
        self.lake = begin(Path(self.mktemp()))
        self.synced: list[Path] = []
        fsync, link = os.fsync, os.link

        def synced(descriptor: int) -> None:
            self.synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def linked(draft: Path, name: Path) -> None:
            self.assert_durable(Watermarks(self.lake).path)
            self.commits.append(name.name)
            link(draft, name)

        self.commits: list[str] = []
        self.patch(os, "fsync", synced)
        self.patch(os, "link", linked)

    def assert_durable(self, folder: Path) -> None:
        """All files of a folder are on the disk, and their names after them."""
        files = list(folder.glob("*.parquet"))
        for file in files:
            at = self.synced.index(file)
            self.assertIn(folder, self.synced[at:])

    def test_files_are_durable_before_they_are_named(self) -> None:
        marks = Watermarks(self.lake)
        for token in range(1, 4):
            self.assertTrue(marks.record("events", token, NOON + 60 * token))
        self.assertEqual(self.commits, [f"{version:020}.json" for version in range(4)])

    def test_compacted_ones_too(self) -> None:
        self.patch(module, "MAX_FILES", 1)
        marks, commit = Watermarks(self.lake), TableLog.commit
        compacted: list[int] = []

        def committed(log: TableLog, on: DeltaTable, actions: list[Any], *others: Any) -> None:
            self.assert_durable(marks.path)
            compacted.append(len(actions))
            commit(log, on, actions, *others)

        self.patch(TableLog, "commit", committed)
        marks.record("events", 1, NOON)
        marks.record("events", 2, NOON + 60)
        self.assertEqual(compacted, [3])
        newest = max((marks.path / "_delta_log").glob("*.json"))
        self.assertNotIn(newest, self.synced)
        self.assertEqual(marks.remove_unused(retention_hours=0), 2)
        self.assertIn(newest, self.synced)

    def test_the_folders_of_a_new_table_are_durable(self) -> None:
        Watermarks(self.lake).record("events", 1, NOON)
        self.assertIn(self.lake.path, self.synced)
        self.assertIn(self.lake.path / "marks", self.synced)
        self.lake.ensure_table(schema_of("events")).make_durable()
        for folder in self.lake.path, self.lake.path / "streams", self.lake.path / "streams/events":
            self.assertIn(folder, self.synced)

    def test_the_folder_of_a_new_lake_is_durable(self) -> None:
        path = Path(self.mktemp()).absolute() / "deep" / "lake"
        Lake.open_or_create(path, "server", False)
        for folder in path.parent.parent.parent, path.parent.parent, path.parent, path:
            self.assertIn(folder, self.synced)


class DamagedWatermarks(SynchronousTestCase):
    """Files of watermarks that were lost or damaged."""

    def setUp(self) -> None:
        self.lake = begin(Path(self.mktemp()))
        marks = Watermarks(self.lake)
        marks.record_all({"events": 10, "caches": 5}, NOON)
        before = set(marks.path.glob("*.parquet"))
        marks.record_all({"events": 20, "receipts": 7}, NOON + 90)
        (self.file,) = set(marks.path.glob("*.parquet")) - before

    def lose(self) -> None:
        self.file.unlink()

    def empty(self) -> None:
        self.file.write_bytes(b"")

    def shorten(self) -> None:
        self.file.write_bytes(self.file.read_bytes()[:-100])

    def scramble(self) -> None:
        size = self.file.stat().st_size
        self.file.write_bytes(b"x" * size)

    def rename_a_column(self) -> None:
        self.file.write_bytes(self.file.read_bytes().replace(b"token", b"tokan"))

    def misspell_a_stream(self) -> None:
        self.file.write_bytes(self.file.read_bytes().replace(b"receipts", b"rec\xffipts", 1))

    def test_are_named_by_all_that_read_them(self) -> None:
        for damage in (
            self.misspell_a_stream,
            self.rename_a_column,
            self.scramble,
            self.shorten,
            self.empty,
            self.lose,
        ):
            damage()
            for work in (
                Watermarks(self.lake).table,
                lambda: Watermarks(self.lake).record("events", 30, NOON + 200),
                lambda: Watermarks(self.lake).import_marks({"x": [PositionMark(NOON, 1)]}),
            ):
                error = self.assertRaises(WatermarksDamaged, work)
                self.assertIn(f"file {self.file} of the lake's watermarks is damaged", str(error))
                self.assertIn("'synrepl lake repair'", str(error))

    def test_are_taken_out_with_what_the_log_knows_of_them(self) -> None:
        for damage, words in (
            (self.misspell_a_stream, "Invalid UTF8"),
            (self.rename_a_column, "No match for FieldRef.Name(token)"),
            (self.scramble, "a file that it cannot read"),
            (self.empty, "0 of its"),
            (self.lose, "no such file"),
        ):
            damage()
            (found,) = Watermarks(self.lake).find_damaged()
            self.assertIn(words, found.found)
            known = found.file.extremes
            self.assertEqual((found.file.name, found.file.marks), (self.file.name, 2))
            self.assertEqual(known["stream"], ("events", "receipts"))
            self.assertEqual(known["token"], (7, 20))
            self.assertEqual({each.timestamp() for each in known["at"]}, {NOON + 90})
        marks = Watermarks(self.lake)
        marks.take_out([found])
        self.assertEqual(marks.find_damaged(), [])
        self.assertEqual(sorted(marks.table()["token"].to_pylist()), [5, 10])
        self.assertTrue(marks.record("events", 20, NOON + 90))
        self.assertRaises(LakeConflict, Watermarks(self.lake).take_out, [found])
        marks.take_out([])
        self.assertEqual(sorted(marks.table()["token"].to_pylist()), [5, 10, 20])

    def test_an_object_store_that_does_not_give_one_is_no_damage(self) -> None:
        def unreadable(path: Any) -> Any:
            raise ObjectUnreadable("Generic S3 error")

        self.patch(module, "open_input", unreadable)
        self.patch(data_files, "open_input", unreadable)
        for work in Watermarks(self.lake).table, Watermarks(self.lake).find_damaged:
            self.assertIn("S3", str(self.assertRaises(LakeFailed, work)))


class ImportingWatermarks(PostgresCase):
    async def test_marks_of_a_database_are_imported_once(self) -> None:
        self.sql(
            "INSERT INTO synrepl._stream_marks (stream, token, at) SELECT 'notes', n,"
            " to_timestamp(1750000000.25 + n) FROM generate_series(1, 3) n"
        )
        database = BlockingDatabase(self.dsn, "tests")
        source = SynreplDatabase(database)
        self.addCleanup(source.close)
        found = source.watermarks()
        self.assertEqual(found, {"notes": [PositionMark(NOON + n, n) for n in (1, 2, 3)]})
        marks = Watermarks(begin(Path(self.mktemp())))
        marks.record("notes", 2, NOON + 2)
        self.assertEqual(marks.import_marks(found), 2)
        self.assertEqual(marks.import_marks(found), 0)
        self.assertEqual(marks.import_marks({}), 0)
        self.assertEqual(
            sorted((row["token"], row["at"].timestamp()) for row in marks.table().to_pylist()),
            [(n, NOON + n) for n in (1, 2, 3)],
        )
        # Imported marks count for the interval of recording.
        self.assertFalse(marks.record("notes", 4, NOON + 62.5))
        self.assertTrue(marks.record("notes", 4, NOON + 63))
