"""Refusals of a sink, before rows are staged or at the commit."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from synrepl.core.errors import InputError
from synrepl.driver.connection import DatabaseRefused
from synrepl.pipeline.options import BadOption, NoDsnFile, OptionMissing, UnknownOption
from synrepl.pipeline.sink.commit import RowsQuarantined, commit_job
from synrepl.pipeline.sink.options import parse_sink_options
from synrepl.pipeline.sink.staging import NoQuery, StagedTask, StagingInterrupted, stage_rows
from synrepl.pipeline.sink.target import resolve_target
from synrepl.pipeline.sink.writers import OnlyAppends, batch_writer, stream_writer
from synrepl.storage import membership
from synrepl.storage.server_name import WrongServer
from synrepl.storage.staging.staging import StagedRowsLost, StagingJob
from synrepl.storage.store import Drained, WriterRemoved, WriterTaken
from synrepl.streams.definition import Stream
from system_tests.pipeline.sink_case import SinkCase
from tests.storage.samples import NOTES

NOTES_DDL = "text string, n bigint"
SCHEMA = StructType([StructField("text", StringType()), StructField("n", LongType())])


class SinkPlanning(SinkCase):
    """Refusals before anything is staged."""

    async def test_bad_options_are_refused(self) -> None:
        given = {"database": self.dsn, "stream": "notes"}
        for more, error, word in (
            ({"strem": "x"}, UnknownOption, "'stream'"),
            ({"stream": ""}, OptionMissing, "option stream"),
            ({"database": ""}, OptionMissing, "database_path"),
            ({"database_path": "/none"}, BadOption, "left out"),
            ({"database": "", "database_path": "/no/such/file"}, NoDsnFile, "No such file"),
            ({"writer": "a b"}, InputError, "'a b'"),
            ({"key": ""}, BadOption, "1 to 200"),
            ({"positions": "keep"}, BadOption, "'preserve'"),
            ({"on_bad_rows": "drop"}, BadOption, "'quarantine' or 'refuse'"),
            ({"server_name": "a b"}, InputError, "'a b'"),
            ({"patience_s": "soon"}, BadOption, "seconds"),
            ({"positions": "preserve", "writer": "w"}, BadOption, "column 'writer'"),
            ({"positions": "preserve", "on_bad_rows": "quarantine"}, BadOption, "preserved"),
        ):
            with self.subTest(more), self.assertRaises(error) as caught:
                parse_sink_options({**given, **more})
            self.assertIn(word, str(caught.exception))
        with self.assertRaises(BadOption):
            stream_writer({**given, "key": "k"}, SCHEMA, False)
        for make in (batch_writer, stream_writer):
            with self.assertRaises(OnlyAppends):
                make(given, SCHEMA, True)

    async def test_the_dsn_is_read_from_a_file(self) -> None:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "dsn"
            path.write_text(f"{self.dsn}\n")
            parsed = parse_sink_options({"DATABASE_PATH": str(path), "stream": "notes"})
        self.assertEqual(parsed.database, self.dsn)
        self.assertNotIn(self.dsn, repr(parsed))

    async def test_refusals_come_through_spark(self) -> None:
        one = self.frame(NOTES_DDL, ("a", 1))
        self.refused(one, "no option 'wirter'", "did you mean 'writer'", wirter="w")
        self.refused(one, "no stream 'note'", "did you mean 'notes'", stream="note")
        self.refused(one, "only ever appended", mode="overwrite")
        self.refused(one, "'typing'", "kept in memory", stream="typing")
        for ddl, row, *words in (
            ("text string, m bigint", ("a", 1), "no column 'm'"),
            ("text string, stream_id bigint", ("a", 1), "'stream_id'", "positions=preserve"),
            ("n bigint", (1,), "lacks column 'text'"),
            ("text int", (1,), "'text' is INT", "CAST it to STRING"),
            ("text string, n string", ("a", "1"), "'n' is STRING", "BIGINT"),
            ("text string, n double", ("a", 1.0), "'n' is DOUBLE"),
            ("text string, n decimal(10,2)", ("a", None), "'n' is DECIMAL(10,2)"),
        ):
            with self.subTest(ddl):
                self.refused(self.frame(str(ddl), row), *map(str, words))
        self.assertEqual((self.notes(), self.left_over()), ([], 0))

    async def test_a_writer_that_is_held_is_refused(self) -> None:
        lease = await self.process("other").store.open_writer("w1", [NOTES])
        options = {"database": self.dsn, "stream": "notes", "writer": "w1"}
        with self.assertRaises(WriterTaken) as caught:
            batch_writer(options, SCHEMA, False)
        self.assertIn("held by other", str(caught.exception))
        await lease.close()
        batch_writer(options, SCHEMA, False)
        await self.membership("drain", NOTES)
        with self.assertRaises(Drained):
            batch_writer(options, SCHEMA, False)
        await self.membership("remove", NOTES)
        with self.assertRaises(WriterRemoved):
            batch_writer(options, SCHEMA, False)

    async def test_the_database_of_another_server_is_refused(self) -> None:
        options = {"database": self.dsn, "stream": "notes", "server_name": "two.example"}
        resolve_target(parse_sink_options(options), SCHEMA)  # it has no server name yet
        self.sql("INSERT INTO synrepl._server (server_name) VALUES ('one.example')")
        with self.assertRaises(WrongServer) as caught:
            resolve_target(parse_sink_options(options), SCHEMA)
        self.assertIn("belongs to 'one.example'", str(caught.exception))
        resolve_target(parse_sink_options({**options, "server_name": "one.example"}), SCHEMA)
        resolve_target(parse_sink_options({"database": self.dsn, "stream": "notes"}), SCHEMA)

    async def test_a_missing_database_is_refused(self) -> None:
        dsn = self.dsn.rpartition("/")[0] + "/nowhere"
        with self.assertRaises(DatabaseRefused):
            batch_writer({"database": dsn, "stream": "notes"}, SCHEMA, False)

    async def membership(self, what: str, stream: Stream, writer: str = "w1") -> None:
        change = getattr(membership, what)
        await self.process("operator").database.run(
            what, lambda txn: change(txn, stream.name, writer)
        )


class SinkCommits(SinkCase):
    """Events between staging and the commit."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.options = parse_sink_options(
            {"database": self.dsn, "stream": "notes", "patience_s": "60"}
        )
        self.target = resolve_target(self.options, SCHEMA)

    def stage_rows(self, *texts: str, job: str = "job") -> StagedTask:
        batch = pa.RecordBatch.from_pydict({"text": list(texts), "n": [None] * len(texts)})
        batch = batch.set_column(1, "n", batch.column("n").cast(pa.int64()))
        return stage_rows(self.options, self.target, job, iter([batch]))

    def commit_job(self, *tasks: StagedTask, key: str = "k") -> bool:
        job = StagingJob("notes", "spark", "job", key=key)
        return commit_job(self.options, self.target, job, tasks).replayed

    def texts(self) -> list[str]:
        return [text for _, text, _ in self.notes()]

    async def test_only_the_named_attempts_are_appended(self) -> None:
        self.stage_rows("lost")
        done = self.stage_rows("a", "b")
        other = self.stage_rows("other's", job="other")
        self.assertFalse(self.commit_job(done))
        self.assertEqual(self.texts(), ["a", "b"])
        self.assertEqual(self.sql("SELECT attempt FROM synrepl._staging"), other.staged.attempt)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl._notes_staged"), 1)

    async def test_staged_rows_are_removed_after_a_day(self) -> None:
        self.stage_rows("old", job="other")
        self.sql("UPDATE synrepl._staging SET at = at - interval '25 hours'")
        self.commit_job(self.stage_rows("a"))
        self.assertEqual(self.left_over(), 0)

    async def test_missing_staged_rows_are_refused(self) -> None:
        done = self.stage_rows("a", "b")
        self.sql("TRUNCATE synrepl._notes_staged")
        with self.assertRaises(StagedRowsLost) as caught:
            self.commit_job(done)
        self.assertIn("0 of 2 rows", str(caught.exception))
        self.assertEqual(self.texts(), [])

    async def test_a_connection_lost_at_the_commit_appends_once(self) -> None:
        self.sql(
            "CREATE SEQUENCE fuse;"
            "CREATE FUNCTION blow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('fuse') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
            " RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER blow AFTER INSERT ON synrepl.notes"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION blow()"
        )
        self.commit_job(self.stage_rows("a", "b"))
        self.assertGreater(self.sql("SELECT last_value FROM fuse"), 1)
        self.assertEqual(self.texts(), ["a", "b"])

    async def test_a_lost_answer_to_the_commit_appends_once(self) -> None:
        done = self.stage_rows("a")
        self.assertFalse(self.commit_job(done))
        self.assertTrue(self.commit_job(done))
        self.assertEqual(self.texts(), ["a"])

    async def test_a_connection_lost_while_staging_fails_the_task(self) -> None:
        batch = pa.RecordBatch.from_pydict({"text": ["a"], "n": pa.array([1], pa.int64())})

        def batches():  # type: ignore[no-untyped-def]
            yield batch
            self.sql(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name = 'synrepl spark' AND datname = current_database()"
            )
            for _ in range(2000):
                yield batch

        with self.assertRaises(StagingInterrupted):
            stage_rows(self.options, self.target, "job", batches())
        self.assertEqual(self.left_over(), 0)

    async def test_quarantined_rows_are_logged_and_warned_of(self) -> None:
        done = self.stage_rows("a", "\0", "b\0")
        with catch_warnings(record=True) as caught, self.assertLogs() as logged:
            simplefilter("always")
            simplefilter("ignore", ResourceWarning)  # of garbage that is collected meanwhile
            self.commit_job(done)
        self.assertEqual([each.category for each in caught], [RowsQuarantined])
        for words in (str(caught[0].message), logged.output[0]):
            self.assertIn("2 of 3 rows did not fit stream 'notes'", words)
            self.assertIn("NUL", words)
        self.assertEqual((self.texts(), self.left_over()), (["a"], 0))

    async def test_a_task_without_a_query_is_refused(self) -> None:
        with self.assertRaises(NoQuery):
            stage_rows(self.options, self.target, None, iter(()))

    async def test_a_writer_taken_meanwhile_is_refused(self) -> None:
        done = self.stage_rows("a")
        await self.process("other").store.open_writer("spark", [NOTES])
        with self.assertRaises(WriterTaken):
            self.commit_job(done)
        self.assertEqual(self.texts(), [])

    async def test_a_new_column_is_staged(self) -> None:
        self.commit_job(self.stage_rows("a"))
        self.sql("ALTER TABLE synrepl.notes ADD COLUMN more text")
        schema = StructType([*SCHEMA, StructField("more", StringType())])
        target = resolve_target(self.options, schema)
        batch = pa.RecordBatch.from_pydict(
            {"text": ["b"], "n": pa.array([1], pa.int64()), "more": ["m"]}
        )
        done = stage_rows(self.options, target, "job", iter([batch]))
        commit_job(self.options, target, StagingJob("notes", "spark", "job", key="k2"), [done])
        self.assertEqual(self.sql("SELECT more FROM synrepl.notes WHERE text = 'b'"), "m")
