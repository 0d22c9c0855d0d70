"""``spark.readStream.format("synrepl")`` over a real PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg2

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.source.errors import BatchHasStream, MustReland, StreamAppeared
from synrepl.pipeline.source.plan.offset import OtherServer, OtherVersion
from synrepl.pipeline.source.progress import tokens_behind
from synrepl.storage.store import DatabaseAway
from synrepl.storage.tables import ensure_tables
from synrepl.streams.declared import declare
from synrepl.testing.postgres import server
from system_tests.pipeline.source_case import SourceCase
from tests.storage.postgres import PREPARED


class StreamRuns(SourceCase):
    """Queries that end when they have read everything available."""

    def test_each_run_reads_what_is_new(self) -> None:
        self.notes(1, 5)
        self.query()
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5])
        self.notes(6, 8)
        self.query()
        self.query()  # nothing is new
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5, 6, 7, 8])

    def test_batches_are_limited_in_rows(self) -> None:
        self.notes(1, 10)
        query = self.query(max_rows_per_batch=4)
        read = [progress["numInputRows"] for progress in query.recentProgress]
        self.assertEqual([rows for rows in read if rows], [4, 4, 2])
        self.assertEqual(self.numbers(), list(range(1, 11)))

    def test_progress_has_offsets_and_lag(self) -> None:
        self.notes(1, 10)
        query = self.query(max_rows_per_batch=4)
        sources = [p["sources"][0] for p in query.recentProgress if p["numInputRows"]]
        ends = [json.loads(source["endOffset"])["streams"]["notes"]["linear"] for source in sources]
        self.assertEqual(ends, [4, 8, 10])
        self.assertEqual([tokens_behind(s) for s in sources], [{"notes": n} for n in (6, 2, 0)])
        begins = [json.loads(s["startOffset"])["streams"]["notes"]["linear"] for s in sources]
        self.assertEqual(begins, [0, 4, 8])

    def test_a_batch_that_was_not_finished_is_read_again(self) -> None:
        self.notes(1, 4)
        self.query(max_rows_per_batch=2)
        self.uncommit()
        self.notes(5, 6)
        self.query()
        self.assertEqual(self.numbers(), [1, 2, 3, 4, 5, 6])

    def test_the_start_of_a_killed_query_stays(self) -> None:
        self.notes(1, 3)
        self.query(starting="now", max_rows_per_batch=1)
        self.uncommit()  # as if the query had been killed in its first batch
        self.notes(4, 5)
        self.query(starting="now")
        self.assertEqual(self.numbers(), [4, 5])

    def test_the_starting_option_counts_only_without_a_checkpoint(self) -> None:
        self.notes(1, 3)
        self.query(starting="now")
        self.notes(4, 5)
        self.query(starting="earliest")  # ignored because there is a checkpoint
        self.assertEqual(self.numbers(), [4, 5])
        self.out, self.checkpoint = self.mktemp(), self.mktemp()
        self.query(starting='{"notes": "2"}')
        self.assertEqual(self.numbers(), [3, 4, 5])

    def test_the_follower_holds_trimming_back(self) -> None:
        self.notes(1, 4)
        self.query(follower="lake", max_rows_per_batch=2)
        # Spark commits a batch at the source when it plans the next one.
        self.assertEqual(self.sql("SELECT position FROM synrepl._followers WHERE writer = ''"), 2)
        self.assertEqual(
            self.sql("SELECT follower FROM synrepl._follower_leases WHERE expires_at > now()"),
            "lake",
        )
        self.notes(5, 5)
        self.query(follower="lake")
        self.assertEqual(self.sql("SELECT position FROM synrepl._followers WHERE writer = ''"), 4)


class RunningStreams(SourceCase):
    """Queries that run while facts are written."""

    def test_commits_out_of_order_by_three_writers_are_read_once(self) -> None:
        writers = ("w1", "w2", "w3")
        self.add_writers("notes", *writers)
        held = {writer: self.open() for writer in writers}
        query = self.query(now=False, max_rows_per_batch=7)
        n, landed = 0, []
        for turn in range(4):
            order = [*writers[turn % 3 :], *writers[: turn % 3]]
            for writer in order:  # tokens are allocated in one order
                self.notes(n + 1, n + 5, writer=writer, on=held[writer])
                n += 5
            for writer in reversed(order):  # and committed in the other, with reads in between
                if (turn, writer) == (2, "w2"):
                    held[writer].rollback()
                else:
                    held[writer].commit()
                query.processAllAvailable()
                landed.append(len(self.numbers()))
        wanted = sorted(row.n for row in self.read().collect())
        self.assertEqual(len(wanted), 55)
        self.assertEqual(self.numbers(), wanted)  # each once
        self.assertEqual(landed[-1], 55)
        self.assertGreater(len(set(landed)), 6)  # it did read in between

    def test_a_stream_created_later_is_read(self) -> None:
        self.notes(1, 1)
        query = self.query("*", now=False)
        query.processAllAvailable()
        with BlockingDatabase(self.dsn, "test") as database:
            later = declare("later", {"text": "text", "n": "bigint?"})
            database.run("declare", lambda txn: ensure_tables(txn, [later]))
        self.append("later", {"text": "x", "n": 7})
        query.processAllAvailable()
        query.processAllAvailable()
        self.assertEqual(self.numbers(), [1, 7])

    def test_a_later_stream_with_other_columns_ends_the_query(self) -> None:
        self.notes(1, 1)
        query = self.query("*", now=False)
        query.processAllAvailable()
        with BlockingDatabase(self.dsn, "test") as database:
            later = declare("later", {"other": "text"})
            database.run("declare", lambda txn: ensure_tables(txn, [later]))
        error = self.ours(query.processAllAvailable)
        self.assertIsInstance(error, StreamAppeared)
        self.append("later", {"other": "x"})
        self.query("*")
        found = self.spark.read.option("mergeSchema", True).parquet(self.out)
        self.assertEqual(
            sorted((r.stream, r.n, r.other) for r in found.collect()),
            [("later", None, "x"), ("notes", 1, None)],
        )

    def test_an_unreachable_database_ends_the_query_which_can_continue(self) -> None:
        self.notes(1, 2)
        self.query()
        name = self.dsn.rpartition("/")[2]
        # Connections to a database itself cannot disallow connections to it.
        other = psycopg2.connect(server().dsn)
        self.addCleanup(other.close)
        other.autocommit = True
        self.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", on=other)
        try:
            error = self.ours(self.query, patience_s=0)
            self.assertIsInstance(error, DatabaseAway)
        finally:
            self.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true", on=other)
        self.notes(3, 3)
        self.query()
        self.assertEqual(self.numbers(), [1, 2, 3])


class StreamCheckpoints(SourceCase):
    """Which checkpoints are accepted."""

    def rewrite(self, old: str, new: str) -> None:
        """Change the last offsets that Spark has recorded."""
        folder = Path(self.checkpoint, "offsets")
        last = max((p for p in folder.glob("[0-9]*")), key=lambda p: int(p.name))
        text = last.read_text(encoding="utf-8")
        self.assertIn(old, text)
        last.write_text(text.replace(old, new), encoding="utf-8")
        for crc in folder.glob(".*.crc"):
            crc.unlink()

    async def test_a_checkpoint_of_another_database_is_refused(self) -> None:
        self.notes(1, 2)
        self.query()
        other = await PREPARED.copy(self)
        error = self.ours(self.query, database=other)
        self.assertIsInstance(error, OtherServer)
        self.assertIn(other.rpartition("/")[2], str(error))

    def test_a_checkpoint_of_another_release_is_refused(self) -> None:
        self.notes(1, 2)
        self.query()
        self.rewrite('"version": 1', '"version": 99')
        error = self.ours(self.query)
        self.assertIsInstance(error, OtherVersion)

    def test_a_checkpoint_below_trimmed_facts_is_refused(self) -> None:
        self.notes(1, 2)
        self.query()
        self.notes(3, 6)
        self.sql("UPDATE synrepl._streams SET trimmed = 4 WHERE stream = 'notes'")
        self.sql("DELETE FROM synrepl.notes WHERE stream_id <= 4")
        error = self.ours(self.query)
        self.assertIsInstance(error, MustReland)
        self.assertEqual(error.facts, {"stream": "notes", "trimmed": "4", "after": "2"})
        self.assertIn("must re-land from 4", str(error))
        self.assertEqual(self.numbers(), [1, 2])

    def test_other_streams_in_an_unfinished_batch_are_refused(self) -> None:
        self.notes(1, 2)
        self.query("notes,backfill")
        self.uncommit()
        error = self.ours(self.query, "everything,backfill")
        self.assertIsInstance(error, BatchHasStream)
