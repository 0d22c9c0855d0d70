"""Tables whose log is damaged go back to the newest version that can be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake import log_repair
from synrepl.pipeline.lake.data_files import DataFile, FileWriter
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.log_repair import (
    SET_ASIDE,
    LogBeforeTrimming,
    LogNotRepaired,
    RepairedLog,
    repair_logs,
)
from synrepl.pipeline.lake.storage import LakePath, ObjectUnreadable, read_bytes
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import LakeFailed
from synrepl.pipeline.lake.watermarks import Watermarks
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import columns
from tests.storage.samples import NOTES

_SCHEMA = StreamSchema("notes", False, columns(NOTES))


class DamagedLogs(SynchronousTestCase):
    """Commit 0 makes the table, 1 registers its writer, and each fact is a commit from then on."""

    timeout = 60

    def setUp(self) -> None:
        self.lake = Lake.open_or_create(Path(self.mktemp()).absolute(), "server", False)
        self.table = self.lake.ensure_table(_SCHEMA)
        self.log = Path(str(self.table.path)) / "_delta_log"

    def facts(self, first: int, last: int) -> None:
        for token in range(first, last + 1):
            self.table.append(
                [self.written(token)], self.table.position, PositionVector({"w": token}, token)
            )

    def written(self, token: int) -> DataFile:
        schema = arrow_schema(_SCHEMA.columns)
        writer = FileWriter(self.table.path, schema)
        row = {"stream_id": token, "row_no": 0, "writer": "w", "text": "t"}
        writer.write(pa.RecordBatch.from_pylist([row], schema))
        made = writer.close()
        assert made is not None
        return made

    def checkpoint(self) -> int:
        table = DeltaTable(str(self.table.path))
        table.create_checkpoint()
        return table.version()

    def commit(self, version: int) -> Path:
        return self.log / f"{version:020}.json"

    def checkpoint_file(self, version: int) -> Path:
        return self.log / f"{version:020}.checkpoint.parquet"

    def repaired(self, *, trimmed: int = 0, accept_missing: bool = False) -> list[RepairedLog]:
        return repair_logs(
            self.lake, ["notes"], lambda stream: trimmed, accept_missing=accept_missing
        )

    def landed(self) -> list[int]:
        """The tokens of the table, which is opened anew, and has a position that fits them."""
        table = StreamTable(self.table.path)
        found = [file.low for file in table.files]
        self.assertEqual(table.position.linear, max(found, default=0))
        return found

    def test_a_sound_log_is_left_alone(self) -> None:
        self.facts(1, 3)
        self.checkpoint()
        self.facts(4, 5)
        there = {path: path.read_bytes() for path in self.log.iterdir()}
        self.assertEqual(self.repaired(), [])
        self.assertEqual({path: path.read_bytes() for path in self.log.iterdir()}, there)

    def test_a_lost_commit_takes_the_table_back_before_it(self) -> None:
        self.facts(1, 5)  # versions 2 to 6
        self.commit(4).unlink()
        (done,) = self.repaired()
        self.assertEqual((done.damage, done.version, done.newest), (("commit 4 is lost",), 3, 6))
        self.assertEqual(done.position, PositionVector({"w": 2}, 2))
        self.assertEqual(done.set_aside, (self.commit(5).name, self.commit(6).name))
        self.assertEqual(self.landed(), [1, 2])
        aside = Path(str(self.table.path)) / SET_ASIDE
        self.assertEqual(sorted(path.name for path in aside.iterdir()), list(done.set_aside))
        self.assertEqual(self.repaired(), [])

    def test_a_table_that_went_back_is_landed_into_again(self) -> None:
        self.facts(1, 5)
        self.commit(4).unlink()
        self.repaired()
        self.table = StreamTable(self.table.path)
        self.facts(3, 6)
        self.assertEqual(self.landed(), [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.repaired(), [])

    def test_a_commit_that_the_store_does_not_give_is_not_damage(self) -> None:
        self.facts(1, 3)
        self.assert_not_repaired_without(self.commit(3))

    def test_a_checkpoint_that_the_store_does_not_give_is_not_damage(self) -> None:
        self.facts(1, 3)
        self.assert_not_repaired_without(self.checkpoint_file(self.checkpoint()))

    def assert_not_repaired_without(self, part: Path) -> None:
        """Assert that a log is left alone while the object store does not give a part of it."""

        def read(path: LakePath) -> bytes:
            if path.name == part.name:
                raise ObjectUnreadable("Generic S3 error")
            return read_bytes(path)

        self.patch(log_repair, "read_bytes", read)
        there = {path.name for path in self.log.iterdir()}
        self.assertIn("S3", str(self.assertRaises(LakeFailed, self.repaired)))
        self.assertEqual({path.name for path in self.log.iterdir()}, there)

    def test_the_watermarks_go_back_too(self) -> None:
        marks = Watermarks(self.lake)
        for token in 5, 9:
            marks.record("notes", token, 1000.0 * token)
        newest = max((Path(str(marks.path)) / "_delta_log").iterdir())
        newest.write_bytes(newest.read_bytes()[:300])
        self.assertRaises(LakeFailed, Watermarks(self.lake).table)
        (done,) = self.repaired()
        self.assertEqual((done.of_watermarks, done.version, done.newest), (True, 1, 2))
        self.assertEqual(Watermarks(self.lake).table()["token"].to_pylist(), [5])
        self.assertTrue(Watermarks(self.lake).record("notes", 9, 9000.0))

    def test_damaged_commits_are_like_lost_ones(self) -> None:
        for contents, words in (b"", "is empty"), (b'{"add":{"pa', "cannot be read"):
            self.facts(1, 3)
            self.commit(3).write_bytes(contents)
            (done,) = self.repaired()
            self.assertEqual(done.damage, (f"commit 3 {words}",))
            self.assertEqual(self.landed(), [1])
            self.setUp()

    def test_a_damaged_checkpoint_costs_nothing_if_the_commits_are_there(self) -> None:
        self.facts(1, 3)
        first = self.checkpoint()
        self.facts(4, 6)
        second = self.checkpoint()
        self.facts(7, 7)
        self.checkpoint_file(second).write_bytes(b"PAR1, and nothing else")
        (done,) = self.repaired()
        self.assertEqual(done.damage, (f"checkpoint {second} cannot be read",))
        self.assertEqual(done.version, done.newest)
        self.assertEqual(self.landed(), [1, 2, 3, 4, 5, 6, 7])
        self.checkpoint_file(first).unlink()
        self.assertEqual(self.repaired(), [])
        self.assertEqual(self.landed(), [1, 2, 3, 4, 5, 6, 7])

    def test_a_damaged_pointer_to_the_checkpoint_is_repaired(self) -> None:
        self.facts(1, 3)
        version = self.checkpoint()
        self.facts(4, 4)
        (self.log / "_last_checkpoint").write_bytes(b"{")
        (done,) = self.repaired()
        self.assertEqual(done.damage, ("_last_checkpoint cannot be read",))
        self.assertEqual(self.landed(), [1, 2, 3, 4])
        self.checkpoint()
        self.checkpoint_file(version + 1).unlink()
        (done,) = self.repaired()
        self.assertEqual(done.damage, (f"checkpoint {version + 1} is lost",))
        self.assertEqual(self.landed(), [1, 2, 3, 4])

    def test_a_log_without_a_beginning_is_refused(self) -> None:
        self.facts(1, 3)
        self.commit(0).unlink()
        error = self.assertRaises(LogNotRepaired, self.repaired)
        self.assertIn("its beginning is lost", str(error))
        self.assertTrue(self.commit(4).exists())

    def test_what_the_database_has_trimmed_is_not_given_up_in_silence(self) -> None:
        self.facts(1, 5)
        self.commit(4).unlink()
        there = set(self.log.iterdir())
        error = self.assertRaises(LogBeforeTrimming, self.repaired, trimmed=3)
        self.assertIn("version, 3, is at 2~w.2, and the database has trimmed", str(error))
        self.assertEqual(set(self.log.iterdir()), there)
        self.assertEqual(len(self.repaired(trimmed=3, accept_missing=True)), 1)
        self.assertEqual(self.landed(), [1, 2])

    def test_what_is_trimmed_below_the_version_does_not_matter(self) -> None:
        self.facts(1, 5)
        self.commit(4).unlink()
        self.assertEqual(len(self.repaired(trimmed=2)), 1)
