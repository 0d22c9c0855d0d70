"""``synrepl lake`` over a database whose server was promoted and lacks commits."""

from __future__ import annotations

import json

from synrepl.pipeline.lake.lake import Lake
from system_tests.cli.lake_case import LakeCase
from system_tests.pipeline.landing_case import rows_of
from tests.storage.postgres import PREPARED
from tests.storage.samples import TAMPERING
from tests.storage.test_failover_sql import PROMOTE

#: What an earlier state of the database has not: a fact, and where the lake is.
LOSE = f"{TAMPERING}; DELETE FROM synrepl.notes WHERE stream_id > 2; DELETE FROM synrepl._followers"


class LakeAfterAFailover(LakeCase):
    """The lake commands after a failover of the database."""

    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        self.dsn = await PREPARED.copy(self)
        self.database = ("--database-path", self.dsn_file(self.dsn))

    async def test_reports_and_drops_lost_rows(self) -> None:
        self.append_notes(self.dsn, "one", "two", "three", "four")
        self.output_of("land", self.lake, *self.database)
        self.sql(self.dsn, f"{LOSE}; {PROMOTE}")
        for command in "land", "check":
            done = self.in_process(command, self.lake, *self.database)
            self.assertEqual(done.code, 1, done)
            self.assertIn("the database is not confirmed", done.err)
        self.sql(self.dsn, "SELECT synrepl.confirm()")
        self.append_notes(self.dsn, "five")

        done = self.in_process("land", self.lake, *self.database, "--json")
        self.assertEqual(done.code, 1, done)
        answer = json.loads(done.out)
        self.assertEqual(answer["rows"], {"notes": 1})
        self.assertEqual(
            answer["lost_in_failover"],
            {"notes": [{"incarnation": 2, "writer": "sql", "after": 2, "upto": 4, "rows": 2}]},
        )
        lost = "stream 'notes': 2 rows of writer 'sql', tokens 3 to 4, lost by the database"
        self.assertIn(lost, " ".join(done.err.split()))
        self.assertEqual(self.output_of("land", self.lake, *self.database), "Nothing new.\n")

        done = self.in_process("check", self.lake, *self.database)
        self.assertEqual((done.code, done.err), (1, ""), done)
        kept = "all that the database has up to its position, and rows that the database lost"
        for part in (
            "LOST IN A FAILOVER",
            "2 rows were lost by the database",
            "tokens 3 to 4",
            kept,
        ):
            self.assertIn(part, " ".join(done.out.split()))
        self.assertNotIn("DIFFERS", done.out)
        answer = json.loads(
            self.output_of("check", self.lake, *self.database, "--json", "--accept-lost")
        )
        self.assertEqual((answer["outcome"], answer["equal"]), ("lost in a failover", False))

        lines = self.output_of("drop-lost", self.lake, *self.database).splitlines()
        self.assertTrue(lines[0].startswith("stream 'notes': dropped 2 rows of writer 'sql'"))
        self.assertIn("All equal.", self.output_of("check", self.lake, *self.database))
        self.assertEqual(
            json.loads(self.output_of("drop-lost", self.lake, *self.database, "--json")), {}
        )
        texts = [row[3] for row in rows_of(Lake(self.lake).table("notes"))]
        self.assertEqual(texts, ["one", "two", "five"])
