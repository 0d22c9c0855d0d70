"""``synrepl doctor database``: a process and a real database, ours or a real Synapse's."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from synrepl.testing.postgres import with_durable_server
from tests.cli.cli_case import CliCase, CommandResult
from tests.storage.foreign_databases import foreign_database

DOCTOR = ("doctor", "database")


class DoctorCase(CliCase):
    async def setUp(self) -> None:  # type: ignore[override]
        super().setUp()
        await with_durable_server(self)

    def dsn_file(self, dsn: str, mode: int = 0o600) -> Path:
        path = self.directory / "dsn"
        path.write_text(f"{dsn}\n")
        path.chmod(mode)
        return path

    def sql(self, dsn: str, statement: str) -> None:
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
        connection.close()


class DoctorOfOwnDatabase(DoctorCase):
    async def test_reports_a_fault_and_fixes_it(self) -> None:
        master = await self.master()
        done = await self.run_command(*DOCTOR, "-c", master.path)
        first, rest = done.out.split("\n", 1)
        self.assertRegex(first, r"^database host=127\.0\.0\.1 .*: synrepl's$")
        golden = """
stream  given out  in table  linear  trimmed  writers          held by
events          0         0       0        0  master 0, sql 0  -
orders          0         0       0        0  master 0, sql 0  -

nothing is wrong in the database
"""
        self.assertEqual(CommandResult(done.code, rest, done.err), CommandResult(0, golden, ""))
        await master.stop()
        dsn = re.search("database: (.*)", master.path.read_text())
        assert dsn is not None
        self.sql(dsn[1], "UPDATE synrepl._streams SET position = 7 WHERE stream = 'orders'")
        done = await self.run_command(*DOCTOR, "-c", master.path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertIn(
            "\nerror: position-ahead (orders): a position on record is 7, the sequence gave out 0"
            " only\n  cure: 'synrepl doctor database --fix' uses the sequence up to there;",
            done.out,
        )
        self.assertNotIn("nothing is wrong", done.out)
        done = await self.run_command(*DOCTOR, "-c", master.path, "--fix", "--json")
        self.assertEqual((done.code, done.err), (0, ""))
        answer = json.loads(done.out)
        self.assertEqual(answer["done"], ["orders: the sequence was used up beyond 7"])
        self.assertEqual((answer["healthy"], answer["findings"]), (True, []))
        self.assertEqual(answer["streams"]["orders"]["last"], 8)


class DoctorOfASynapseDatabase(DoctorCase):
    async def test_reports_what_could_not_be_examined(self) -> None:
        dsn = await foreign_database("1.43.0", self)
        parts = urlsplit(dsn)
        self.addCleanup(self.sql, dsn, "DROP ROLE visitor")
        self.sql(dsn, "CREATE ROLE visitor LOGIN PASSWORD 'v' IN ROLE pg_read_all_data")
        path = self.dsn_file(dsn.replace(f"{parts.username}:{parts.password}@", "visitor:v@"))
        with closing(psycopg2.connect(dsn, application_name="w1")):
            done = await self.run_command(*DOCTOR, "--database-path", path)
            self.assertEqual((done.code, done.err), (3, ""))
            self.assertIn("\nnot looked at: sessions-hidden (connections): 1 connections", done.out)
            self.assertIn("\nnothing is wrong in what could be looked at\n", done.out)
            done = await self.run_command(*DOCTOR, "--database-path", path, "--json")
            self.assertEqual((done.code, done.err), (3, ""))
            answer = json.loads(done.out)
            self.assertEqual((answer["healthy"], answer["complete"]), (False, False))
            (finding,) = answer["findings"]
            self.assertEqual((finding["id"], finding["severity"]), ("sessions-hidden", "unseen"))
        done = await self.run_command(*DOCTOR, "--database-path", path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn("\nnothing is wrong in the database\n", done.out)

    async def test_takes_the_dsn_from_a_file_or_the_environment(self) -> None:
        dsn = await foreign_database("1.43.0", self)
        path = self.dsn_file(dsn)
        done = await self.run_command(*DOCTOR, "--database-path", path)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertIn(": a Synapse's, schema 63\n", done.out)
        self.assertRegex(done.out, r"\nbackfill +31 +31 +master 31 +-\n")
        with closing(psycopg2.connect(dsn, application_name="w1")) as connection:
            connection.cursor().execute("DELETE FROM receipts_linearized")
            young = await self.run_command(*DOCTOR, "--database-path", path)
            old = await self.run_command(*DOCTOR, "--database-path", path, "--older", "0")
            who = rf"backend {connection.get_backend_pid()} \(w1\)"
        self.assertEqual((young.code, old.code), (0, 1))
        for done in (young, old):
            self.assertRegex(done.out, rf"\nreceipts +89 +89 +master 89 +{who}\n")
        self.assertRegex(young.out, rf"\n\nreceipts held by {who}, idle in transaction for ")
        self.assertNotIn("held by backend", old.out)  # the finding says so
        self.assertRegex(old.out, rf"\nwarning: idle-transaction .* holds receipts: {who}, idle ")
        self.sql(dsn, "SELECT setval('events_stream_seq', 1510)")
        self.patch(os, "environ", {**os.environ, "SYNREPL_DATABASE": dsn})
        done = await self.run_command(*DOCTOR, "--json")
        self.assertEqual((done.code, done.err), (1, ""))
        (finding,) = json.loads(done.out)["findings"]
        self.assertEqual((finding["id"], finding["where"]), ("sequence-behind", "events"))
        whole = await self.run_command("doctor", "--json")
        self.assertEqual((whole.code, whole.err), (1, ""))
        answer, again = json.loads(whole.out), json.loads(done.out)
        self.assertEqual((answer["findings"], "caches" in answer), (again["findings"], False))
        done = await self.run_command(*DOCTOR, "--fix")
        self.assertEqual((done.code, done.out), (1, ""))
        self.assertIn("the database is a Synapse's, and nothing is ever written there", done.err)


class DoctorUsage(DoctorCase):
    async def check(self, words: str, *arguments: object) -> None:
        done = await self.run_command(*DOCTOR, *arguments)
        self.assertEqual((done.code, done.out), (2, ""))
        self.assertIn(words, done.err)
        self.assertNotIn("hunter2", done.err)

    async def test_refuses_a_password_on_the_command_line(self) -> None:
        for dsn in (
            "postgresql://me:hunter2@127.0.0.1/x",
            "postgresql://127.0.0.1/x?sslmode=disable&p%61ssword=hunter2",
            "host=127.0.0.1 password = hunter2",
        ):
            await self.check("the DSN of --database holds a password", "--database", dsn)

    async def test_accepts_a_dsn_without_password(self) -> None:
        parts = urlsplit(await foreign_database("1.11.1"))
        self.patch(os, "environ", {**os.environ, "PGPASSWORD": parts.password or ""})
        dsn = f"postgresql://{parts.username}@127.0.0.1:{parts.port}{parts.path}?sslmode=disable"
        done = await self.run_command(*DOCTOR, "--database", dsn)
        self.assertEqual((done.code, done.err), (0, ""))

    async def test_requires_exactly_one_database(self) -> None:
        self.patch(os, "environ", {k: v for k, v in os.environ.items() if k != "SYNREPL_DATABASE"})
        await self.check("which database is to be examined?")
        await self.check("which database is to be examined?", "-c", "x", "--database-path", "y")

    async def test_refuses_a_readable_or_invalid_dsn_file(self) -> None:
        readable = self.dsn_file("postgresql://me:hunter2@127.0.0.1/x", 0o644)
        await self.check("can be read by everybody (mode 0644)", "--database-path", readable)
        await self.check("neither a postgresql:// URI", "--database-path", self.dsn_file("hunter2"))
