"""Values that do not fit: their facts are quarantined, all others are read."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any
from unittest import mock

import psycopg2
import pyarrow as pa
from psycopg2 import extensions
from twisted.trial.unittest import TestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.reading import chunk_reader
from synrepl.pipeline.source.reading.chunk_reader import ChunkReader, ReadFailed
from synrepl.pipeline.source.reading.quarantine import QuarantinedRow, read_or_quarantine
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.store import Trimmed
from synrepl.testing.postgres import fresh_database
from tests.storage.foreign_databases import foreign_database
from tests.storage.postgres import PREPARED, PostgresCase, prepare

SCHEMA = pa.schema(
    [pa.field("stream_id", pa.int64(), False), pa.field("row_no", pa.int64(), False)]
)


class QuarantineByBisection(PostgresCase):
    """Text that is read as JSON, although some of it is not valid."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.quarantined: list[QuarantinedRow] = []
        self.reader = ChunkReader(self.dsn, "reader")

    def chunk(self, sign: str = "", trimmed_sql: str | None = None) -> ScanChunk:
        """A chunk of :data:`NOTES` that reads the text as JSON."""
        head = f"SELECT {sign}stream_id AS stream_id, row_no::bigint"
        rest = (
            f"FROM synrepl.notes WHERE {sign}stream_id BETWEEN \0low\0 AND \0high\0"
            " AND text::json IS NOT NULL ORDER BY notes.stream_id, notes.row_no"
        )
        raw = rest.replace(" AND text::json IS NOT NULL", "")
        return ScanChunk(
            "notes",
            0,
            10_000,
            Scan(f"{head} {rest}", bool(sign)),
            None,
            Scan(f"{head}, writer, text AS cells {raw}", bool(sign)),
            "SELECT true",
            trimmed_sql,
            0,
        )

    def fill(self, facts: int, bad: list[tuple[int, int]], rows: int = 2) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT f, r, 'w', CASE WHEN f || '.' || r = ANY (%s)"
            " THEN '{bad' ELSE '{}' END FROM generate_series(1, %s) f, generate_series(0, %s) r",
            [f"{fact}.{row}" for fact, row in bad],
            facts,
            rows - 1,
        )

    def have_rows_come_as_they_are_read(self) -> None:
        """Read by the index: a sort would fail before it returned the first row."""
        name = self.sql("SELECT current_database()")
        for method in ("enable_sort", "enable_bitmapscan"):
            self.sql(f"ALTER DATABASE {name} SET {method} = off")

    def read(self, chunk: ScanChunk) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for batch in read_or_quarantine(self.reader, chunk, SCHEMA, self.quarantined.extend):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return found

    def check(self, facts: int, bad: list[tuple[int, int]], sign: int = 1) -> None:
        self.fill(facts, bad)
        of_bad = {fact for fact, _ in bad}
        found = self.read(self.chunk("-" if sign < 0 else ""))
        every = [(sign * fact, row) for fact in range(1, facts + 1) for row in (0, 1)]
        self.assertEqual(found, [row for row in every if abs(row[0]) not in of_bad])
        self.assertEqual(
            [(row.stream_id, row.row_no) for row in self.quarantined],
            [row for row in every if abs(row[0]) in of_bad],
        )
        for row in self.quarantined:
            self.assertIn("invalid input syntax for type json", row.reason)
            self.assertEqual((row.stream, row.writer), ("notes", "w"))
        self.assertEqual([row.cells for row in self.quarantined].count("{bad"), len(bad))

    def test_a_chunk_without_bad_values_quarantines_nothing(self) -> None:
        self.check(100, [])

    def test_only_facts_with_bad_values_are_quarantined(self) -> None:
        self.check(1000, [(1, 0), (499, 1), (500, 0), (500, 1), (1000, 1)])

    def test_descending_streams_are_bisected(self) -> None:
        self.check(100, [(1, 1), (64, 0), (100, 1)], sign=-1)

    def test_all_facts_may_be_quarantined(self) -> None:
        self.check(20, [(fact, 0) for fact in range(1, 21)])

    def test_a_failure_after_some_batches_repeats_no_rows(self) -> None:
        """Batches that were returned before the failure are not read again."""
        self.have_rows_come_as_they_are_read()
        with mock.patch.object(chunk_reader, "BATCH_BYTES", 1000):
            self.check(5000, [(2500, 1), (4999, 0)])

    def test_failures_of_another_kind_are_raised(self) -> None:
        chunk = ScanChunk(
            "notes", 0, 10, Scan("SELECT a", False), None, Scan("", False), "SELECT true", None, 0
        )
        self.assertRaises(ReadFailed, self.read, chunk)
        self.assertEqual(self.quarantined, [])

    def test_facts_trimmed_meanwhile_are_noticed(self) -> None:
        """Facts may be trimmed outside the part that is read again."""
        self.fill(5000, [(2500, 0)])
        self.have_rows_come_as_they_are_read()
        with mock.patch.object(chunk_reader, "BATCH_BYTES", 1000):
            self.assertRaises(Trimmed, self.read, self.chunk(trimmed_sql="SELECT 1::bigint"))


class QuarantineOfRealStreams(TestCase):
    """Databases of real servers."""

    timeout = 60

    def read(self, dsn: str, source: Any, stream: str) -> tuple[list[Any], list[QuarantinedRow]]:
        columns = source.stream_schema(stream).columns
        names = {stream: [column.name for column in columns]}
        (chunk,) = plan_chunks(source, {}, {stream: PositionVector({}, 10_000)}, names, 10**9)
        rows: list[Any] = []
        quarantined: list[QuarantinedRow] = []
        schema = arrow_schema(columns)
        for batch in read_or_quarantine(
            ChunkReader(dsn, "tests"), chunk, schema, quarantined.extend
        ):
            rows += batch.to_pylist()
        return rows, quarantined

    async def test_a_receipt_with_invalid_json_is_quarantined(self) -> None:
        dsn = await foreign_database("1.20.1", self)
        source = SynapseDatabase(BlockingDatabase(dsn, "tests"))
        self.addCleanup(source.close)
        before, none = self.read(dsn, source, "receipts")
        self.assertEqual(none, [])
        broken = before[len(before) // 2]
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "UPDATE receipts_linearized SET data = '{\"ts\":' WHERE stream_id = %s",
                (broken["stream_id"],),
            )
        rows, quarantined = self.read(dsn, source, "receipts")
        self.assertEqual(rows, [row for row in before if row["stream_id"] != broken["stream_id"]])
        (one,) = quarantined
        self.assertEqual((one.stream_id, one.writer), (broken["stream_id"], broken["writer"]))
        cells = json.loads(one.cells)
        self.assertEqual((cells["data"], cells["user_id"]), ('{"ts":', broken["user_id"]))

    async def test_the_raw_rows_of_every_stream_are_those_that_are_read(self) -> None:
        dsn = await PREPARED.copy(self)
        source = SynreplDatabase(BlockingDatabase(dsn, "tests"))
        self.addCleanup(source.close)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "INSERT INTO synrepl.everything VALUES (1, 0, 'w', 'a\"b', 1, true, 1.5, '{\"a\":1}',"
                " '{x,\"y z\"}', NULL, NULL, NULL, NULL, NULL, NULL)"
            )
            raw = source.raw_scan("everything", all_of_it())
            cursor.execute(raw.between(all_of_it().span))
            ((stream_id, row_no, writer, cells),) = cursor.fetchall()
        self.assertEqual((stream_id, row_no, writer), (1, 0, "w"))
        self.assertEqual(
            json.loads(cells),
            {
                **dict.fromkeys(column.name for column in source.stream_schema("everything").cells),
                "text": 'a"b',
                "whole": "1",
                "flag": "true",
                "real": "1.5",
                "doc": '{"a":1}',
                "list": '{x,"y z"}',
            },
        )

    async def test_text_that_is_not_utf8_is_quarantined(self) -> None:
        template = await fresh_database(self)
        name = "bytes_of_any_kind"
        dsn = extensions.make_dsn(**{**extensions.parse_dsn(template), "dbname": name})
        with closing(psycopg2.connect(template)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII'")
        self.addCleanup(drop, template, name)
        await prepare(dsn)
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "INSERT INTO synrepl.notes SELECT n, 0, 'w', CASE n WHEN 2 THEN"
                " convert_from('\\x61ff'::bytea, 'SQL_ASCII') ELSE convert_from('\\xc3a9'::bytea, 'SQL_ASCII') END FROM generate_series(1, 3) n"
            )
        source = SynreplDatabase(BlockingDatabase(dsn, "tests"))
        self.addCleanup(source.close)
        rows, quarantined = self.read(dsn, source, "notes")
        self.assertEqual([(row["stream_id"], row["text"]) for row in rows], [(1, "é"), (3, "é")])
        (one,) = quarantined
        self.assertEqual((one.stream_id, json.loads(one.cells)["text"]), (2, "a\\377"))


def all_of_it() -> WriterRanges:
    return WriterRanges.between(PositionVector(), PositionVector({}, 100))


def drop(dsn: str, name: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name} (FORCE)")
