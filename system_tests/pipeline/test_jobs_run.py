"""Running jobs: refusals, and Spark's plans."""

from __future__ import annotations

import dataclasses
import pkgutil
from importlib import import_module
from pathlib import Path

from pyspark.sql import functions as f
from twisted.trial.unittest import TestCase

from synrepl.core.errors import InputError
from synrepl.pipeline import jobs as package
from synrepl.pipeline.jobs.catalogue import JOBS, NoSuchJob, find_job
from synrepl.pipeline.jobs.job import LakeJob, PlotKind
from synrepl.pipeline.jobs.longform import NothingToRead
from synrepl.pipeline.jobs.run import OtherSchema, explain_job, run_job
from synrepl.pipeline.lake.watermarks import Watermarks
from system_tests.pipeline.spark_fixture import shared_session
from tests.pipeline.synthetic_lake import add, begin, schema_of


class JobCatalogue(TestCase):
    def test_every_job_is_in_the_catalogue(self) -> None:
        written = {
            found.name
            for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
            for found in vars(import_module(module.name)).values()
            if isinstance(found, LakeJob)
        }
        self.assertEqual([job.name for job in JOBS], sorted(written))
        self.assertTrue(all(find_job(job.name) is job for job in JOBS))

    def test_charts_refer_to_existing_columns(self) -> None:
        for job in JOBS:
            x = {job.plot.x} - {""}
            self.assertEqual(bool(x), job.plot.kind is not PlotKind.BARS)
            self.assertLessEqual({job.plot.y, *job.plot.series, *x}, {*job.schema.names})

    def test_an_unknown_job_is_refused_with_a_suggestion(self) -> None:
        with self.assertRaises(NoSuchJob) as caught:
            find_job("activty")
        self.assertEqual(
            str(caught.exception),
            "there is no job 'activty'; did you mean 'activity'?;"
            " there are activity, heat, lag, rooms, skew",
        )


class RunningJobs(TestCase):
    def setUp(self) -> None:
        self.spark = shared_session()
        self.lake = begin(Path(self.mktemp()))

    def refusal(self, job: LakeJob) -> str:
        with self.assertRaises(InputError) as caught:
            run_job(self.spark, self.lake, job)
        self.assertIsInstance(caught.exception, (NothingToRead, OtherSchema))
        return str(caught.exception)

    def fill(self) -> None:
        row = {"cache_func": "a", "keys": '["k"]', "invalidation_ts": 1_750_000_000_000}
        add(self.lake, schema_of("caches"), [{"stream_id": n, **row} for n in range(1, 9)])
        add(
            self.lake,
            schema_of("receipts"),
            [{"stream_id": n, "room_id": "!r", "user_id": "@u", "data": "{}"} for n in range(1, 9)],
        )

    def test_a_lake_without_the_streams_of_a_job_is_refused(self) -> None:
        self.assertEqual(
            self.refusal(find_job("activity")),
            f"the lake {self.lake.path} has none of the streams that are wanted (any);"
            " it has none; land them first",
        )
        add(self.lake, schema_of("push_rules"), [{"stream_id": 1, "user_id": "@u"}])
        self.assertIn("(caches, receipts); it has push_rules;", self.refusal(find_job("lag")))

    def test_a_stream_without_rows_gives_no_result_rows(self) -> None:
        self.lake.ensure_table(schema_of("caches"))
        self.assertEqual(run_job(self.spark, self.lake, find_job("heat")).collect(), [])

    def test_a_result_that_differs_from_the_declared_schema_is_refused(self) -> None:
        self.fill()
        heat = find_job("heat")
        for change, types in (
            (lambda rows: heat.transform(rows).drop("whole"), "rows bigint,"),
            (lambda rows: heat.transform(rows).withColumnRenamed("rows", "n"), "n bigint"),
            (
                lambda rows: heat.transform(rows).withColumn("rows", f.col("rows").cast("int")),
                "rows int",
            ),
        ):
            message = self.refusal(dataclasses.replace(heat, transform=change))
            self.assertIn("job 'heat' gives the columns hour timestamp, cache string", message)
            self.assertIn(types, message)

    def test_plans_have_no_superfluous_shuffles(self) -> None:
        self.fill()
        marks = Watermarks(self.lake)
        for n in range(3):
            marks.record_all({"caches": 1 + 3 * n, "receipts": 2 + n}, 1_750_000_000 + 100 * n)
        # One shuffle per aggregation or window, two for distinct values of two columns, one for
        # the final sort, and none for watermarks.
        shuffles = {"activity": 3, "heat": 2, "lag": 2, "rooms": 3, "skew": 4}
        for name, wanted in shuffles.items():
            plan = explain_job(self.spark, self.lake, find_job(name))
            self.assertTrue(plan.startswith("== Physical Plan ==\n"), plan)
            tree = plan.partition("\n\n\n")[0]
            self.assertEqual(tree.count("- Exchange"), wanted, plan)
            self.assertEqual(tree.count("BroadcastExchange"), name != "skew", plan)
            self.assertEqual(tree.count("BroadcastHashJoin"), name != "skew", plan)
            for slow in ("Python", "ArrowEval", "SortMergeJoin", "Cartesian", "NestedLoop"):
                self.assertNotIn(slow, tree)

    def test_only_the_required_columns_are_read(self) -> None:
        self.fill()
        plan = explain_job(self.spark, self.lake, find_job("skew"))
        read = [line for line in plan.splitlines() if line.startswith("ReadSchema")]
        self.assertEqual(
            sorted(read),
            [
                "ReadSchema: struct<cache_func:string,keys:string>",
                "ReadSchema: struct<room_id:string>",
            ],
        )
