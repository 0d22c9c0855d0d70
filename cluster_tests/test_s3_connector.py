"""A lake in an object store, read by sessions of Spark that have a connector for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster_tests.s3_connector import connector_settings
from synrepl.pipeline.jobs.catalogue import find_job
from synrepl.pipeline.jobs.run import run_job
from synrepl.pipeline.lake.dataframe import has_connector, table_dataframe
from synrepl.pipeline.lake.lake import Lake
from system_tests.pipeline.spark_fixture import run_child
from system_tests.pipeline.test_lake_s3 import SUBJECT, ObjectStoreCase

#: Reads a lake in a session with some settings; prints what was read, and the plans.
_READ = """
    import json, sys
    from functools import partial
    from synrepl.driver.blocking import BlockingDatabase
    from synrepl.pipeline import create_views
    from synrepl.pipeline.jobs.catalogue import find_job
    from synrepl.pipeline.jobs.run import run_job
    from synrepl.pipeline.lake.check.check import check
    from synrepl.pipeline.lake.dataframe import has_connector, table_dataframe
    from synrepl.pipeline.lake.erase.mask import mask
    from synrepl.pipeline.lake.erase.pending import pending
    from synrepl.pipeline.lake.lake import Lake
    from synrepl.pipeline.session.options import SessionOptions
    from synrepl.pipeline.session.session import open_session
    from synrepl.pipeline.source.database.synrepl_database import SynreplDatabase

    url, dsn, conf = sys.argv[1:]

    def read(frame):
        rows = [list(row) for row in frame.collect()]
        plan = frame._jdf.queryExecution().executedPlan().toString()
        return {"rows": sorted(rows, key=repr), "schema": frame.schema.json(), "plan": plan}

    with open_session(SessionOptions("local[2]", driver_memory="512m", conf=json.loads(conf))) as spark:
        lake = Lake(url)
        create_views(spark, url)
        found = {
            "connector": has_connector(spark, "s3a"),
            "frame": read(table_dataframe(spark, lake.table("notes"))),
            "job": read(run_job(spark, lake, find_job("activity"))),
            "view": read(spark.sql("SELECT text FROM notes WHERE n = 3")),
        }
        source = SynreplDatabase(BlockingDatabase(dsn, "tests"))
        masked = partial(mask, erasures=pending(spark, source, lake).known)
        report = check(spark, lake, source, dsn, mask=masked)
        source.close()
        found["check"] = [report.equal, {each.stream: each.lake_rows for each in report.streams}]
        print(json.dumps(found, default=str))
"""


class ReadsThroughTheConnector(ObjectStoreCase):
    """The session of this process has no connector; that of a child process has one, Hadoop's ``s3a``."""

    timeout = 600

    def new_lake(self) -> Lake:
        super().new_lake()
        self.url += "%20of%20{notes}"  # connectors take a URL's escapes literally, and Spark takes braces as a pattern
        return Lake.open_or_create(self.url, self.source.server, self.source.is_lossy)

    def read_with_connector(self) -> dict[str, Any]:
        """What a session with the connector reads of the lake."""
        conf = connector_settings(self.proxy.port, Path(self.mktemp()).absolute())
        ended = run_child(_READ, self.url, self.dsn, json.dumps(conf))
        self.assertEqual(ended.status, 0, ended.errors)
        found: dict[str, Any] = json.loads(ended.output)
        return found

    def test_rows_are_those_that_arrow_reads(self) -> None:
        for n in range(1, 7):
            self.append("notes", {"text": SUBJECT if n == 2 else f"n{n}", "n": n})
            self.maintain()
        self.sql("SELECT synrepl.erase(%s)", SUBJECT)
        self.maintain()
        found = self.read_with_connector()
        self.assertTrue(found["connector"])
        self.assertFalse(has_connector(self.spark, "s3a"))

        frame = table_dataframe(self.spark, self.lake.table("notes"))
        job = run_job(self.spark, self.lake, find_job("activity"))
        for name, by_arrow in (("frame", frame), ("job", job)):
            rows = json.loads(json.dumps([list(row) for row in by_arrow.collect()], default=str))
            self.assertEqual(found[name]["rows"], sorted(rows, key=repr))
            self.assertEqual(found[name]["schema"], by_arrow.schema.json())
        self.assertEqual(len(found["frame"]["rows"]), 6)
        self.assertEqual(found["view"]["rows"], [["n3"]])
        self.assertEqual(found["check"][0], True)
        self.assertEqual(found["check"][1]["notes"], 6)

        for name in ("frame", "job", "view"):
            plan = found[name]["plan"]
            self.assertRegex(plan, r"FileScan parquet .*\[s3a://lakes/")
            self.assertNotRegex(plan, "(?i)python|arrow")
        self.assertRegex(found["view"]["plan"], r"PushedFilters: \[[^]]*EqualTo\(n,3\)")
        self.assertIn("ReadSchema: struct<text:string,n:", found["view"]["plan"])
