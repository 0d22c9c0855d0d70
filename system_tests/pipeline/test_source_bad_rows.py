"""Rows with values that do not fit their columns, as seen by queries."""

from __future__ import annotations

import json
from contextlib import closing

import psycopg2

from synrepl.pipeline.source.reading.chunk_reader import ReadFailed
from system_tests.pipeline.source_case import SourceCase
from tests.storage.foreign_databases import foreign_database


class BadRows(SourceCase):
    """Receipts of a Synapse, some with JSON that is none."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.dsn = await foreign_database("1.163.2", self)
        self.ids = [int(row[0]) for row in self.rows("SELECT stream_id FROM receipts_linearized")]
        self.bad = {self.ids[0], self.ids[len(self.ids) // 2], self.ids[-1]}
        self.spoil(self.bad)

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        with closing(psycopg2.connect(self.dsn)) as other, other.cursor() as cursor:
            cursor.execute(f"{statement} ORDER BY 1")
            return list(cursor.fetchall())

    def spoil(self, ids: set[int]) -> None:
        """Make the JSON of some receipts invalid."""
        with closing(psycopg2.connect(self.dsn)) as other, other.cursor() as cursor:
            cursor.execute(
                "UPDATE receipts_linearized SET data = '{bad' WHERE stream_id = ANY (%s)",
                ([*ids],),
            )
            other.commit()

    def test_a_read_fails_with_the_reason(self) -> None:
        error = self.ours(self.read("receipts").collect)
        self.assertIsInstance(error, ReadFailed)
        self.assertIn("invalid input syntax for type json", str(error))

    def test_a_query_gets_bad_rows_beside_the_others(self) -> None:
        self.query("receipts", on_bad_rows="keep", max_rows_per_batch=len(self.ids) // 3)
        rows = {row.stream_id: row for row in self.landed().collect()}
        self.assertEqual(sorted(rows), self.ids)
        self.assertEqual(self.landed().count(), len(self.ids))
        for stream_id, row in rows.items():
            if stream_id in self.bad:
                self.assertIn("invalid input syntax for type json", row._bad_reason)
                self.assertEqual(json.loads(row._bad_cells)["data"], "{bad")
                self.assertIsNone(row.room_id)
            else:
                self.assertEqual((row._bad_reason, row._bad_cells), (None, None))
                self.assertTrue(row.room_id.startswith("!"))

    def test_a_batch_gets_them_without_their_place_too(self) -> None:
        frame = self.read("receipts", on_bad_rows="keep", columns="data,room_id")
        self.assertEqual(frame.columns, ["data", "room_id", "_bad_reason", "_bad_cells"])
        rows = frame.collect()
        self.assertEqual(len(rows), len(self.ids))
        bad = [int(json.loads(row._bad_cells)["stream_id"]) for row in rows if row._bad_reason]
        self.assertEqual(bad, sorted(self.bad))
