"""Compaction of a stream's table, with Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.pipeline.lake.compact.compact import compact
from synrepl.pipeline.lake.data_files import DataFile, FileWriter, is_by_room
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.lake.table_log import LakeFailed
from synrepl.pipeline.source.database.stream_schema import StreamSchema
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.positions.vector import PositionVector
from synrepl.streams.columns import Column, ColumnType
from system_tests.pipeline.spark_fixture import shared_session

NOTES = StreamSchema("notes", False, (Column("text", ColumnType.TEXT, False),))
WIDER = StreamSchema("notes", False, (*NOTES.cells, Column("tags", ColumnType.TEXT_ARRAY, True)))
DOWN = StreamSchema("down", True, NOTES.cells)
MESSAGES = StreamSchema(
    "messages", False, (*NOTES.cells, Column("room_id", ColumnType.TEXT, False))
)

TARGET = 40_000


class CompactionTest(TestCase):
    timeout = 300

    def setUp(self) -> None:
        self.lake = Lake.open_or_create(Path(self.mktemp()), "tests", False)
        self.spark = shared_session()

    def write(self, table: StreamTable, rows: list[dict[str, Any]]) -> DataFile:
        """A file of the table, in the order of the rows."""
        schema = arrow_schema(table.stream_schema.columns)
        writer = FileWriter(table.path, schema)
        whole = [{name: row.get(name) for name in schema.names} for row in rows]
        writer.write(pa.RecordBatch.from_pylist(whole, schema=schema))
        file = writer.close()
        assert file is not None
        return file

    def land(self, table: StreamTable, tokens: list[Token], writer: str = "w") -> None:
        """Land two rows per token."""
        sign = -1 if table.stream_schema.counts_down else 1
        rows = [
            {
                "stream_id": sign * token,
                "row_no": number,
                "writer": writer,
                "text": _text(token),
                "room_id": f"!{token % 7}",
            }
            for token in tokens
            for number in range(2)
        ]
        at = table.position
        file = self.write(table, rows)
        table.append([file], at, at.advance(writer, max(tokens)))

    def rows(self, table: StreamTable) -> list[list[tuple[Any, ...]]]:
        """The rows of each file, in order."""
        found = []
        for file in table.files:
            read = pq.read_table(table.path_of(file))
            found.append(list(zip(*(column.to_pylist() for column in read.columns), strict=True)))
        return found

    def all_rows(self, table: StreamTable) -> list[tuple[Any, ...]]:
        return sorted(row for rows in self.rows(table) for row in rows)

    def test_small_files_become_large_ones(self) -> None:
        table = self.lake.ensure_table(NOTES)
        chance = random.Random(3)
        for begin in range(1, 1001, 25):
            # Two writers, one ahead of the other.
            ahead = chance.randint(0, 5)
            self.land(table, [each + ahead for each in range(begin, begin + 25) if each % 2], "a")
            self.land(table, [each for each in range(begin, begin + 25) if not each % 2], "b")
        before, position = self.all_rows(table), table.position
        seen: list[tuple[int, int]] = []
        done = compact(
            self.spark,
            self.lake,
            "notes",
            target=TARGET,
            full=True,
            progress=lambda *at: seen.append(at),
        )
        table.refresh()
        self.assertEqual(self.all_rows(table), before)
        self.assertEqual(table.position, position)
        self.assertEqual((done.joined, done.made, done.rows), (80, len(table.files), len(before)))
        self.assertEqual(done.after, sum(file.size for file in table.files))
        self.assertEqual(seen[-1], (80, 80))
        self.assertLess(len(table.files), 10)
        self.assertGreater(len(table.files), 1)
        for file, rows in zip(table.files, self.rows(table), strict=True):
            self.assertEqual([row[:2] for row in rows], sorted(row[:2] for row in rows))
            self.assertEqual((file.low, file.high), (rows[0][0], rows[-1][0]))
            self.assertEqual(file.rows, len(rows))
            self.assertEqual(file.size, table.path_of(file).stat().st_size)
        self.assertEqual(table.remove_unused(retention_hours=0), 80)
        self.assertEqual(self.all_rows(table), before)

    def test_files_that_stay_as_they_are_have_their_rows_by_room(self) -> None:
        table = self.lake.ensure_table(MESSAGES)
        for begin in range(1, 1001, 25):
            self.land(table, list(range(begin, begin + 25)))
        before = self.all_rows(table)
        compact(self.spark, self.lake, "messages", target=TARGET, full=True)
        table.refresh()
        self.assertEqual(self.all_rows(table), before)
        self.assertGreater(len(table.files), 1)
        for file, rows in zip(table.files, self.rows(table), strict=True):
            self.assertTrue(is_by_room(table.path_of(file)))
            self.assertEqual(rows, sorted(rows, key=lambda row: (row[4], row[:2])))
            self.assertEqual({file.low, file.high}, {f(row[0] for row in rows) for f in (min, max)})

    def test_files_that_will_be_merged_again_have_their_rows_in_order(self) -> None:
        table = self.lake.ensure_table(MESSAGES)
        for token in range(1, 9):
            self.land(table, [token])
        compact(self.spark, self.lake, "messages", target=TARGET)
        table.refresh()
        (rows,) = self.rows(table)
        self.assertEqual([row[0] for row in rows[::2]], list(range(1, 9)))
        self.assertFalse(is_by_room(table.path_of(table.files[0])))

    def test_files_by_room_are_merged_as_others_are(self) -> None:
        """If the target was raised since, or rows were dropped or emptied."""
        table = self.lake.ensure_table(MESSAGES)
        for begin in range(1, 401, 25):
            self.land(table, list(range(begin, begin + 25)))
        before = self.all_rows(table)
        for target in (TARGET // 4, TARGET * 100):
            compact(self.spark, self.lake, "messages", target=target, full=True)
            table.refresh()
            self.assertEqual(self.all_rows(table), before)
        self.assertEqual(len(table.files), 1)

    def test_compacting_again_changes_nothing(self) -> None:
        table = self.lake.ensure_table(NOTES)
        for token in range(1, 5):
            self.land(table, [token])
        self.assertEqual(compact(self.spark, self.lake, "notes").joined, 4)
        again = compact(self.spark, self.lake, "notes")
        self.assertEqual((again.joined, again.made, again.rows), (0, 0, 0))

    def test_landing_continues_at_its_position_afterwards(self) -> None:
        table = self.lake.ensure_table(NOTES)
        for token in range(1, 5):
            self.land(table, [token])
        compact(self.spark, self.lake, "notes")
        self.land(table, [5])
        self.assertEqual(table.position, PositionVector({"w": 5}, 0))
        self.assertEqual([row[0] for row in self.all_rows(table)], [1, 1, 2, 2, 3, 3, 4, 4, 5, 5])

    def test_descending_streams_are_compacted(self) -> None:
        table = self.lake.ensure_table(DOWN)
        for begin in range(1, 41, 10):
            self.land(table, list(range(begin, begin + 10)))
        compact(self.spark, self.lake, "down", full=True)
        table.refresh()
        (rows,) = self.rows(table)
        self.assertEqual([row[0] for row in rows[::2]], [-token for token in range(1, 41)])
        self.assertEqual((table.files[0].low, table.files[0].high), (-40, -1))

    def test_files_without_a_later_column_are_compacted(self) -> None:
        table = self.lake.ensure_table(NOTES)
        self.land(table, [1])
        table = self.lake.ensure_table(WIDER)
        new = [{"stream_id": 2, "row_no": 0, "writer": "w", "text": "b", "tags": ["x", None]}]
        file = self.write(table, new)
        table.append([file], table.position, table.position.advance("w", 2))
        compact(self.spark, self.lake, "notes", full=True)
        table.refresh()
        (rows,) = self.rows(table)
        self.assertEqual([row[4] for row in rows], [None, None, ["x", None]])

    def test_a_death_before_the_commit_leaves_the_table_unchanged(self) -> None:
        table = self.lake.ensure_table(NOTES)
        for token in range(1, 5):
            self.land(table, [token])
        before, files = self.all_rows(table), table.files

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        self.patch(StreamTable, "rewrite", die)
        self.assertRaises(KeyboardInterrupt, compact, self.spark, self.lake, "notes")
        table.refresh()
        self.assertEqual(table.files, files)
        self.assertEqual(len(list(table.path.glob("*.parquet"))), 5)
        self.assertEqual(table.remove_unused(retention_hours=0), 1)
        self.assertEqual(self.all_rows(table), before)

    def test_a_file_that_lacks_rows_is_not_replaced(self) -> None:
        table = self.lake.ensure_table(NOTES)
        for token in range(1, 4):
            self.land(table, [token])
        self.land(table, [4])
        last = table.path_of(table.files[-1])
        pq.write_table(pq.read_table(last).slice(1), last)
        files = table.files
        with self.assertRaises(Exception) as caught:
            compact(self.spark, self.lake, "notes")
        self.assertIn("8 rows together, and 7 were read", str(caught.exception))
        table.refresh()
        self.assertEqual(table.files, files)

    def test_one_of_two_concurrent_compactions_fails(self) -> None:
        """The later one finds that the files are gone, and changes nothing."""
        table = self.lake.ensure_table(NOTES)
        for token in range(1, 5):
            self.land(table, [token])
        before = self.all_rows(table)
        real = StreamTable.rewrite

        def overtaken(mine: StreamTable, *args: Any, **more: Any) -> None:
            self.patch(StreamTable, "rewrite", real)
            compact(self.spark, self.lake, "notes")
            real(mine, *args, **more)

        self.patch(StreamTable, "rewrite", overtaken)
        self.assertRaises(LakeFailed, compact, self.spark, self.lake, "notes")
        table.refresh()
        self.assertEqual(self.all_rows(table), before)


def _text(token: Token) -> str:
    # Random, so that compression does not shrink it.
    return random.Random(token).randbytes(30).hex()
