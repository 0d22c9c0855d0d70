"""Every job over a real Synapse's streams."""

from __future__ import annotations

import json
from contextlib import closing

import psycopg2

from synrepl.pipeline.jobs.catalogue import JOBS
from synrepl.testing.postgres import fresh_database
from system_tests.cli.lake_case import LakeCase
from tests.storage.foreign_databases import foreign_database


class LakeOfASynapse(LakeCase):
    """The lake of a Synapse's database, which is only read."""

    async def test_lands_checks_and_replays_a_synapse(self) -> None:
        dsn = await foreign_database("1.163.2")
        where = ("--database-path", self.dsn_file(dsn))
        landed = json.loads(self.output_of("land", self.lake, *where, "--json"))
        self.assertGreater(sum(landed["rows"].values()), 500)
        self.assertGreater(landed["rows"]["caches"], 100)
        self.assertEqual((landed["quarantined"], landed["unsettled"]), ({}, {}))
        for job in JOBS:
            done = self.in_process("run", job.name, self.lake, "--json")
            if done.code == 0:
                rows = json.loads(done.out)
                self.assertTrue(rows, job.name)
                self.assertEqual(list(rows[0]), [field.name for field in job.schema])
            else:
                self.assertIn("has none of the streams that are wanted", done.err)
        self.assertIn("All equal.", self.output_of("check", self.lake, *where))
        self.assertIn("No rows yet in", self.output_of("status", self.lake))
        copy = await fresh_database(self)
        there = ("--database-path", self.dsn_file(copy, "copy"))
        answer = json.loads(self.output_of("replay", self.lake, *there, "--json"))
        # Up to where all writers are settled, which may be less than the lake has.
        for stream, rows in landed["rows"].items():
            self.assertLessEqual(answer[stream]["rows"], rows, stream)
        self.assertGreater(sum(each["rows"] for each in answer.values()), 500)

    async def test_lands_all_of_a_release_without_recorded_positions(self) -> None:
        dsn = await foreign_database("1.20.1", self)
        where = ("--database-path", self.dsn_file(dsn))
        with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone() or (0,)
            done = self.in_process("land", self.lake, *where, "--settle-timeout", "0")
            self.assertEqual((done.code, done.out), (1, "Nothing new is settled.\n"), done)
            self.assertEqual(done.err.count("\n"), 1, done.err)
            self.assertIn("not all that was asked for is in the lake: stream ", done.err)
            self.assertIn("stream 'events' above 0 up to ", done.err)
            self.assertIn("--settle-timeout waits longer", done.err)
            done = self.in_process("land", self.lake, *where, "--settle-timeout", "6", "--json")
            self.assertEqual((done.code, json.loads(done.out)["rows"]), (1, {}), done)
            events = json.loads(done.out)["unsettled"]["events"]
            self.assertEqual(events["waits_for"], [f"the transaction of PID {pid}"])
        done = self.in_process("check", self.lake, *where)
        self.assertEqual((done.code, done.err), (1, ""), done)
        self.assertIn("stream 'events' was not compared: the lake has none of it", done.out)
        self.assertRegex(done.out.splitlines()[-1], r"^Not compared: account_data, .*events, ")
        self.assertNotIn("equal.", done.out)
        done = self.in_process("check", self.lake, *where, "--json", "--stream", "events")
        answer = json.loads(done.out)
        self.assertEqual(
            (done.code, answer["outcome"], answer["equal"]), (1, "not compared", False)
        )

        landed = json.loads(self.output_of("land", self.lake, *where, "--json"))
        self.assertGreater(sum(landed["rows"].values()), 500)
        answer = json.loads(self.output_of("check", self.lake, *where, "--json"))
        self.assertEqual((answer["outcome"], answer["equal"]), ("equal", True))
        compared = {each["stream"]: each["lake_rows"] for each in answer["streams"]}
        self.assertEqual({name: rows for name, rows in compared.items() if rows}, landed["rows"])
        self.assertEqual(self.output_of("land", self.lake, *where), "Nothing new.\n")

    async def test_names_streams_that_cannot_be_read(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.sql(dsn, "ALTER TABLE presence_stream RENAME COLUMN state TO condition")
        where = ("--database-path", self.dsn_file(dsn))
        done = self.in_process("land", self.lake, *where)
        self.assertEqual((done.code, done.err.count("\n")), (1, 1), done)
        self.assertIn("presence_stream.state is missing", done.err)
        self.assertIn("events", done.out)
        self.assertEqual(
            self.output_of("land", self.lake, *where, "--stream", "events"), "Nothing new.\n"
        )
        done = self.in_process("land", self.lake, *where, "--stream", "presence")
        self.assertIn("presence_stream.state is missing", done.err)
