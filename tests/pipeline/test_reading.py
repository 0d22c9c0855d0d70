"""Reading chunks of a real database as Arrow batches."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

import msgspec
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg2 import extensions
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.sql import Scan
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import ScanChunk, plan_chunks
from synrepl.pipeline.source.reading import chunk_reader
from synrepl.pipeline.source.reading.chunk_reader import (
    ChunkReader,
    IdleConnection,
    ReadElsewhere,
    ReadFailed,
    ReadingAway,
)
from synrepl.pipeline.source.reading.schema import arrow_schema
from synrepl.pipeline.source.where.grammar import parse_where
from synrepl.positions.vector import PositionVector
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.storage.store import Draft, Trimmed
from synrepl.streams.columns import ColumnType
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.backfill import BACKFILL
from tests.driver.embedded_server import existing_data_dir
from tests.storage.postgres import PostgresCase
from tests.storage.samples import EVERYTHING, rows_of

#: Schema of the rows that :func:`made_up` selects.
MADE_UP = pa.schema([pa.field("stream_id", pa.int64(), False), pa.field("text", pa.string())])


def made_up(sql: str, upto: int = 10**9) -> ScanChunk:
    """A chunk with the rows of an arbitrary statement."""
    scan = Scan(sql, False)
    return ScanChunk("notes", 0, upto, scan, None, scan, "SELECT true", None, 0)


#: Much larger than the buffers of a connection.
LONG = made_up("SELECT n, repeat('x', 1000) FROM generate_series(1, 200000) AS n ORDER BY n")


_KEPT = "FROM pg_stat_activity WHERE application_name = 'kept'"


class ReadingCase(PostgresCase):
    """A database with a few streams, a source and a reader."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(lambda: self.source.close())
        self.reader = ChunkReader(self.dsn, "reader")

    def chunk(self, stream: str, end: int = 10_000, after: int = 0, where: str = "") -> ScanChunk:
        """A single chunk with a stream's range."""
        names = {stream: [column.name for column in self.source.stream_schema(stream).columns]}
        start, upto = {stream: PositionVector({}, after)}, {stream: PositionVector({}, end)}
        (made,) = plan_chunks(
            self.source, start, upto, names, 10**9, parse_where(where) if where else None
        )
        return made

    def schema(self, stream: str) -> pa.Schema:
        return arrow_schema(self.source.stream_schema(stream).columns)

    def read(self, chunk: ScanChunk) -> list[dict[str, Any]]:
        schema = self.schema(chunk.stream)
        batches = list(self.reader.batches(chunk, schema))
        for batch in batches:
            self.assertTrue(batch.schema.equals(schema))
            batch.validate(full=True)
        found: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
        return found


class ReadingValues(ReadingCase):
    """Rows are read as they were written."""

    async def check(self, stream: Stream) -> None:
        lease = await self.process("one").store.open_writer("w1", [stream])
        written = rows_of(stream, 40)
        for some in (written[:25], written[25:]):
            await lease.append(stream, [Draft([some])], 0)
        found = self.read(self.chunk(stream.name))
        sign = -1 if stream.counts_down else 1
        self.assertEqual(
            [(row.pop("stream_id"), row.pop("row_no"), row.pop("writer")) for row in found],
            [(sign, n, "w1") for n in range(25)]
            + [(2 * sign, n, "w1") for n in range(len(written) - 25)],
        )
        codec = RowCodec(stream)
        self.assertEqual([self.as_row(stream, codec, row) for row in found], written)

    def as_row(self, stream: Stream, codec: RowCodec, found: dict[str, Any]) -> Row:
        cells = []
        for column in self.source.stream_schema(stream.name).cells:
            value = found[column.name]
            if column.type is ColumnType.JSON and value is not None:
                value = msgspec.json.decode(value)
            cells.append(value)
        return codec.from_cells(cells)

    async def test_every_type_with_every_awkward_value_is_read(self) -> None:
        await self.check(EVERYTHING)

    async def test_a_descending_stream_is_read(self) -> None:
        await self.check(BACKFILL)

    def test_values_that_json_cannot_express_are_read(self) -> None:
        self.sql(
            "INSERT INTO synrepl.everything VALUES (1, 0, 'w', '', 0, true, 'NaN', '1', '{NULL,a}',"
            " NULL, NULL, NULL, '-Infinity', NULL, NULL)"
        )
        (row,) = self.read(self.chunk("everything"))
        self.assertTrue(math.isnan(row["real"]))
        self.assertEqual((row["real_or_null"], row["list"]), (-math.inf, [None, "a"]))

    def test_texts_of_several_megabytes_are_read(self) -> None:
        self.sql("INSERT INTO synrepl.notes VALUES (1, 0, 'w', repeat('é', 8000000), NULL)")
        (row,) = self.read(self.chunk("notes"))
        self.assertEqual(row["text"], "é" * 8_000_000)

    def test_an_empty_stream_gives_no_rows(self) -> None:
        self.assertEqual(self.read(self.chunk("notes")), [])

    def test_a_condition_limits_the_rows(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'w', '\\%s''', n FROM generate_series(1, 9) n"
        )
        found = self.read(self.chunk("notes", where="text = '\\%s''' AND n > 7 OR n = 2"))
        self.assertEqual([row["n"] for row in found], [2, 8, 9])

    def test_batches_are_bounded(self) -> None:
        batches = list(islice(self.reader.batches(LONG, MADE_UP), 3))
        for batch in batches:
            self.assertLess(batch.nbytes, 1.1 * chunk_reader.BATCH_BYTES)
            self.assertGreater(batch.nbytes, 0.5 * chunk_reader.BATCH_BYTES)


class IdleConnectionTest(PostgresCase):
    """The connection that a Spark worker keeps."""

    async def test_only_a_live_connection_with_the_same_conninfo_is_reused(self) -> None:
        idle = IdleConnection()
        self.addCleanup(idle.close)
        one, two = self.connection(), self.connection()
        idle.keep("here", one)
        self.assertIs(idle.take("here"), one)
        self.assertIsNone(idle.take("here"))
        idle.keep("here", one)
        idle.keep("here", two)
        await self.until(lambda: self.open_ones() == 1)
        self.assertIsNone(idle.take("there"))
        await self.until(lambda: self.open_ones() == 0)
        idle.keep("here", self.connection())
        self.sql(f"SELECT pg_terminate_backend(pid, 10000) {_KEPT}")
        self.assertIsNone(idle.take("here"))

    def connection(self) -> dbapi.Connection:
        return dbapi.connect(f"{self.dsn}?application_name=kept", autocommit=True)

    def open_ones(self) -> int:
        return int(self.sql(f"SELECT count(*) {_KEPT}"))


class ReadingFailures(ReadingCase):
    """Failures have specific errors."""

    def failure(self, kind: type[Any], batches: Iterator[Any]) -> Any:
        return self.assertRaises(kind, list, batches)

    def test_a_value_that_does_not_fit_is_a_bad_value(self) -> None:
        chunk = made_up(
            "SELECT n, CAST(CAST(CASE n WHEN 150000 THEN '{bad' ELSE '{}' END AS json) AS text)"
            " FROM generate_series(1, 200000) AS n"
        )
        error = self.failure(ReadFailed, self.reader.batches(chunk, MADE_UP))
        self.assertTrue(error.is_bad_value)
        self.assertEqual(
            str(error),
            "tokens 0 to 1000000000 of stream 'notes' could not be read (SQLSTATE 22P02):"
            ' invalid input syntax for type json: Token "bad" is invalid.',
        )

    def test_a_refused_statement_is_no_bad_value(self) -> None:
        error = self.failure(ReadFailed, self.reader.batches(made_up("SELECT a FROM b"), MADE_UP))
        self.assertFalse(error.is_bad_value)
        self.assertEqual(error.facts["sqlstate"], "42P01")
        self.assertNotIn("SELECT", str(error))

    def test_a_statement_timeout_is_a_failed_read(self) -> None:
        outside = self.connect()
        change = f"ALTER DATABASE {self.sql('SELECT current_database()')}"
        # Long enough to connect. It is reset, so that it does not affect the cleanup of the database.
        self.sql(f"{change} SET statement_timeout = 1000", on=outside)
        self.addCleanup(self.sql, f"{change} RESET statement_timeout", on=outside)
        chunk = made_up("SELECT 1, CAST(pg_sleep(60) AS text)")
        error = self.failure(ReadFailed, self.reader.batches(chunk, MADE_UP))
        self.assertEqual(error.facts["sqlstate"], "57014")

    def test_a_terminated_connection_is_an_unreachable_database(self) -> None:
        batches = self.reader.batches(LONG, MADE_UP)
        next(batches)
        ended = self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'synrepl reader'"
        )
        self.assertTrue(ended)
        self.failure(ReadingAway, batches)

    def test_a_wrong_password_is_not_shown(self) -> None:
        parts = {**extensions.parse_dsn(self.dsn), "password": "hunter2"}
        reader = ChunkReader(extensions.make_dsn(**parts), "reader")
        error = self.failure(ReadingAway, reader.batches(LONG, MADE_UP))
        self.assertIn("password authentication failed", str(error))
        self.assertNotIn("hunter2", str(error))

    def test_a_reader_that_stops_leaves_no_connection(self) -> None:
        batches: Any = self.reader.batches(LONG, MADE_UP)
        next(batches)
        batches.close()
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'synrepl reader'"
        connection = self.connect()
        while self.sql(left, on=connection):  # up to the time limit of the test
            pass


class TrimmingCase(ReadingCase):
    """A stream whose facts are trimmed."""

    def fill(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'w', repeat('x', 1000), n"
            " FROM generate_series(1, 20000) n"
        )

    def trim(self, upto: int) -> None:
        self.sql("UPDATE synrepl._streams SET trimmed = %s WHERE stream = 'notes'", upto)
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= %s", upto)


class ReadingTrimmedChunks(TrimmingCase):
    """Facts that are trimmed during a read must not look as if they had never existed."""

    def test_facts_trimmed_before_the_read_are_noticed(self) -> None:
        self.fill()
        chunk = self.chunk("notes", 20_000)
        self.trim(10)
        error = self.assertRaises(Trimmed, self.read, chunk)
        self.assertEqual((error.facts["trimmed"], error.facts["after"]), (10, 0))

    def test_facts_trimmed_during_the_read_are_noticed(self) -> None:
        self.fill()
        batches = self.reader.batches(self.chunk("notes", 20_000), self.schema("notes"))
        next(batches)
        self.trim(10)
        self.assertRaises(Trimmed, list, batches)

    def test_facts_trimmed_below_the_chunk_do_not_matter(self) -> None:
        self.fill()
        self.trim(10)
        self.assertEqual(len(self.read(self.chunk("notes", 20_000, after=10))), 19_990)


class ReadingChunksTogether(TrimmingCase):
    """Several chunks are read as if they were one."""

    def parts(self, *ends: int) -> list[ScanChunk]:
        whole = self.chunk("notes", ends[-1])
        return [whole.within(after, upto) for after, upto in pairwise((0, *ends))]

    def test_they_are_checked_once(self) -> None:
        self.fill()
        asked: list[str] = []
        real = chunk_reader.select_values

        def values(connection: Any, sql: str) -> Any:
            asked.append(sql)
            return real(connection, sql)

        self.patch(chunk_reader, "select_values", values)
        one, two, three = self.parts(5, 10, 15)
        with self.reader.reading_together():
            self.assertEqual([len(self.read(part)) for part in (two, one, three)], [5, 5, 5])
            self.assertEqual(asked, [one.identity_sql])
        self.assertEqual(asked, [one.identity_sql, f"SELECT ({one.trimmed_sql})"])

    def test_facts_trimmed_after_the_read_of_a_chunk_are_noticed_at_the_end(self) -> None:
        self.fill()
        one, two = self.parts(10, 20)
        with self.assertRaises(Trimmed) as caught, self.reader.reading_together():
            self.read(two)
            self.read(one)
            self.trim(3)
        self.assertEqual(
            (caught.exception.facts["trimmed"], caught.exception.facts["after"]), (3, 0)
        )

    def test_another_database_is_noticed(self) -> None:
        self.fill()
        (one,) = self.parts(10)
        elsewhere = msgspec.structs.replace(one, identity_sql="SELECT false")
        with self.assertRaises(ReadElsewhere), self.reader.reading_together():
            self.read(one)
            self.read(elsewhere)

    def test_no_connection_is_left(self) -> None:
        self.fill()
        with self.reader.reading_together():
            self.read(self.parts(10)[0])
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'synrepl reader'"
        connection = self.connect()
        while self.sql(left, on=connection):  # up to the time limit of the test
            pass


class ReadingFromACrashingServer(SynchronousTestCase):
    """A server that dies during a read."""

    def after_a_kill(self, work: Callable[[PostgresServer], None]) -> None:
        server = PostgresServer(existing_data_dir(), fsync=False)
        server.start()
        self.addCleanup(server.stop)
        work(server)

    def test_a_killed_server_is_an_unreachable_database(self) -> None:
        def work(server: PostgresServer) -> None:
            reader = ChunkReader(server.dsn, "reader")
            batches = reader.batches(LONG, MADE_UP)
            next(batches)
            assert server.child is not None
            server.child.end([(signal.SIGKILL, 30.0)])
            self.assertRaises(ReadingAway, list, batches)
            error = self.assertRaises(ReadingAway, list, reader.batches(LONG, MADE_UP))
            self.assertIn("Connection refused", str(error))
            self.assertNotIn(extensions.parse_dsn(server.dsn)["password"], str(error))
            server.restart()
            self.assertEqual(
                sum(batch.num_rows for batch in reader.batches(LONG, MADE_UP)), 200_000
            )

        self.after_a_kill(work)
