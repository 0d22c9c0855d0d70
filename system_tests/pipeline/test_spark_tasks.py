"""Work in Spark tasks: each part once, in one job, its results in order."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.spark_tasks import cores_of, run_tasks
from system_tests.pipeline.spark_fixture import run_child, shared_session

_SCHEMA = pa.schema([("part", pa.string())])


def _echo(part: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"part": part.decode()}], schema=_SCHEMA)


#: Kills the JVM, and prints how two jobs fail: the first notices it, and the second does not reach it.
_AFTER_A_KILL = """
    import os, signal
    from pyspark import SparkContext
    from synrepl.pipeline.lake.spark_tasks import run_tasks
    from synrepl.pipeline.session.options import SessionOptions
    from synrepl.pipeline.session.session import open_session
    from system_tests.pipeline.test_spark_tasks import _SCHEMA, _echo
    with open_session(SessionOptions("local[1]", driver_memory="512m")) as spark:
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        for _ in range(2):
            try:
                list(run_tasks(spark, [b""], _echo, _SCHEMA, rows=1))
            except Exception as error:
                print(type(error).__name__)
"""


class Tasks(SynchronousTestCase):
    """More tasks than cores."""

    def test_every_part_is_worked_on_once_and_in_one_job(self) -> None:
        spark = shared_session()
        parts = [f"part {n}" for n in range(100)]
        context = spark.sparkContext
        context.setJobGroup("parts", "all parts")
        self.addCleanup(context.setLocalProperty, "spark.jobGroup.id", None)
        found = run_tasks(spark, [part.encode() for part in parts], _echo, _SCHEMA, rows=1)
        self.assertEqual([row["part"] for row in found], parts)
        self.assertEqual(len(context.statusTracker().getJobIdsForGroup("parts")), 1)

    def test_no_parts_are_no_job(self) -> None:
        self.assertEqual(list(run_tasks(shared_session(), [], _echo, _SCHEMA, rows=1)), [])

    def test_the_cores_of_a_session_are_known(self) -> None:
        self.assertEqual(cores_of(shared_session()), 2)

    def test_a_jvm_that_has_ended_is_a_lost_task_whichever_call_notices_it(self) -> None:
        ended = run_child(_AFTER_A_KILL)
        self.assertEqual(ended.output.split(), ["TaskFailed", "TaskFailed"], ended.errors)
