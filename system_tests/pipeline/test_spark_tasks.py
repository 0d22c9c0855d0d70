"""Work in Spark tasks: each part once, in one job, its results in order."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from synrepl.pipeline.lake.spark_tasks import cores_of, run_tasks
from system_tests.pipeline.spark_fixture import shared_session

_SCHEMA = pa.schema([("part", pa.string())])


def _echo(part: bytes) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([{"part": part.decode()}], schema=_SCHEMA)


class Tasks(SynchronousTestCase):
    """More tasks than cores."""

    def test_every_part_is_worked_on_once_and_in_one_job(self) -> None:
        spark = shared_session()
        parts = [f"part {n}" for n in range(100)]
        context = spark.sparkContext
        context.setJobGroup("parts", "all parts")
        self.addCleanup(context.setLocalProperty, "spark.jobGroup.id", None)
        found = run_tasks(spark, [part.encode() for part in parts], _echo, _SCHEMA)
        self.assertEqual([row["part"] for row in found], parts)
        self.assertEqual(len(context.statusTracker().getJobIdsForGroup("parts")), 1)

    def test_no_parts_are_no_job(self) -> None:
        self.assertEqual(list(run_tasks(shared_session(), [], _echo, _SCHEMA)), [])

    def test_the_cores_of_a_session_are_known(self) -> None:
        self.assertEqual(cores_of(shared_session()), 2)
