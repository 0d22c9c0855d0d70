"""synrepl's own tables as a source, on a real database."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from typing import Any

import psycopg2
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.database.open import NoStreamTables, open_source_database
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase
from synrepl.pipeline.source.plan.chunks import limit_rows, plan_chunks
from synrepl.pipeline.source.writer_ranges import WriterRanges
from synrepl.positions.vector import PositionVector
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.storage.tables import ensure_tables
from synrepl.streams.columns import columns
from synrepl.streams.declared import declare
from synrepl.testing.postgres import fresh_database
from tests.driver.embedded_server import existing_data_dir
from tests.storage.postgres import PostgresCase
from tests.storage.samples import NOTES, STREAMS


class OwnCase(PostgresCase):
    """A test case with a source, and writes by plain SQL."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.source = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(lambda: self.source.close())

    def append(self, text: str, writer: str = "sql", on: Any = None, rows: int = 1) -> int:
        """Append a fact to :data:`NOTES`."""
        made = ",".join([f'{{"text": "{text}"}}'] * rows)
        return int(self.sql("SELECT synrepl.append('notes', %s, %s)", f"[{made}]", writer, on=on))

    def transaction(self) -> psycopg2.extensions.connection:
        connection = psycopg2.connect(self.dsn)
        self.addCleanup(connection.close)
        return connection

    def bound(self) -> PositionVector:
        return self.source.observe(["notes"])["notes"].bound


class StreamSchemas(OwnCase):
    """Streams and columns, as read from the tables."""

    def test_every_stream_and_every_type_is_found(self) -> None:
        database = BlockingDatabase(self.dsn, "tests")
        kept = [stream for stream in STREAMS if not stream.in_memory]
        database.run("ensure", lambda txn: ensure_tables(txn, kept))
        database.close()
        self.source.refresh()
        self.assertEqual(self.source.streams, sorted(stream.name for stream in kept))
        for stream in kept:
            stream_schema = self.source.stream_schema(stream.name)
            self.assertEqual(
                (stream_schema.cells, stream_schema.counts_down),
                (columns(stream), stream.counts_down),
            )
        # Streams with a shared sequence are observed by it.
        looked = self.source.observe(self.source.streams)
        self.assertEqual({safe.last for safe in looked.values()}, {0})

    def test_an_unknown_stream_is_refused_with_a_suggestion(self) -> None:
        for ask in (self.source.stream_schema, lambda name: self.source.observe([name])):
            error = self.assertRaises(NoSuchStream, ask, "note")
            self.assertEqual(
                str(error),
                "there is no stream 'note' in this database; did you mean 'notes'?;"
                " it has backfill, everything, notes",
            )

    def test_a_new_column_is_seen_after_a_refresh(self) -> None:
        before = self.source.stream_schema("notes").cells
        wider = declare("notes", {"text": "text", "n": "bigint?", "tags": "text[]?"})
        database = BlockingDatabase(self.dsn, "tests")
        database.run(
            "ensure", lambda txn: ensure_tables(txn, [wider, declare("new", {"a": "json"})])
        )
        database.close()
        self.assertEqual(self.source.stream_schema("notes").cells, before)
        self.source.refresh()
        self.assertEqual(self.source.stream_schema("notes").cells, columns(wider))
        self.assertIn("new", self.source.streams)

    def test_a_database_with_synrepl_tables_is_opened_as_its_own(self) -> None:
        source = open_source_database(self.dsn, "tests")
        self.assertIsInstance(source, SynreplDatabase)
        self.assertEqual(source.server, self.source.server)
        source.close()

    async def test_a_database_with_neither_kind_of_tables_is_refused(self) -> None:
        dsn = await fresh_database(self)
        error = self.assertRaises(NoStreamTables, open_source_database, dsn, "tests")
        self.assertIn("has neither synrepl's tables nor those of a Synapse", str(error))
        self.assertNotIn(psycopg2.extensions.parse_dsn(dsn)["password"], str(error))


class EstimatesAndCuts(OwnCase):
    """Estimating rows and dividing ranges."""

    def fill(self, facts: int, analyse: bool) -> WriterRanges:
        self.sql(
            "INSERT INTO synrepl.notes (stream_id, row_no, writer, text)"
            " SELECT fact, row, CASE WHEN fact %% 2 = 0 THEN 'a' ELSE 'b' END, ''"
            " FROM generate_series(1, %s) AS fact, generate_series(0, 1) AS row",
            facts,
        )
        self.sql("ALTER TABLE synrepl.notes SET (autovacuum_enabled = off)")
        if analyse:
            self.sql("ANALYZE synrepl.notes")
        return WriterRanges.between(PositionVector(), PositionVector({}, facts))

    def test_rows_are_estimated_from_statistics(self) -> None:
        ranges = self.fill(10_000, analyse=True)
        self.assertApproximates(self.source.estimate_rows("notes", ranges), 20_000, 2_000)
        half = WriterRanges.between(PositionVector({}, 5_000), ranges.end)
        self.assertApproximates(self.source.estimate_rows("notes", half), 10_000, 2_000)

    def test_without_statistics_one_row_per_token_is_estimated(self) -> None:
        self.assertEqual(self.source.estimate_rows("notes", self.fill(100, analyse=False)), 100)

    def counted(self, stream: str, ranges: WriterRanges, *limits: int) -> list[tuple[Any, ...]]:
        return [tuple(self.source.count_rows({stream: ranges}, each)[stream]) for each in limits]

    def test_rows_of_a_range_are_counted_up_to_a_limit(self) -> None:
        ranges = self.fill(10, analyse=False)
        found = self.counted("notes", ranges, 1, 2, 3, 20, 21)
        self.assertEqual(found, [(1, 1), (2, 1), (3, 2), (20, 10), (20, 10)])
        only_a = WriterRanges.between(PositionVector({}, 4), PositionVector({"a": 10}, 4))
        found = self.counted("notes", only_a, 1, 3, 6, 7)
        self.assertEqual(found, [(1, 6), (3, 8), (6, 10), (6, 10)])
        nothing = WriterRanges.between(PositionVector({}, 10), PositionVector({}, 12))
        self.assertEqual(self.counted("notes", nothing, 5), [(0, None)])

    def test_rows_of_several_streams_are_counted_in_one_transaction(self) -> None:
        ranges = self.fill(3, analyse=False)
        runs = []
        real = BlockingDatabase.run

        def counted(database: BlockingDatabase, name: str, *args: Any, **options: Any) -> Any:
            runs.append(name)
            return real(database, name, *args, **options)

        self.patch(BlockingDatabase, "run", counted)
        found = self.source.count_rows({"notes": ranges, "backfill": ranges}, 4)
        self.assertEqual(found, {"notes": (4, 2), "backfill": (0, None)})
        self.assertEqual(runs, ["count ahead"])

    def test_where_rows_were_counted_nothing_is_estimated(self) -> None:
        ranges = self.fill(3, analyse=False)
        runs: list[str] = []
        self.patch(BlockingDatabase, "run", lambda database, name, *_, **__: runs.append(name))
        chunks = plan_chunks(
            self.source, {}, {"notes": ranges.end}, {"notes": ["stream_id"]}, 6, counts={"notes": 6}
        )
        self.assertEqual([(chunk.tokens, chunk.rows) for chunk in chunks], [((0, 3), 6)])
        self.assertEqual(runs, [])

    def test_rows_of_a_descending_stream_are_counted(self) -> None:
        self.sql(
            "INSERT INTO synrepl.backfill SELECT (r).* FROM (SELECT jsonb_populate_record("
            "NULL::synrepl.backfill, jsonb_build_object('stream_id', -n, 'row_no', 0, 'writer', 'w',"
            " 'event_id', 'e', 'room_id', 'r', 'type', 't')) AS r FROM generate_series(1, 5) n) AS rs"
        )
        ranges = WriterRanges.between(PositionVector({}, 1), PositionVector({}, 4))
        found = self.counted("backfill", ranges, 1, 3, 4)
        self.assertEqual(found, [(1, 2), (3, 4), (3, 4)])

    def test_bounded_never_splits_a_fact_and_reaches_the_end(self) -> None:
        self.fill(10, analyse=False)
        end, at, stops = {"notes": PositionVector({"a": 10}, 9)}, {}, []
        while at != end:
            at = limit_rows(self.source, at, end, 5).ends
            stops.append(at["notes"].highest)
        self.assertEqual(stops, [3, 6, 9, 10])

    def test_chunks_cover_the_range_whatever_their_size(self) -> None:
        self.fill(500, analyse=True)
        names = ["stream_id", "row_no", "writer"]
        start, end = (
            {"notes": PositionVector({"a": 40}, 10)},
            {"notes": PositionVector({"a": 400}, 333)},
        )
        whole = {
            (fact, row, "a" if fact % 2 == 0 else "b")
            for fact in range(1, 501)
            for row in (0, 1)
            if (40 < fact <= 400 if fact % 2 == 0 else 10 < fact <= 333)
        }
        for rows in (10, 100, 10_000):
            found: list[tuple[int, int, str]] = []
            made = list(plan_chunks(self.source, start, end, {"notes": names}, rows))
            with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
                for chunk in made:
                    cursor.execute(chunk.sql)
                    found += cursor.fetchall()
            self.assertEqual(len(found), len(whole))
            self.assertEqual(set(found), whole)
            self.assertEqual(found, sorted(found))
        self.assertEqual(len(made), 3)

    def test_the_index_gives_the_order(self) -> None:
        self.sql(
            "INSERT INTO synrepl.notes SELECT n, 0, 'sql', 'x', n FROM generate_series(1, 5000) n"
        )
        self.sql("ANALYZE synrepl.notes")
        stream_schema = self.source.stream_schema("notes")
        names = [column.name for column in stream_schema.columns]
        (chunk,) = plan_chunks(
            self.source, {}, {"notes": PositionVector({}, 500)}, {"notes": names}
        )
        reading = self.transaction()
        self.sql("SET enable_seqscan = off", on=reading)
        self.sql("SET enable_bitmapscan = off", on=reading)  # which would be faster for so few rows
        for scan in (chunk, chunk.as_text()):
            plan = json.dumps(self.sql(f"EXPLAIN (FORMAT JSON) {scan.sql}", on=reading))
            self.assertIn("Index Scan", plan)
            self.assertNotIn("Sort", plan)


class SafeBounds(OwnCase):
    """Observations while writers write, hold tokens and die (R5)."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        for writer in ("w1", "w2", "w3"):
            self.sql("SELECT synrepl.add_writer('notes', %s)", writer)

    def test_the_bound_waits_for_writers_that_commit_out_of_order(self) -> None:
        one, two, three = (self.transaction() for _ in range(3))
        self.append("first")
        self.assertEqual(self.bound().linear, 1)
        self.append("a", "w1", one)
        self.append("b", "w2", two)
        self.append("c", "w3", three)
        self.append("d", "w2", two)  # tokens 2 to 5
        bound = self.bound()
        self.assertEqual((bound.linear, bound["w1"], bound["w2"], bound["sql"]), (1, 1, 1, 5))
        two.commit()
        bound = self.bound()
        self.assertEqual((bound.linear, bound["w1"], bound["w2"], bound["w3"]), (1, 1, 5, 1))
        three.rollback()
        self.append("e", "w3", three)
        bound = self.bound()
        # It took its tokens after the last observation, so everything up to that is settled.
        self.assertEqual((bound.linear, bound["w1"], bound["w2"], bound["w3"]), (1, 1, 6, 5))
        one.commit()
        self.assertEqual(self.bound().linear, 5)
        three.commit()
        safe = self.source.observe(["notes"])["notes"]
        self.assertEqual((safe.bound.linear, safe.is_complete), (6, True))

    def test_an_open_transaction_holds_the_bound_for_as_long_as_it_is_open(self) -> None:
        lasting = self.transaction()
        held = self.append("late", "w1", lasting)
        for _ in range(30):
            self.append("x", "w2")
            bound = self.bound()
            self.assertEqual((bound.linear, bound["w1"]), (held - 1, held - 1))
            self.assertFalse(self.source.observe(["notes"])["notes"].is_complete)
        lasting.commit()
        self.assertEqual(self.bound().linear, 31)

    async def test_a_writer_that_died_holds_the_bound_until_it_is_fenced(self) -> None:
        process = self.process("doomed")
        lease = await process.store.open_writer("doomed", [NOTES])
        (held,) = await lease.reserve(NOTES, 1, 0)
        self.append("above")
        self.assertEqual(self.bound().linear, held - 1)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", process.session_of(lease).backend_pid)
        bound = self.bound()
        self.assertEqual((bound.linear, bound["sql"]), (held - 1, held + 1))
        self.assertTrue(await self.process("other").store.fence(NOTES, "doomed"))
        self.assertEqual(self.bound().linear, held + 1)

    async def test_recorded_positions_are_safe_at_the_first_observation(self) -> None:
        self.append("a")
        self.append("b", "w1")
        await self.process("master").store.record_positions(NOTES, 1, {"w1": 2})
        held = self.transaction()
        self.append("c", "w1", held)
        fresh = SynreplDatabase(BlockingDatabase(self.dsn, "tests"))
        self.addCleanup(fresh.close)
        bound = fresh.observe(["notes"])["notes"].bound
        self.assertEqual((bound.linear, bound["w1"], bound["sql"]), (2, 2, 3))


class RestartedServer(SynchronousTestCase):
    """A server that is restarted."""

    def test_a_restarted_server_has_the_same_identity(self) -> None:
        server = PostgresServer(existing_data_dir(), fsync=False)
        server.start()
        self.addCleanup(server.stop)
        with BlockingDatabase(server.dsn, "tests") as database:
            database.run("schema", _few_tables)
            before = SynreplDatabase(database).server
            assert server.child is not None
            server.child.end([(signal.SIGINT, 30.0)])
            server.restart()
            source = SynreplDatabase(database)
            self.assertEqual(source.server, before)
            database.run("other", lambda txn: txn.execute("DROP SCHEMA synrepl CASCADE"))


def _few_tables(txn: Any) -> None:
    txn.execute("DROP SCHEMA IF EXISTS synrepl CASCADE")  # the folder has been used before
    txn.execute("CREATE SCHEMA synrepl")
    txn.execute("CREATE TABLE synrepl._streams (stream text, counts_down bool, sequence text)")
