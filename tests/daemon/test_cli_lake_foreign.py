"""Every job over a real Synapse's streams."""

from __future__ import annotations

import json

from synrepl.pipeline.jobs.catalogue import JOBS
from synrepl.testing.postgres import fresh_database
from tests.daemon.lake_world import LakeCase
from tests.storage.foreign_databases import foreign_database


class OfASynapse(LakeCase):
    """Landed from its tables, which are only read."""

    async def test_jobs(self) -> None:
        dsn = await foreign_database("1.163.2")
        where = ("--database-path", self.dsn_file(dsn))
        landed = json.loads(self.done("land", self.lake, *where, "--json"))
        self.assertGreater(sum(landed["rows"].values()), 500)
        self.assertEqual(landed["quarantined"], {})
        for job in JOBS:
            done = self.in_process("run", job.name, self.lake, "--json")
            if done.code == 0:
                rows = json.loads(done.out)
                if not rows:
                    self.assertEqual(landed["rows"].get("caches", 0), 0)
                    self.assertEqual(job.name, "heat")
                    self.assertIn("No rows:", self.done("run", job.name, self.lake))
                    continue
                self.assertEqual(list(rows[0]), [field.name for field in job.schema])
            else:
                self.assertIn("has none of the streams that are wanted", done.err)
        self.assertIn("All equal.", self.done("check", self.lake, *where))
        self.assertIn("have no rows yet", self.done("status", self.lake))
        copy = await fresh_database(self)
        there = ("--database-path", self.dsn_file(copy, "copy"))
        told = json.loads(self.done("replay", self.lake, *there, "--json"))
        # Up to where all writers are settled, which may be less than the lake has.
        for stream, rows in landed["rows"].items():
            self.assertLessEqual(told[stream]["rows"], rows, stream)
        self.assertGreater(sum(each["rows"] for each in told.values()), 500)
