"""``spark.read.format("synrepl")`` over a real PostgreSQL."""

from __future__ import annotations

import json
import os
import venv
from pathlib import Path
from threading import Thread
from typing import Any

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.options import UnknownOption
from synrepl.pipeline.source.database.source_database import NoSuchStream
from synrepl.pipeline.source.database.stream_schema import NoSuchColumn
from synrepl.pipeline.source.errors import (
    EndNotSettled,
    MustReland,
    NotSettled,
    original_error,
)
from synrepl.pipeline.source.options import OptionElsewhere
from synrepl.pipeline.source.read_schema import ColumnsDisagree, OtherColumn
from synrepl.pipeline.source.reading.chunk_reader import ReadingAway
from synrepl.storage.tables import ensure_tables
from synrepl.streams.columns import ColumnType, columns
from synrepl.streams.declared import declare
from system_tests.pipeline.source_case import SourceCase
from system_tests.pipeline.spark_fixture import run_child
from tests.storage.foreign_databases import foreign_database
from tests.storage.samples import EVERYTHING, rows_of

_END_WAITING = """
    CREATE FUNCTION end_waiting() RETURNS void LANGUAGE plpgsql AS $$ BEGIN LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'synrepl pipeline' AND wait_event_type = 'Lock'
                  AND datname = current_database();
        EXIT WHEN FOUND;
        PERFORM pg_stat_clear_snapshot();
    END LOOP; END $$
"""


#: A session that a user starts, with the python3 on PATH lacking all packages.
_PLAIN_SESSION = """
    import os, sys
    from pyspark.sql import SparkSession
    from synrepl.pipeline import register
    del os.environ["PYSPARK_PYTHON"]
    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m"}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    register(spark)
    notes = spark.read.format("synrepl").option("database", sys.argv[1]).option("stream", "notes")
    print(notes.load().count())
    spark.stop()
"""


def _cells(row: Any) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in columns(EVERYTHING)}


class BatchRows(SourceCase):
    """Rows are read as they were written."""

    def test_every_type_with_every_awkward_value_is_read(self) -> None:
        facts = [[_cells(row)] for row in rows_of(EVERYTHING)]
        for rows in facts:
            # Plain SQL cannot express JSON's null, and the column is not nullable.
            rows[0]["doc"] = "" if rows[0]["doc"] is None else rows[0]["doc"]
            self.append("everything", *rows)
        self.append("everything", facts[0][0], facts[1][0])  # a fact of two rows
        frame = self.read("everything")
        found = {(row.stream_id, row.row_no): row for row in frame.collect()}
        given = {(n, 0): rows[0] for n, rows in enumerate(facts, 1)}
        given |= {(len(facts) + 1, 0): facts[0][0], (len(facts) + 1, 1): facts[1][0]}
        self.assertEqual(found.keys(), given.keys())
        for key, cells in given.items():
            self.assertEqual(found[key].writer, "sql")
            for column in columns(EVERYTHING):
                value = found[key][column.name]
                if column.type is ColumnType.JSON and value is not None:
                    value = json.loads(value)
                self.assertEqual(value, cells[column.name], (key, column.name))
        self.assertEqual(
            frame.schema.simpleString(),
            "struct<stream_id:bigint,row_no:bigint,writer:string,text:string,whole:bigint,"
            "flag:boolean,real:double,doc:string,list:array<string>,text_or_null:string,"
            "whole_or_null:bigint,flag_or_null:boolean,real_or_null:double,doc_or_null:string,"
            "list_or_null:array<string>>",
        )

    def test_partitions_have_every_row_once(self) -> None:
        self.notes(1, 40)
        self.sql("ANALYZE")
        frame = self.read(rows_per_partition=7)
        self.assertGreater(frame.rdd.getNumPartitions(), 3)
        self.assertEqual(sorted(row.n for row in frame.collect()), list(range(1, 41)))

    def test_a_descending_stream_is_read(self) -> None:
        for n in range(3):
            self.append("backfill", {"event_id": f"$e{n}", "room_id": "!r", "type": "t"})
        found = [row.stream_id for row in self.read("backfill").collect()]
        self.assertEqual(found, [-1, -2, -3])

    def test_only_the_requested_columns_are_read(self) -> None:
        self.notes(1, 2)
        self.assertEqual(
            [tuple(r) for r in self.read(columns="n, stream_id").collect()], [(1, 1), (2, 2)]
        )
        reader = self.spark.read.format("synrepl").schema("text string, n bigint")
        found = reader.options(database=self.dsn, stream="notes").load()
        self.assertEqual([tuple(row) for row in found.collect()], [("n1", 1), ("n2", 2)])

    def test_schemas_that_do_not_fit_are_refused(self) -> None:
        def load(schema: str) -> None:
            reader = self.spark.read.format("synrepl").schema(schema)
            reader.options(database=self.dsn, stream="notes").load().collect()

        self.assertIsInstance(self.ours(load, "n string"), OtherColumn)
        error = self.ours(load, "txt string")
        self.assertIsInstance(error, NoSuchColumn)
        self.assertIn("did you mean 'text'", str(error))


class BatchesOfSeveralStreams(SourceCase):
    """Several streams in one read."""

    def test_rows_have_the_name_of_their_stream(self) -> None:
        self.notes(1, 2)
        self.append("backfill", {"event_id": "$e", "room_id": "!r", "type": "t"})
        frame = self.read("notes, backfill")
        self.assertEqual(frame.columns[:5], ["stream", "stream_id", "row_no", "writer", "text"])
        found = sorted((r.stream, r.stream_id, r.n, r.event_id) for r in frame.collect())
        self.assertEqual(
            found, [("backfill", -1, None, "$e"), ("notes", 1, 1, None), ("notes", 2, 2, None)]
        )

    def test_a_star_reads_all_streams(self) -> None:
        self.notes(1, 1)
        self.assertEqual([(r.stream, r.n) for r in self.read("*").collect()], [("notes", 1)])

    def test_the_stream_column_alone_can_be_read(self) -> None:
        self.notes(1, 3)
        found = self.read("*", columns="stream").collect()
        self.assertEqual([tuple(row) for row in found], [("notes",)] * 3)

    def test_columns_with_conflicting_types_are_refused(self) -> None:
        other = declare("others", {"n": "text", "more": "text"})
        with BlockingDatabase(self.dsn, "test") as database:
            database.run("declare", lambda txn: ensure_tables(txn, [other]))
        error = self.ours(self.read, "notes,others")
        self.assertIsInstance(error, ColumnsDisagree)
        for word in ("'n'", "bigint", "'notes'", "text", "'others'"):
            self.assertIn(word, str(error))
        self.append("others", {"n": "x", "more": "y"})
        found = self.read("notes,others", columns="stream,more").collect()
        self.assertEqual([tuple(row) for row in found], [("others", "y")])


class BatchEnds(SourceCase):
    """Where a read begins and ends."""

    def test_a_read_between_two_positions(self) -> None:
        self.notes(1, 9)
        found = self.read(starting="3", ending='{"notes": "6"}').collect()
        self.assertEqual([row.n for row in found], [4, 5, 6])

    def test_open_transactions_are_not_read(self) -> None:
        self.add_writers("notes", "w1")
        held = self.open()
        self.notes(1, 1, on=held)  # takes token 1 and stays open
        self.notes(2, 3, writer="w1")
        self.assertEqual([row.n for row in self.read().collect()], [2, 3])
        self.assertEqual(self.read(starting="now").collect(), [])
        error = self.ours(self.read(ending="3", settle_wait_s=0).collect)
        self.assertIsInstance(error, NotSettled)
        held.commit()
        self.assertEqual([row.n for row in self.read(ending="3").collect()], [1, 2, 3])

    async def test_refuses_to_skip_facts_that_are_not_proven_to_be_settled(self) -> None:
        self.dsn = await foreign_database("1.11.1", self)
        held = self.open()
        self.sql("SELECT 1", on=held)
        error = self.ours(self.read("receipts", settle_wait_s=0).collect)
        self.assertIsInstance(error, EndNotSettled)
        self.assertIn("stream 'receipts' above 0 up to 96", str(error))
        # A read up to the settled position is possible.
        self.assertEqual(self.read("receipts", settle_wait_s=0, ending="now").collect(), [])
        held.rollback()
        rows = self.read("receipts").collect()
        self.assertEqual(len(rows), self.sql("SELECT count(*) FROM receipts_linearized"))

    def test_a_start_in_trimmed_facts_is_refused(self) -> None:
        self.notes(1, 5)
        self.sql("UPDATE synrepl._streams SET trimmed = 3 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= 3")
        self.assertEqual([row.n for row in self.read().collect()], [4, 5])
        error = self.ours(self.read(starting="1").collect)
        self.assertIsInstance(error, MustReland)
        self.assertIn("must re-land from 3", str(error))

    def test_facts_trimmed_after_planning_are_noticed(self) -> None:
        self.notes(1, 5)
        frame = self.read()
        frame._jdf.queryExecution().toRdd().getNumPartitions()  # plans the query without reading anything
        self.sql("UPDATE synrepl._streams SET trimmed = 3 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= 3")
        self.assertIsInstance(self.ours(frame.collect), MustReland)


class BatchErrors(SourceCase):
    """Errors are recovered from Spark's, wherever they were raised."""

    def test_errors_have_names_and_suggestions(self) -> None:
        error = self.ours(self.read, "note")
        self.assertIsInstance(error, NoSuchStream)
        self.assertEqual(error.facts["stream"], "note")
        self.assertIn("did you mean 'notes'", str(error))
        error = self.ours(self.read, startng="now")
        self.assertIsInstance(error, UnknownOption)
        self.assertIn("did you mean 'starting'", str(error))
        self.assertIsInstance(self.ours(self.read(follower="f").collect), OptionElsewhere)

    def test_the_message_is_not_buried_in_a_traceback(self) -> None:
        self.notes(1, 5)
        trimmed = self.read()
        trimmed._jdf.queryExecution().toRdd().getNumPartitions()  # plans the query
        self.sql("UPDATE synrepl._streams SET trimmed = 3 WHERE stream = 'notes'")
        for call in (
            lambda: self.read("note"),
            self.read(ending="9", settle_wait_s=0).collect,
            self.read(starting="1").collect,
            trimmed.collect,
            lambda: self.query(starting="1"),
        ):
            with self.assertRaises(Exception) as raised:
                call()
            said = str(raised.exception)
            ours = original_error(raised.exception)
            self.assertIsNotNone(ours)
            self.assertIn(f"{type(ours).__name__}: {ours}", said)
            self.assertNotIn("Traceback", said)
            self.assertNotIn('.py", line', said)

    def test_workers_run_the_python_of_the_driver(self) -> None:
        self.notes(1, 3)
        bare = Path(self.mktemp()).absolute()
        venv.create(bare)
        path = f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}"
        ended = run_child(_PLAIN_SESSION, self.dsn, PATH=path, PYSPARK_PYTHON="")
        self.assertEqual((ended.status, ended.output), (0, "3\n"), ended.errors[-2000:])

    def test_workers_keep_connections_and_notice_that_they_are_gone(self) -> None:
        self.notes(1, 20)
        frame = self.read(rows_per_partition=5)
        self.assertEqual(frame.rdd.getNumPartitions(), 4)
        self.assertEqual(len(frame.collect()), 20)
        kept = "application_name = 'synrepl pipeline' AND datname = current_database()"
        count = self.sql(f"SELECT count(*) FROM pg_stat_activity WHERE {kept}")
        self.assertGreater(count, 0)
        ended = self.sql(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000))"
            f" FROM pg_stat_activity WHERE {kept}"
        )
        self.assertEqual(ended, count)
        self.assertEqual(len(self.read(rows_per_partition=5, patience_s=0).collect()), 20)

    def test_a_terminated_connection_is_named(self) -> None:
        self.notes(1, 3)
        frame = self.read(patience_s=0)
        frame._jdf.queryExecution().toRdd().getNumPartitions()  # plans the query without reading anything
        lock = self.open()
        self.sql("LOCK TABLE synrepl.notes IN ACCESS EXCLUSIVE MODE", on=lock)
        self.sql(_END_WAITING)
        # It waits until the query below waits for the lock, and then terminates it.
        ender = Thread(target=self.sql, args=("SELECT end_waiting()",), daemon=True)
        ender.start()
        error = self.ours(frame.collect)
        ender.join()
        lock.rollback()
        self.assertIsInstance(error, ReadingAway)
        self.assertIn("'notes'", str(error))
        self.assertEqual(len(frame.collect()), 3)

    def test_the_password_is_in_no_plan(self) -> None:
        plan = self.read()._jdf.queryExecution().toString()
        password = self.dsn.split("@")[0].rpartition(":")[2]
        self.assertGreater(len(password), 8)
        self.assertNotIn(password, plan)
