"""Merging files into one ordered sequence of rows."""

from __future__ import annotations

import os
import random
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from twisted.trial.unittest import TestCase

from synrepl.pipeline.lake.compact.compact import MergeInput, merge_files
from synrepl.pipeline.source.database.stream_schema import HEAD
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.streams.columns import Column, ColumnType

TEXT = Column("text", ColumnType.TEXT, True)
TAGS = Column("tags", ColumnType.TEXT_ARRAY, True)
SCHEMA = arrow_schema((*HEAD, TEXT, TAGS))

#: stream_id, row_no, writer, text, tags
Row = tuple[int, int, str, str | None, list[str | None] | None]


def row(id_: int, number: int = 0, writer: str = "w") -> Row:
    return (id_, number, writer, f"{id_}/{number}", [str(id_), None])


class MergeFiles(TestCase):
    def setUp(self) -> None:
        self.folder = Path(mkdtemp(dir=self.mktemp_parent()))

    def mktemp_parent(self) -> str:
        parent = Path(self.mktemp())
        parent.mkdir(parents=True)
        return str(parent)

    def source(self, rows: list[Row], schema: pa.Schema = SCHEMA) -> MergeInput:
        columns: list[Any] = [
            pa.array([each[at] for each in rows], schema.field(at).type)
            for at in range(len(schema))
        ]
        path = self.folder / f"{len(list(self.folder.iterdir()))}.parquet"
        pq.write_table(pa.table(columns, schema=schema), path)
        return MergeInput(path, min(abs(each[0]) for each in rows))

    def rows(self, sources: list[MergeInput], batch_rows: int = 7) -> list[Row]:
        found: list[Row] = []
        for batch in merge_files(sources, SCHEMA, batch_rows):
            self.assertTrue(batch.schema.equals(SCHEMA))
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return found

    def test_files_that_do_not_overlap_are_concatenated(self) -> None:
        rows = [row(id_) for id_ in range(1, 40)]
        sources = [self.source(rows[20:]), self.source(rows[:20])]
        self.assertEqual(self.rows(sources), rows)

    def test_overlapping_files_of_several_writers_are_merged_in_order(self) -> None:
        chance = random.Random(1)
        rows = [row(id_, number) for id_ in range(1, 300) for number in range(id_ % 4 * 5)]
        for batch_rows in (1, 3, 8, 1000):
            files: list[list[Row]] = [[], [], [], []]
            for each in rows:
                at = min(len(files) - 1, max(0, each[0] // 75 + chance.randint(-1, 1)))
                files[at].append(each)
            sources = [self.source(each) for each in files]
            self.assertEqual(self.rows(sources, batch_rows), rows)

    def test_one_fact_in_several_files_and_batches(self) -> None:
        rows = [row(5, number) for number in range(50)]
        sources = [self.source(rows[1::2]), self.source(rows[::2])]
        self.assertEqual(self.rows(sources, 3), rows)

    def test_descending_files_are_merged_in_order(self) -> None:
        rows = [row(-token) for token in range(1, 60)]
        sources = [self.source(rows[25:]), self.source(rows[:30:2]), self.source(rows[1:25:2])]
        expected = sorted([*rows[25:], *rows[:30:2], *rows[1:25:2]], key=lambda each: -each[0])
        self.assertEqual(self.rows(sources), expected)

    def test_rows_out_of_order_are_all_there(self) -> None:
        rows = [row(id_) for id_ in range(1, 100)]
        mixed = random.Random(2).sample(rows, len(rows))
        sources = [self.source(mixed[:50]), self.source(mixed[50:])]
        self.assertEqual(sorted(self.rows(sources)), rows)

    def test_a_column_that_a_file_lacks_is_null(self) -> None:
        old = self.source([row(1), row(2)], arrow_schema((*HEAD, TEXT)))
        new = self.source([row(3)])
        self.assertEqual(self.rows([old, new]), [(*row(1)[:4], None), (*row(2)[:4], None), row(3)])

    def test_only_overlapping_files_are_open(self) -> None:
        sources = [
            self.source([row(id_) for id_ in range(at * 10, at * 10 + 12)]) for at in range(1, 40)
        ]
        most = 0
        for _ in merge_files(sources, SCHEMA, 4):
            links = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
            paths = [os.path.realpath(each) for each in links if os.path.exists(each)]
            most = max(most, sum(each.startswith(str(self.folder.resolve())) for each in paths))
        self.assertGreater(most, 0)
        self.assertLessEqual(most, 3)
