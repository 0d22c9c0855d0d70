"""The batch reader without Spark: what it plans, and the rows that it reads."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import psycopg2
import pyarrow as pa

from synrepl.pipeline.datasource import SynreplDataSource
from synrepl.pipeline.source.reading.chunk_reader import ReadFailed
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PostgresCase


class Readers(PostgresCase):
    """Readers as Spark makes them."""

    def read(self, stream: str, **options: object) -> tuple[list[dict[str, Any]], int]:
        """The rows, and the number of partitions."""
        given = {"database": self.dsn, "stream": stream, **{k: str(v) for k, v in options.items()}}
        source = SynreplDataSource(given)
        reader = source.reader(source.schema())
        parts = reader.partitions()
        batches = [batch for part in parts for batch in reader.read(part)]
        for batch in batches:
            self.assertIsInstance(batch, pa.RecordBatch)
        return [row for batch in batches for row in batch.to_pylist()], len(parts)

    def fill(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'sql', 'n' || n, n FROM generate_series(1, 40) n"
        )
        self.sql("SELECT setval('synrepl._notes_seq', 40)")
        self.sql("ANALYZE synrepl.notes")

    def test_a_condition_limits_rows_and_partitions(self) -> None:
        self.fill()
        for where, rows, parts in [
            ("n BETWEEN 3 AND 5 OR text = 'n9'", [3, 4, 5, 9], 6),
            ("stream_id > 38", [39, 40], 1),
            ("stream_id IN (1, 20, 41)", [1, 20], 1),
            ("text LIKE 'n_'", list(range(1, 10)), 6),
            ("stream_id = 99", [], 0),
        ]:
            found, planned = self.read("notes", where=where, rows_per_partition=7)
            self.assertEqual([row["n"] for row in found], rows, where)
            self.assertEqual(planned, parts, where)

    def test_a_number_of_partitions_can_be_asked_for(self) -> None:
        self.fill()
        for partitions in (1, 4):
            found, planned = self.read("notes", partitions=partitions)
            self.assertEqual(len(found), 40)
            self.assertEqual(planned, partitions)

    def test_columns_of_a_condition_need_not_be_read(self) -> None:
        self.fill()
        found, _ = self.read("notes", where="n = 7", columns="text")
        self.assertEqual(found, [{"text": "n7"}])

    async def test_bad_rows_are_given_beside_the_others(self) -> None:
        self.dsn = await foreign_database("1.163.2", self)
        ids = [row["stream_id"] for row in self.read("receipts")[0]]
        bad = [ids[0], ids[len(ids) // 2], ids[-1]]
        with closing(psycopg2.connect(self.dsn)) as other, other.cursor() as cursor:
            cursor.execute(
                "UPDATE receipts_linearized SET data = '{bad' WHERE stream_id = ANY (%s)", (bad,)
            )
            other.commit()
        self.assertRaises(ReadFailed, self.read, "receipts")
        found, _ = self.read("receipts", on_bad_rows="keep")
        self.assertEqual([row["stream_id"] for row in found], ids)
        kept = [row for row in found if row["_bad_reason"]]
        self.assertEqual([row["stream_id"] for row in kept], bad)
        for row in kept:
            self.assertIn("invalid input syntax for type json", row["_bad_reason"])
            self.assertEqual(json.loads(row["_bad_cells"])["data"], "{bad")
            self.assertIsNone(row["room_id"])
        narrow, _ = self.read("receipts", on_bad_rows="keep", columns="data,room_id")
        self.assertEqual(len(narrow), len(ids))
        self.assertEqual(list(narrow[0]), ["data", "room_id", "_bad_reason", "_bad_cells"])
