"""A stream's Delta table: its columns, position, files and refusals."""

from __future__ import annotations

import os
import time as times
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake import data_files, storage
from synrepl.pipeline.lake.check.check import first_damage
from synrepl.pipeline.lake.column_ranges import ColumnRange
from synrepl.pipeline.lake.data_files import (
    GROUP_ROWS,
    DataFile,
    DataFileDamaged,
    FileNotAsWritten,
    FileWriter,
    FolderNotShared,
    confirm_files,
    damage_of,
    file_epoch,
    read_batches,
)
from synrepl.pipeline.lake.storage import LakePath, ObjectPath, ObjectUnreadable
from synrepl.pipeline.lake.table import (
    DEFAULT_RETENTION_HOURS,
    ErasedMeanwhile,
    LandedElsewhere,
    SchemaChanged,
    StreamTable,
)
from synrepl.pipeline.lake.table_log import LakeConflict, LakeFailed
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import Column, ColumnType, columns
from synrepl.streams.synapse import SYNAPSE_STREAMS
from tests.storage.samples import EVERYTHING, NOTES

BIG = 2**63 - 1
SHAPE = StreamSchema("notes", False, columns(NOTES))
SCHEMA = arrow_schema(SHAPE.columns)


class TableCase(SynchronousTestCase):
    """A test case with a table of notes."""

    timeout = 60

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.table = StreamTable.create(self.folder / "notes", SHAPE)

    def again(self) -> StreamTable:
        """The table, opened as by another process."""
        return StreamTable(self.table.path)

    def written(self, low: int, high: int) -> DataFile:
        """Write a file with these IDs, without committing it."""
        schema = arrow_schema(self.table.stream_schema.columns)
        writer = FileWriter(self.table.path, schema)
        for stream_id in range(low, high + 1):
            rows = [{"stream_id": stream_id, "row_no": 0, "writer": "w", "text": f"n{stream_id}"}]
            writer.write(pa.RecordBatch.from_pylist(rows, schema))
        made = writer.close()
        assert made is not None
        return made

    def add(self, low: int, high: int) -> DataFile:
        """Write a file with these IDs, and commit it."""
        file = self.written(low, high)
        self.table.append([file], self.table.position, PositionVector({"w": high}, high))
        return file

    def there(self) -> set[str]:
        """The data files in the folder."""
        return {path.name for path in self.table.path.glob("*.parquet")}

    def ids(self) -> list[int]:
        """The stream IDs in the table."""
        schema = pa.schema([("stream_id", pa.int64())])
        table = self.again()
        return sorted(
            number
            for file in table.files
            for batch in read_batches(table.path_of(file), schema)
            for number in batch.column(0).to_pylist()
        )

    def commits(self) -> list[Path]:
        return sorted((self.table.path / "_delta_log").glob("*.json"))


class TableColumns(TableCase):
    """Columns, and how they change."""

    def test_columns_of_every_stream_and_type_are_kept(self) -> None:
        for stream in (*SYNAPSE_STREAMS, EVERYTHING):
            stream_schema = StreamSchema(stream.name, stream.counts_down, columns(stream))
            made = StreamTable.create(self.folder / stream.name, stream_schema)
            for table in (made, StreamTable(made.path)):
                found = table.stream_schema
                self.assertEqual(
                    (found.stream, found.counts_down), (stream.name, stream.counts_down)
                )
                self.assertEqual(
                    [(column.name, column.type) for column in found.columns],
                    [(column.name, column.type) for column in stream_schema.columns],
                )
                # The head of a row is never null; any other cell may be erased.
                self.assertEqual(
                    [each.nullable for each in found.columns[:4]], [False] * 3 + [True]
                )
                self.assertTrue(all(column.nullable for column in found.cells))

    def test_other_delta_readers_read_it(self) -> None:
        self.add(1, 3)
        found = DeltaTable(self.table.path).to_pyarrow_table().sort_by("stream_id")
        self.assertEqual(found.column("text").to_pylist(), ["n1", "n2", "n3"])
        self.assertEqual(found.column("n").to_pylist(), [None] * 3)

    def test_new_columns_are_added(self) -> None:
        self.add(1, 2)
        wide = StreamSchema(
            "notes", False, (*SHAPE.cells, Column("tags", ColumnType.TEXT_ARRAY, False))
        )
        self.table.widen(wide)
        for table in (self.table, self.again()):
            names = [column.name for column in table.stream_schema.cells]
            self.assertEqual(names, ["text", "n", "tags"])
            self.assertEqual(table.position, PositionVector({"w": 2}, 2))
        (batch,) = read_batches(
            self.table.path_of(self.table.files[0]), arrow_schema(self.table.stream_schema.columns)
        )
        self.assertEqual(batch.column("tags").to_pylist(), [None, None])

    def test_widening_by_nothing_commits_nothing(self) -> None:
        before = self.commits()
        self.table.widen(SHAPE)
        self.assertEqual(self.commits(), before)

    def test_two_processes_may_add_the_same_column(self) -> None:
        other = self.again()
        wide = StreamSchema(
            "notes", False, (*SHAPE.cells, Column("tags", ColumnType.TEXT_ARRAY, True))
        )
        self.table.widen(wide)
        other.widen(wide)
        names = [column.name for column in self.again().stream_schema.cells]
        self.assertEqual(names, ["text", "n", "tags"])

    def test_contradicting_columns_are_refused(self) -> None:
        text, n = SHAPE.cells
        for cells, words in (
            ((text, n._replace(type=ColumnType.TEXT)), "column 'n' as text (the table has bigint)"),
            (
                (text._replace(type=ColumnType.JSON), n),
                "column 'text' as json (the table has text)",
            ),
            ((text,), "no column 'n' any more"),
        ):
            error = self.assertRaises(
                SchemaChanged, self.table.widen, StreamSchema("notes", False, cells)
            )
            self.assertIn(f"stream 'notes' has {words}", str(error))
        # The order of columns does not matter.
        self.table.widen(StreamSchema("notes", False, (n, text)))


class TablePositions(TableCase):
    """The position of the table."""

    def test_writers_known_at_creation_need_no_commit_of_their_own(self) -> None:
        table = StreamTable.create(self.folder / "known", SHAPE, ["b", "a", "a"])
        self.assertFalse(table.has_position)
        table.append([], PositionVector(), PositionVector({"a": 3, "b": 5}, 3))
        commits = sorted((table.path / "_delta_log").glob("*.json"))
        self.assertEqual(len(commits), 2)
        self.assertEqual(StreamTable(table.path).position, PositionVector({"a": 3, "b": 5}, 3))
        table.append([], table.position, PositionVector({"a": 3, "b": 5, "c": 6}, 3))
        self.assertEqual(StreamTable(table.path).position["c"], 6)

    def test_a_new_table_has_no_position(self) -> None:
        self.assertEqual((self.table.position, self.table.has_position), (PositionVector(), False))
        self.table.append([], PositionVector(), PositionVector())
        self.assertTrue(self.again().has_position)
        self.assertEqual(self.again().position, PositionVector())

    def test_positions_of_several_writers_are_exact(self) -> None:
        odd = {"w": BIG, "writer/1": 2**53 + 1, "ü": 5, "a.b-c_d": BIG - 1}
        at = PositionVector()
        for end in (PositionVector({"w": 3}, 2), PositionVector(odd, 5), PositionVector(odd, BIG)):
            self.table.append([], at, end)
            at = self.again().position
            self.assertEqual(at.linear, end.linear)
            self.assertEqual({name: at[name] for name in odd}, {name: end[name] for name in odd})

    def test_a_writer_that_is_no_longer_named_keeps_its_position(self) -> None:
        self.table.append([], PositionVector(), PositionVector({"a": 7, "b": 3}, 2))
        self.table.append([], self.table.position, PositionVector({"b": 5}, 4))
        self.assertEqual(self.again().position, PositionVector({"a": 7, "b": 5}, 4))

    def test_rows_and_position_move_together(self) -> None:
        file = self.add(1, 9)
        self.assertEqual(self.again().files, [file])
        self.assertEqual(self.again().position, PositionVector({"w": 9}, 9))
        self.assertEqual((file.rows, file.low, file.high), (9, 1, 9))
        self.assertEqual(file.size, self.table.path_of(file).stat().st_size)

    def test_a_landing_by_another_process_is_noticed(self) -> None:
        self.add(1, 2)
        other, start = self.again(), self.table.position
        self.add(3, 4)
        new = self.written(3, 4)
        error = self.assertRaises(
            LandedElsewhere, other.append, [new], start, PositionVector({"w": 4}, 4)
        )
        self.assertIn("is at 4~w.4, not at 2~w.2", str(error))
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_a_first_landing_by_another_process_is_noticed(self) -> None:
        other = self.again()
        self.add(1, 2)
        self.assertRaises(
            LandedElsewhere,
            other.append, [self.written(1, 2)], PositionVector(), PositionVector({"w": 2}, 2),
        )  # fmt: skip
        self.assertEqual(self.ids(), [1, 2])

    def test_a_concurrent_landing_fails_the_commit(self) -> None:
        self.add(1, 2)
        other, start = self.again(), self.table.position
        self.add(3, 4)
        new = self.written(3, 4)
        other.refresh = lambda: None  # type: ignore[method-assign]
        error = self.assertRaises(
            LakeFailed, other.append, [new], start, PositionVector({"w": 4}, 4)
        )
        self.assertIn("cannot be written", str(error))
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_a_landing_just_before_the_commit_is_noticed(self) -> None:
        self.add(1, 2)
        other, start = self.again(), self.table.position
        other.append([self.written(3, 4)], start, PositionVector({"w": 4}, 4))
        new = self.written(3, 4)
        self.table.refresh = lambda: None  # type: ignore[method-assign]
        self.assertRaises(
            LandedElsewhere, self.table.append, [new], start, PositionVector({"w": 4}, 4)
        )
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_survives_checkpoints_of_the_log_and_its_clearing(self) -> None:
        DeltaTable(self.table.path).alter.set_table_properties(
            {
                "delta.checkpointInterval": "5",
                "delta.logRetentionDuration": "interval 0 seconds",
            }
        )
        self.table.append([], PositionVector(), PositionVector({"gone": 3}, 0))
        for high in range(1, 25):
            self.add(high, high)
        table = DeltaTable(self.table.path)
        table.create_checkpoint()
        table.cleanup_metadata()
        self.assertLess(len(self.commits()), 20)  # the first ones have been removed
        self.assertEqual(self.again().position, PositionVector({"gone": 3, "w": 24}, 24))
        self.assertEqual(self.ids(), list(range(1, 25)))
        # A process that has read it before knows it, for as long as it does not look again.
        self.assertEqual(self.table.position["w"], 24)
        self.table.refresh()
        self.assertEqual(self.table.position, PositionVector({"gone": 3, "w": 24}, 24))
        self.add(25, 25)
        self.assertEqual(self.again().position["w"], 25)

    def test_a_table_object_in_use_survives_the_clearing_of_its_log(self) -> None:
        DeltaTable(self.table.path).alter.set_table_properties(
            {"delta.checkpointInterval": "5", "delta.logRetentionDuration": "interval 0 seconds"}
        )
        for high in range(1, 25):
            self.add(high, high)
        self.assertLess(len(self.commits()), 10)
        self.assertEqual(self.ids(), list(range(1, 25)))


class TableFiles(TableCase):
    """The data files of the table."""

    def test_readers_skip_files_by_numbers(self) -> None:
        files = []
        for low in (1, 11, 21):
            schema = arrow_schema(self.table.stream_schema.columns)
            writer = FileWriter(self.table.path, schema)
            rows = [
                {
                    "stream_id": number,
                    "row_no": 0,
                    "writer": "w",
                    "n": None if number % 5 == 0 else number,
                }
                for number in range(low, low + 10)
            ]
            writer.write(pa.RecordBatch.from_pylist(rows[:4], schema))
            writer.write(pa.RecordBatch.from_pylist(rows[4:], schema))
            file = writer.close()
            assert file is not None
            files.append(file)
            at = PositionVector({"w": low + 9}, low + 9)
            self.table.append([file], self.table.position, at)
        self.assertEqual(files[1].ranges, (ColumnRange("n", 11, 19, 2),))
        self.assertEqual(self.table.files, files)
        rows_of = DeltaTable(self.table.path).to_pyarrow_dataset()
        read = rows_of.get_fragments(filter=pc.field("n") > 15)
        self.assertEqual(
            sorted(Path(each.path).name for each in read), sorted(file.name for file in files[1:])
        )
        self.assertEqual(rows_of.to_table(filter=pc.field("n").is_null()).num_rows, 6)

    def test_a_file_may_have_numbers_between_its_extremes(self) -> None:
        ranges = ColumnRange("n", 5, 7, 2), ColumnRange("m", 1, 9, 0)
        file = DataFile("a", 1, 9, 1, 9, ranges)
        for numbers in ([5], [7], [1, 6, 9]):
            self.assertTrue(file.may_have("n", numbers))
        for numbers in ([], [4, 8]):
            self.assertFalse(file.may_have("n", numbers))
        self.assertTrue(file.may_have("other", [4]))
        empty = msgspec.structs.replace(file, ranges=(ColumnRange("n", None, None, 9),))
        self.assertFalse(empty.may_have("n", [5]))

    def older_release(self) -> None:
        """Let the table be one of a release that wrote statistics of IDs only."""
        older = {"delta.dataSkippingStatsColumns": "stream_id"}
        DeltaTable(self.table.path).alter.set_table_properties(older)
        self.table.refresh()

    def append_without_statistics(self, *numbers: int | None) -> DataFile:
        """Append a file as such a release wrote it; the file as others have it."""
        low = self.table.position["w"] + 1
        schema = arrow_schema(self.table.stream_schema.columns)
        writer = FileWriter(self.table.path, schema)
        rows = [
            {"stream_id": low + at, "row_no": 0, "writer": "w", "n": n}
            for at, n in enumerate(numbers)
        ]
        writer.write(pa.RecordBatch.from_pylist(rows, schema))
        file = writer.close()
        assert file is not None
        old = msgspec.structs.replace(file, ranges=())
        at = PositionVector({"w": file.high}, file.high)
        self.table.append([old], self.table.position, at)
        return file

    def test_a_table_of_an_older_release_gets_statistics_of_all_files(self) -> None:
        self.older_release()
        files = [self.append_without_statistics(*each) for each in ((7, None, 9), (None,))]
        self.assertEqual(files[0].ranges, (ColumnRange("n", 7, 9, 1),))
        self.assertEqual(files[1].ranges, (ColumnRange("n", None, None, 1),))
        self.table.widen(SHAPE)
        files.append(self.add(5, 6))
        self.assertEqual(self.again().files, files)
        self.assertEqual(len(self.there()), 3)
        before = len(self.commits())
        self.table.widen(SHAPE)
        self.assertEqual(len(self.commits()), before)

    def test_readers_find_numbers_and_their_absence_in_files_of_an_older_release(self) -> None:
        self.older_release()
        for each in ((7, None, 9), (None,)):
            self.append_without_statistics(*each)
        self.table.widen(SHAPE)
        self.add(5, 6)
        rows_of = DeltaTable(self.table.path).to_pyarrow_dataset()
        self.assertEqual(rows_of.to_table(filter=pc.field("n") == 7).num_rows, 1)
        self.assertEqual(rows_of.to_table(filter=pc.field("n").is_null()).num_rows, 4)

    def test_files_of_a_release_that_left_out_columns_without_numbers_get_statistics(self) -> None:
        """It set the same property, so only the files tell."""
        file = self.append_without_statistics(None)
        self.add(2, 3)
        self.again().widen(SHAPE)
        self.assertEqual(self.again().files[0], file)
        rows_of = DeltaTable(self.table.path).to_pyarrow_dataset()
        self.assertEqual(rows_of.to_table(filter=pc.field("n").is_null()).num_rows, 3)
        before = len(self.commits())
        self.again().widen(SHAPE)
        self.assertEqual(len(self.commits()), before)

    def test_a_file_of_an_older_release_that_is_lost_stays_as_it_is(self) -> None:
        self.older_release()
        self.append_without_statistics(7)
        self.table.path_of(self.table.files[0]).unlink()
        self.table.widen(SHAPE)
        self.assertEqual([file.ranges for file in self.table.files], [()])

    def test_files_without_a_later_column_have_statistics_of_it(self) -> None:
        self.add(1, 3)
        later = Column("later", ColumnType.BIGINT, True)
        self.table.widen(StreamSchema("notes", False, (*SHAPE.cells, later)))
        (file,) = self.again().files
        self.assertIn(ColumnRange("later", None, None, 3), file.ranges)
        rows_of = DeltaTable(self.table.path).to_pyarrow_dataset()
        self.assertEqual(rows_of.to_table(filter=pc.field("later").is_null()).num_rows, 3)

    def test_files_are_ordered_by_their_ids(self) -> None:
        self.assertEqual(self.table.files, [])
        names = [self.add(low, low + 1).name for low in (5, 1, 3)]
        self.assertEqual([file.low for file in self.table.files], [1, 3, 5])
        self.assertEqual({file.name for file in self.table.files}, set(names))

    def test_the_log_contains_no_values_of_cells(self) -> None:
        self.add(1, 3)
        text = "".join(path.read_text() for path in self.commits())
        self.assertIn("maxValues", text)
        self.assertNotIn("n3", text)

    def test_files_are_replaced_in_one_commit(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        kept = self.add(5, 6)
        new = self.written(1, 4)
        self.table.rewrite(old, [new], change=False)
        self.assertEqual(self.again().files, [new, kept])
        self.assertEqual(self.again().position, PositionVector({"w": 6}, 6))
        self.assertEqual(self.ids(), [1, 2, 3, 4, 5, 6])

    def test_one_of_two_rewrites_of_the_same_version_fails(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        one, other = self.again(), self.again()
        one.rewrite(old, [self.written(1, 4)], change=False)
        error = self.assertRaises(
            LakeFailed, other.rewrite, old, [self.written(1, 4)], change=False
        )
        self.assertIn(str(self.table.path), str(error))
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_a_rewrite_and_a_landing_do_not_conflict(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        other = self.again()
        self.add(5, 6)
        other.rewrite(old, [self.written(1, 4)], change=False)
        self.add(7, 8)
        self.assertEqual(self.ids(), list(range(1, 9)))
        self.assertEqual(self.again().position, PositionVector({"w": 8}, 8))

    def test_unused_files_are_removed(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        new = self.written(1, 4)
        orphan = self.written(5, 6)
        (self.table.path / "part-torn.parquet").write_bytes(b"PAR1")
        self.table.rewrite(old, [new], change=False)
        self.assertEqual(self.there() - {new.name, "part-torn.parquet"},
                         {orphan.name, *(file.name for file in old)})  # fmt: skip
        self.assertEqual(self.table.remove_unused(retention_hours=0), 4)
        self.assertEqual(self.there(), {new.name})
        self.assertEqual(self.table.remove_unused(retention_hours=0), 0)
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_files_are_kept_for_the_retention(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        young, stray = self.written(1, 2), self.written(1, 2)
        hour = 3600
        # As if they had been written long ago: what counts is when they were replaced.
        for file in (*old, stray):
            age(self.table.path_of(file), 7 * hour)
        version = DeltaTable(self.table.path).version()
        new = self.written(1, 4)
        self.table.rewrite(old, [new], change=False)
        self.assertEqual(self.table.remove_unused(retention_hours=6), 1)
        self.assertEqual(self.there(), {file.name for file in (*old, young, new)})
        before = DeltaTable(self.table.path, version=version).to_pyarrow_table()
        self.assertEqual(sorted(before["stream_id"].to_pylist()), [1, 2, 3, 4])

        self.patch(times, "time", lambda: datetime.now(UTC).timestamp() - 7 * hour)
        newest = self.written(1, 4)
        self.table.rewrite([new], [newest], change=False)
        self.assertEqual(self.table.remove_unused(retention_hours=6), 1)
        self.assertEqual(self.there(), {file.name for file in (*old, young, newest)})

    def test_the_retention_is_recorded_for_all_that_write_the_table(self) -> None:
        self.assertEqual(self.table.retention_hours, DEFAULT_RETENTION_HOURS)
        self.table.set_retention(48)
        self.assertEqual(self.again().retention_hours, 48)
        found = DeltaTable(self.table.path).metadata().configuration
        self.assertEqual(found["delta.deletedFileRetentionDuration"], "interval 48 hours")
        self.assertEqual(found["delta.logRetentionDuration"], "interval 72 hours")
        commits = self.commits()
        self.table.set_retention(48)
        self.assertEqual(self.commits(), commits)

    def test_a_table_of_an_earlier_release_has_the_default_retention(self) -> None:
        DeltaTable(self.table.path).alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": "interval 1 week"}
        )
        self.assertEqual(self.again().retention_hours, DEFAULT_RETENTION_HOURS)

    def test_a_landing_that_began_before_an_erasure_is_refused(self) -> None:
        self.add(1, 2)
        epoch, other = self.table.epoch, self.again()
        late, at = self.written(3, 4), self.table.position
        other.begin_erasure()
        self.assertRaises(
            ErasedMeanwhile, self.table.append, [late], at, PositionVector({"w": 4}, 4), epoch
        )
        self.table.append([late], at, PositionVector({"w": 4}, 4), epoch + 1)
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_files_that_another_process_has_replaced_are_not_replaced_again(self) -> None:
        one, two, three, four = (self.add(number, number) for number in range(1, 5))
        compacting = self.again()
        compacting.rewrite([one, two], [self.written(1, 2)], change=False)
        self.again().rewrite([three, four], [self.written(3, 4)], change=False)
        error = self.assertRaises(
            LakeConflict, compacting.rewrite, [three, four], [self.written(3, 4)], change=False
        )
        self.assertIn(three.name, str(error))
        self.assertEqual(self.ids(), [1, 2, 3, 4])

    def test_a_landing_or_rewrite_that_has_not_seen_an_erasure_begin_fails(self) -> None:
        old = [self.add(1, 2), self.add(3, 4)]
        landing, rewriting, at = self.again(), self.again(), self.table.position
        self.assertEqual((landing.epoch, landing.position), (0, at))
        self.table.begin_erasure()
        landing.refresh = lambda: None  # type: ignore[method-assign]
        new = self.written(5, 6)
        self.assertRaises(LakeConflict, landing.append, [new], at, PositionVector({"w": 6}, 6), 0)
        self.assertRaises(LakeConflict, rewriting.rewrite, old, [self.written(1, 4)], change=False)
        self.assertEqual(self.again().files, old)

    def test_an_erasure_deletes_unused_files_of_earlier_epochs(self) -> None:
        kept, stray = self.add(1, 2), self.written(1, 2)
        self.table.begin_erasure()
        writer = FileWriter(self.table.path, SCHEMA, self.table.epoch)
        writer.write(
            pa.RecordBatch.from_pylist(
                [{"stream_id": 9, "row_no": 0, "writer": "w", "text": "n"}], SCHEMA
            )
        )
        coming = writer.close()
        assert coming is not None
        self.assertEqual([file_epoch(file.name) for file in (kept, stray, coming)], [0, 0, 1])
        self.assertEqual(self.table.remove_before_epoch(), 1)
        self.assertEqual(self.there(), {kept.name, coming.name})

    def test_an_empty_table_has_no_position_after_an_erasure_began(self) -> None:
        self.table.begin_erasure()
        self.assertEqual((self.table.epoch, self.again().epoch), (1, 1))
        self.assertFalse(self.again().has_position)

    def test_the_time_in_the_log_is_now(self) -> None:
        begun = datetime.now(UTC).timestamp() * 1000 - 1
        self.add(1, 1)
        (made,) = pa.table(DeltaTable(self.table.path).get_add_actions()).to_pylist()
        when = made["modification_time"]
        self.assertGreaterEqual(when if isinstance(when, int) else when.timestamp() * 1000, begun)


class FilesOfTasksFoundByTheDriver(TableCase):
    """A task's file is committed only if the driver finds it, too."""

    def assert_refused(self, file: DataFile, found: str) -> None:
        """Check that neither a landing nor a rewrite commits the file."""
        old, commits, at = self.table.files, self.commits(), self.table.position
        beyond = PositionVector({"w": 99}, 99)
        for commit in (
            partial(self.table.append, [file], at, beyond),
            partial(self.table.rewrite, old, [file], change=True),
        ):
            error = self.assertRaises(FileNotAsWritten, commit)
            self.assertIn(f"wrote {file.name} into {self.table.path}", str(error))
            self.assertIn(f"finds {found}", str(error))
            self.assertIn("one shared folder", str(error))
        table = self.again()
        self.assertEqual((table.files, table.position, self.commits()), (old, at, commits))

    def test_refuses_a_missing_file(self) -> None:
        self.add(1, 2)
        file = self.written(3, 4)
        self.table.path_of(file).unlink()
        self.assert_refused(file, "no such file")
        self.assertEqual(self.ids(), [1, 2])

    def test_refuses_a_truncated_file(self) -> None:
        self.add(1, 2)
        file = self.written(3, 4)
        os.truncate(self.table.path_of(file), file.size - 1)
        self.assert_refused(file, f"{file.size - 1:,} of its {file.size:,} bytes")

    def test_opens_no_file(self) -> None:
        file = self.written(1, 2)
        self.patch(data_files, "open_input", None)
        self.table.append([file], self.table.position, PositionVector({"w": 2}, 2))
        self.assertEqual(self.again().files, [file])


class FilesConfirmedByTasks(TableCase):
    """A task reads back what it has written, where it has written it."""

    def assert_refused(self, file: DataFile, found: str) -> None:
        """Check that the task does not confirm a file beside another one."""
        both = [(self.table.path, each) for each in (self.written(1, 2), file)]
        error = self.assertRaises(FileNotAsWritten, confirm_files, both)
        self.assertIn(f"wrote {file.name} into {self.table.path}", str(error))
        self.assertIn(f"the task finds {found}", str(error))

    def test_refuses_a_truncated_file(self) -> None:
        file = self.written(3, 4)
        os.truncate(self.table.path_of(file), file.size - 1)
        self.assert_refused(file, f"{file.size - 1:,} of its {file.size:,} bytes")

    def test_refuses_an_unreadable_file_of_the_same_size(self) -> None:
        file = self.written(3, 4)
        self.table.path_of(file).write_bytes(bytes(file.size))
        self.assert_refused(file, "a file that it cannot read (")

    def test_refuses_a_file_with_another_number_of_rows(self) -> None:
        self.assert_refused(msgspec.structs.replace(self.written(3, 4), rows=3), "2 of its 3 rows")

    def test_says_that_a_file_which_is_gone_cannot_be_written(self) -> None:
        file = self.written(3, 4)
        self.table.path_of(file).unlink()
        self.assertRaises(FolderNotShared, confirm_files, [(self.table.path, file)])

    def test_a_file_is_confirmed_when_it_is_closed(self) -> None:
        self.patch(data_files, "make_durable", lambda path: os.truncate(path, 8))
        self.assertRaises(FileNotAsWritten, self.written, 1, 2)


class DamagedFiles(TableCase):
    """Reading files whose contents have changed on the disk."""

    def file_for_reading(self) -> tuple[Path, LakePath]:
        """A file of the table, and its path for reading."""
        path = self.table.path_of(self.add(1, 1000))
        assert isinstance(path, Path)
        return path, path

    def read_damaged(self, first: int, size: int) -> None:
        """Assert that reading a file of which some bytes are others names it."""
        path, read_from = self.file_for_reading()
        data = bytearray(path.read_bytes())
        for at in range(first, first + size):
            data[at] ^= 0x5A
        path.write_bytes(data)
        error = self.assertRaises(DataFileDamaged, list, read_batches(read_from, SCHEMA))
        self.assertIn(str(read_from), str(error))

    def test_a_damaged_footer_is_named(self) -> None:
        self.read_damaged(-20, 20)

    def test_a_damaged_page_is_named(self) -> None:
        self.read_damaged(100, 1000)

    def test_a_footer_with_a_name_that_is_no_text_is_named(self) -> None:
        path, read_from = self.file_for_reading()
        data = path.read_bytes()
        path.write_bytes(data.replace(b"stream_id", b"\xfftream_id", 1))
        self.assertRaises(DataFileDamaged, list, read_batches(read_from, SCHEMA))
        file = DataFile(path.name, len(data), 1000, 1, 1000)
        self.assertIn("a file that it cannot read", damage_of(read_from, file))

    def test_a_missing_file_is_not_called_damaged(self) -> None:
        path, read_from = self.file_for_reading()
        path.unlink()
        self.assertRaises(FolderNotShared, list, read_batches(read_from, SCHEMA))


class DamagedObjects(DamagedFiles):
    """Reading objects of a store whose contents have changed. The store is of files, by delta-rs's client."""

    def file_for_reading(self) -> tuple[Path, LakePath]:
        path, _ = super().file_for_reading()
        return path, ObjectPath(f"file://{path.parent}") / path.name

    def test_a_failure_of_the_store_while_reading_is_not_called_damage(self) -> None:
        path, read_from = self.file_for_reading()
        open_input = storage.open_input

        @contextmanager
        def failing(path_to_open: LakePath) -> Iterator[Any]:
            with open_input(path_to_open) as opened:
                path.unlink()
                path.symlink_to(path)  # without end
                yield opened

        self.patch(data_files, "open_input", failing)
        self.assertRaises(FolderNotShared, list, read_batches(read_from, SCHEMA))

    def test_an_object_that_the_store_does_not_give_is_not_called_damaged(self) -> None:
        file = self.add(1, 1000)
        path = self.table.path_of(file)
        assert isinstance(path, Path)
        path.unlink()
        path.symlink_to(path)  # without end
        place = ObjectPath(f"file://{path.parent}") / path.name
        self.assertRaises(ObjectUnreadable, damage_of, place, file)
        self.patch(StreamTable, "path_of", lambda table, file: place)
        self.assertRegex(first_damage(self.table, [file]), "^its file .* cannot be read ")

    def test_a_store_without_credentials_is_not_called_damage(self) -> None:
        self.addCleanup(os.environ.pop, "GOOGLE_APPLICATION_CREDENTIALS", None)
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = "/nowhere/account.json"
        self.assertRaises(
            FolderNotShared,
            list,
            read_batches(ObjectPath("gs://bucket") / "part-1.parquet", SCHEMA),
        )


class FileWriting(TableCase):
    """Writing a data file."""

    def writer(self, **more: pa.DataType) -> FileWriter:
        return FileWriter(self.table.path, pa.schema({"stream_id": pa.int64(), **more}))

    def test_no_rows_make_no_file(self) -> None:
        writer = self.writer()
        writer.write(pa.RecordBatch.from_pydict({"stream_id": pa.array([], pa.int64())}))
        self.assertIsNone(writer.close())
        self.assertEqual(self.there(), set())

    def test_files_have_row_groups_and_id_ranges(self) -> None:
        writer = self.writer()
        size = GROUP_ROWS // 2
        for first in (1, 1 + size, 1 + 2 * size):
            ids = pa.array(range(-first, -first - size, -1), pa.int64())
            writer.write(pa.RecordBatch.from_arrays([ids], ["stream_id"]))
        file = writer.close()
        assert file is not None
        self.assertEqual((file.rows, file.low, file.high), (3 * size, -3 * size, -1))
        found = pa.parquet.ParquetFile(self.table.path_of(file)).metadata
        rows = [found.row_group(each).num_rows for each in range(found.num_row_groups)]
        self.assertEqual(rows, [2 * size, size])
        self.assertEqual(found.row_group(0).column(0).compression, "ZSTD")

    def test_statistics_are_of_numbers_only(self) -> None:
        writer = self.writer(writer=pa.string(), sent=pa.timestamp("us", "UTC"), kept=pa.bool_())
        row = {"stream_id": 7, "writer": "w1", "sent": datetime.now(UTC), "kept": True}
        writer.write(pa.RecordBatch.from_pylist([row]))
        file = writer.close()
        assert file is not None
        group = pa.parquet.ParquetFile(self.table.path_of(file)).metadata.row_group(0)
        columns = map(group.column, range(group.num_columns))
        self.assertEqual(
            {column.path_in_schema for column in columns if column.is_stats_set},
            {"stream_id", "sent"},
        )


class BrokenTables(TableCase):
    """Failures to read or write name the table."""

    def test_a_damaged_log_is_named(self) -> None:
        self.commits()[0].write_text("{")
        error = self.assertRaises(LakeFailed, self.again)
        self.assertIn(f"the lake's table {self.table.path} cannot be read", str(error))
        self.assertRaises(LakeFailed, StreamTable.opened, self.table.path)

    def test_a_missing_log_is_named(self) -> None:
        for path in self.commits():
            path.unlink()
        (self.table.path / "_delta_log").rmdir()
        self.assertRaises(LakeFailed, self.again)
        self.assertIsNone(StreamTable.opened(self.table.path))

    def test_a_folder_without_a_table_is_none(self) -> None:
        self.assertIsNone(StreamTable.opened(self.folder / "nothing"))
        self.assertFalse((self.folder / "nothing").exists())
        opened = StreamTable.opened(self.table.path)
        assert opened is not None
        self.assertEqual(opened.stream, "notes")

    def test_a_folder_that_cannot_be_created_is_named(self) -> None:
        (self.folder / "taken").touch()
        error = self.assertRaises(
            LakeFailed, StreamTable.create, self.folder / "taken" / "notes", SHAPE
        )
        self.assertIn("cannot be made", str(error))


def age(path: Path, seconds: float) -> None:
    """Let a file be this old."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
