"""Streaming queries: each batch is appended once, over retries, kills and restarts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from system_tests.pipeline.sink_case import SinkCase
from system_tests.pipeline.spark_fixture import run_child

#: A query over a folder, in a child process. ``doom`` selects how it fails.
QUERY = """
import os, signal, sys
from pyspark import TaskContext
from synrepl.pipeline.session.options import SessionOptions
from synrepl.pipeline.session.session import open_session
from synrepl.pipeline.sink.writers import MicroBatchWriter, stream_writer
from system_tests.pipeline.sink_case import Sink

doom, group = os.environ["DOOM"], int(os.environ.setdefault("DRIVER_GROUP", str(os.getpgrp())))

class Doomed(MicroBatchWriter):
    def write(self, iterator):
        done = super().write(iterator)
        if doom == "retry" and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("lost after it had staged")
        return done

    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        if doom == "after commit" and batchId == 1:
            os.killpg(group, signal.SIGKILL)

class DoomedSink(Sink):
    def streamWriter(self, schema, overwrite):
        plain = stream_writer(self.options, schema, overwrite)
        return Doomed(plain._options, plain._target)

options = SessionOptions(master="local[2,2]", app_name="doomed", driver_memory="512m")
with open_session(options) as spark:
    spark.dataSource.register(DoomedSink)
    lines = (spark.readStream.schema("text string, n bigint")
        .option("maxFilesPerTrigger", 1).json(os.environ["FOLDER"]))
    query = (lines.repartition(2).writeStream.format("synrepl_sink")
        .option("database", os.environ["DSN"]).option("stream", "notes")
        .option("checkpointLocation", os.environ["CHECKPOINT"])
        .trigger(availableNow=True).start())
    query.awaitTermination()
"""


class SinkStreaming(SinkCase):
    """A query over files; each file is a batch."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        directory = TemporaryDirectory(prefix="synrepl-test-")
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name) / "in"
        self.folder.mkdir()
        self.checkpoint = Path(directory.name) / "checkpoint"

    def arrive(self, number: int, *rows: tuple[str | None, int]) -> None:
        """Add a file."""
        lines = [json.dumps({"text": text, "n": n}) for text, n in rows]
        file = self.folder / f"{number:03}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark takes the oldest first

    def query(self, **options: Any) -> StreamingQuery:
        lines = self.spark.readStream.schema("text string, n bigint")
        return (
            lines.option("maxFilesPerTrigger", 1)
            .json(str(self.folder))
            .writeStream.format("synrepl_sink")
            .options(database=self.dsn, stream="notes", **options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def in_child(self, doom: str) -> tuple[int, str]:
        """Run the query in another process; its exit status and output."""
        ended = run_child(
            QUERY,
            DOOM=doom,
            DSN=self.dsn,
            FOLDER=str(self.folder),
            CHECKPOINT=str(self.checkpoint),
        )
        return ended.status, ended.output + ended.errors[-3000:]

    def numbers(self) -> list[int]:
        return sorted(n for _, _, n in self.notes())

    async def test_batches_are_appended_in_order(self) -> None:
        self.arrive(1, ("a", 1), ("b", 2))
        self.arrive(2, ("c", 3))
        self.query(writer="w1").awaitTermination()
        self.arrive(3, ("d", 4))
        self.query(writer="w1").awaitTermination()
        self.assertEqual(self.notes(), [("w1", t, n) for n, t in enumerate("abcd", 1)])
        self.assertEqual(self.left_over(), 0)

    async def test_a_repeated_batch_appends_once(self) -> None:
        self.arrive(1, ("a", 1))
        self.arrive(2, ("b", 2), (None, 3))
        self.query().awaitTermination()
        # As after a crash between the database's commit and Spark's.
        for name in ("1", ".1.crc"):
            (self.checkpoint / "commits" / name).unlink()
        self.arrive(3, ("c", 4))
        self.query().awaitTermination()
        self.assertEqual(self.numbers(), [1, 2, 4])
        self.assertEqual(len(list(self.quarantined())), 1)
        self.assertEqual(self.left_over(), 0)

    async def test_a_new_checkpoint_is_a_new_query(self) -> None:
        self.arrive(1, ("a", 1))
        self.query().awaitTermination()
        self.checkpoint.rename(self.checkpoint.with_name("old"))
        self.query().awaitTermination()
        self.assertEqual(self.numbers(), [1, 1])

    async def test_a_query_killed_after_the_commit_appends_once(self) -> None:
        for number in range(1, 5):
            self.arrive(number, *((f"{number}/{n}", 10 * number + n) for n in range(5)))
        status, said = self.in_child("after commit")
        self.assertEqual(status, -9, said)
        self.assertEqual(len(self.notes()), 10)
        self.assertFalse((self.checkpoint / "commits" / "1").exists())
        query = self.query()
        query.awaitTermination()
        assert query.lastProgress is not None
        self.assertEqual(query.lastProgress["batchId"], 3)
        self.assertEqual(self.numbers(), [10 * m + n for m in range(1, 5) for n in range(5)])
        self.assertEqual(self.left_over(), 0)

    async def test_retried_tasks_append_once(self) -> None:
        self.arrive(1, *((str(n), n) for n in range(10)))
        status, said = self.in_child("retry")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.numbers(), list(range(10)))
        self.assertEqual(self.left_over(), 0)

    async def test_a_failed_batch_is_cleaned_up_and_repeated(self) -> None:
        self.arrive(1, ("a", 1), (None, 2))
        query = self.query(on_bad_rows="refuse")
        with self.assertRaises(Exception) as caught:
            query.awaitTermination()
        self.assertIn("1 of 2 rows", str(caught.exception))
        self.assertEqual((self.notes(), self.left_over()), ([], 0))
        self.query().awaitTermination()
        self.assertEqual(self.numbers(), [1])
