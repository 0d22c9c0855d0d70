"""Rows that Spark and replays write to a database whose server was promoted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg2
import pyarrow as pa
from pyspark.sql import DataFrame

from synrepl.pipeline.lake.replay.replay import replay
from synrepl.pipeline.lake.table_failovers import update_failovers
from synrepl.pipeline.source.errors import original_error
from synrepl.positions.vector import PositionVector
from synrepl.storage.incarnations import MARGIN
from synrepl.storage.staging.with_ids import PositionsTaken
from synrepl.storage.store import NotConfirmed
from synrepl.testing.postgres import fresh_database
from system_tests.pipeline.lake_case import LakeCase
from system_tests.pipeline.sink_case import SinkCase
from tests.storage.postgres import PREPARED
from tests.storage.test_failover_sql import PROMOTE

CONFIRM = "SELECT synrepl.confirm()"

KEEPING_IDS = "stream_id bigint, row_no int, writer string, text string, n bigint"


def _promoting(dsn: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Promote the server while a task has the rows."""
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(PROMOTE)
    connection.close()
    yield from batches


class SinkJobsAfterAPromotion(SinkCase):
    """Jobs are refused until the server is confirmed, and leave nothing behind."""

    def refused_as_it_is(self, rows: DataFrame, **options: object) -> None:
        everything = "SELECT md5(string_agg(w::text, ',' ORDER BY number)) FROM synrepl._writers w"
        before = self.sql(everything), self.left_over(), self.notes()
        with self.assertRaises(Exception) as caught:
            self.write(rows, **options)
        self.assertIsInstance(original_error(caught.exception), NotConfirmed, caught.exception)
        self.assertEqual((self.sql(everything), self.left_over(), self.notes()), before)

    def test_a_batch_is_refused_until_the_server_is_confirmed(self) -> None:
        rows = self.frame("text string", ("a",), ("b",), parts=2)
        self.write(rows, writer="w1")
        self.sql(PROMOTE)
        self.refused_as_it_is(rows, writer="w2")
        self.refused_as_it_is(rows)
        self.sql(CONFIRM)
        self.write(rows, writer="w2")
        self.assertEqual([writer for writer, _, _ in self.notes()], ["w1", "w1", "w2", "w2"])
        self.assertGreater(self.sql("SELECT max(stream_id) FROM synrepl.notes"), MARGIN)

    def test_a_batch_during_which_the_server_is_promoted_is_refused(self) -> None:
        rows = self.frame("text string", ("a",))
        self.write(rows)
        promoting = rows.mapInArrow(partial(_promoting, self.dsn), rows.schema)
        self.refused_as_it_is(promoting)
        self.sql(CONFIRM)
        self.write(rows)
        self.assertEqual(len(self.notes()), 2)

    def test_rows_below_the_floor_that_keep_their_ids_are_refused(self) -> None:
        low = self.frame(KEEPING_IDS, (5, 0, "w1", "a", 1))
        self.sql(PROMOTE)
        self.refused_as_it_is(low, positions="preserve")
        self.sql(CONFIRM)
        floor = self.sql("SELECT floor FROM synrepl._streams WHERE stream = 'notes'")
        # Followers have been informed that there are no facts up to the floor.
        with self.assertRaises(Exception) as caught:
            self.write(low, positions="preserve")
        self.assertIsInstance(original_error(caught.exception), PositionsTaken)
        high = self.frame(KEEPING_IDS, (floor + 5, 0, "w1", "a", 1))
        self.write(high, positions="preserve")
        self.assertEqual(self.notes(), [("w1", "a", 1)])

    def test_a_streaming_query_continues_from_its_checkpoint(self) -> None:
        folder, checkpoint = Path(self.mktemp()), self.mktemp()
        folder.mkdir()

        def run(number: int) -> None:
            (folder / f"{number}.json").write_text(json.dumps({"text": f"n{number}", "n": number}))
            lines = self.spark.readStream.schema("text string, n bigint").json(str(folder))
            options = {"database": self.dsn, "stream": "notes", "patience_s": "5"}
            writer = lines.writeStream.format("synrepl_sink").options(**options)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
            query.start().awaitTermination()

        run(1)
        self.sql(PROMOTE)
        with self.assertRaises(Exception) as caught:
            run(2)
        self.assertIsInstance(original_error(caught.exception), NotConfirmed, caught.exception)
        self.assertEqual((len(self.notes()), self.left_over()), (1, 0))
        self.sql(CONFIRM)
        run(3)
        self.assertEqual(sorted(n for _, _, n in self.notes()), [1, 2, 3])


class ReplaysAfterAPromotion(LakeCase):
    """Replays into a promoted database, and of a promoted database."""

    async def test_an_unconfirmed_copy_is_refused_and_unchanged(self) -> None:
        self.notes(20)
        self.land("notes", PositionVector({}, 20))
        copy = await PREPARED.copy(self)
        self.on(copy, PROMOTE)
        self.on(copy, "DROP TABLE synrepl.notes; DELETE FROM synrepl._writers WHERE stream = 'notes';"
                      " DELETE FROM synrepl._streams WHERE stream = 'notes'")  # fmt: skip
        self.assertRaises(NotConfirmed, replay, self.spark, self.lake, copy)
        self.assertIsNone(self.on(copy, "SELECT to_regclass('synrepl.notes')::text"))
        self.on(copy, CONFIRM)
        (done,) = replay(self.spark, self.lake, copy)
        self.assertEqual((done.rows, done.upto), (20, 20))

    async def test_facts_above_the_gap_of_a_failover_are_replayed_in_batches(self) -> None:
        self.notes(100)
        self.sql(PROMOTE)
        self.sql(CONFIRM)
        floor = self.sql("SELECT floor FROM synrepl._streams WHERE stream = 'notes'")
        self.notes(20, first=floor + 1)
        self.source.observe(["notes"])
        table = self.land("notes", PositionVector({}, floor + 20))
        table.record_failovers(
            update_failovers("notes", table.failovers, table.position, self.source)
        )
        copy = await fresh_database(self)
        progress_rows: list[int] = []
        (done,) = replay(
            self.spark, self.lake, copy, batch_rows=40,
            progress=lambda stream, rows, of: progress_rows.append(rows),
        )  # fmt: skip
        self.assertEqual((done.rows, done.upto), (120, floor + 20))
        self.assertLessEqual(len(progress_rows), 4)
        self.assertLessEqual(progress_rows[0], 60)

    def on(self, dsn: str, statement: str) -> object:
        """Run a statement on another database; the first cell of its result, if there is one."""
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        self.addCleanup(connection.close)
        return self.sql(statement, on=connection)
