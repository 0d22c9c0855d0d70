"""Watermarks of a lake: when they are recorded, and that none is lost."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import TestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake import watermarks as module
from synrepl.pipeline.lake.table_log import LakeFailed
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.storage.position_marks import PositionMark
from system_tests.pipeline.spark_fixture import shared_session
from tests.pipeline.synthetic_lake import begin
from tests.storage.postgres import PostgresCase

NOON = 1_750_000_000.25


class RecordingWatermarks(TestCase):
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

    def test_a_new_lake_has_no_marks(self) -> None:
        marks = Watermarks(self.lake)
        self.assertEqual(marks.table().num_rows, 0)
        self.assertEqual(marks.remove_unused(retention_hours=0), 0)
        self.assertEqual(marks.frame(shared_session()).count(), 0)
        self.assertFalse(marks.path.exists())

    def test_marks_can_be_read_as_a_data_frame(self) -> None:
        marks = Watermarks(self.lake)
        marks.record_all({"events": 10, "caches": 5}, NOON)
        marks.record("events", 11, NOON + 90)
        frame = marks.frame(shared_session())
        self.assertEqual(
            frame.schema.simpleString(), "struct<stream:string,token:bigint,at:timestamp>"
        )
        self.assertEqual(
            sorted((row.stream, row.token, row.at.timestamp()) for row in frame.collect()),
            self.all(),
        )

    def test_a_damaged_table_is_named(self) -> None:
        marks = Watermarks(self.lake)
        marks.record("events", 10, NOON)
        (log,) = (marks.path / "_delta_log").glob("*1.json")
        log.write_text("{")
        with self.assertRaises(LakeFailed) as caught:
            Watermarks(self.lake).record("events", 11, NOON + 90)
        self.assertIn(f"the lake's table {marks.path} cannot be read", str(caught.exception))


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
