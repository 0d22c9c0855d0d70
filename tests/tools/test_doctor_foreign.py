"""Each fault of a real Synapse's database is the only finding about it."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.storage.foreign.release import MayNotRead
from synrepl.testing.postgres import fresh_database, with_durable_server
from synrepl.tools.doctor.examine import NothingToExamine, NotOurs, examine
from synrepl.tools.doctor.report import ExaminationReport, Severity
from synrepl.tools.doctor.thresholds import Thresholds
from tests.storage.foreign_databases import foreign_database

#: Every open transaction is too old.
ANY_AGE = Thresholds(transaction_s=-1.0)


class DoctorOfSynapseDatabase(TestCase):
    timeout = 60

    async def setUp(self) -> None:
        await with_durable_server(self)

    async def examine(
        self, dsn: str, thresholds: Thresholds = ANY_AGE, **more: Any
    ) -> ExaminationReport:
        database = PostgresDatabase(reactor, dsn, "doctor")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return await examine(database, thresholds, **more)

    def sql(self, dsn: str, statement: str, *params: object) -> None:
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, params or None)
        connection.close()

    async def found(self, dsn: str) -> list[tuple[str, str]]:
        return [(each.id, each.where) for each in (await self.examine(dsn)).findings]

    async def test_finds_nothing_in_a_healthy_database(self) -> None:
        for version, schema, streams in (
            ("1.11.1", 57, 14),
            ("1.43.0", 63, 13),
            ("1.163.2", 94, 16),
        ):
            report = await self.examine(await foreign_database(version))
            self.assertEqual((report.findings, report.is_healthy), ((), True))
            self.assertEqual(report.whose, f"a Synapse's, schema {schema}")
            self.assertEqual(len(report.streams), streams)

    async def test_reports_the_positions_of_a_stream(self) -> None:
        report = await self.examine(await foreign_database("1.163.2"))
        self.assertEqual(
            report.to_json()["streams"]["backfill"],
            {
                "last": 43,
                "highest": 43,
                "linear": None,
                "writers": {"persister1": 22, "persister2": 43},
                "trimmed": None,
                "kept_for": None,
                "held_by": None,
            },
        )

    async def test_finds_a_sequence_behind_its_table(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        for sequence, last, stream in (
            ("events_stream_seq", 614, "events"),
            ("events_backfill_stream_seq", 43, "backfill"),
            ("cache_invalidation_stream_seq", 503, "caches"),
        ):
            self.sql(dsn, "SELECT setval(%s, %s)", sequence, last - 32)
            (finding,) = (await self.examine(dsn)).findings
            self.assertEqual((finding.id, finding.where), ("sequence-behind", stream))
            self.assertEqual(finding.severity, Severity.ERROR)
            self.assertIn(f"gave out {last - 32}, its tables go up to {last}", finding.what)
            # The suggested cure works.
            before, _, statement = finding.cure.partition(": ")
            self.assertEqual(before, "with every process of Synapse stopped")
            self.sql(dsn, statement)
            self.assertEqual(await self.found(dsn), [])

    async def test_compares_a_shared_sequence_with_all_its_streams(self) -> None:
        dsn = await foreign_database("1.43.0", self)
        self.sql(dsn, "SELECT setval('account_data_sequence', 20)")
        (finding,) = (await self.examine(dsn)).findings
        self.assertEqual(finding.id, "sequence-behind")
        self.assertEqual(finding.where, "account_data, tag_account_data")
        self.assertIn("go up to 56", finding.what)

    async def test_finds_a_position_ahead_of_the_sequence(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        for stream, name, pushed in (("events", "events", 700), ("backfill", "backfill", -700)):
            self.sql(
                dsn,
                "UPDATE stream_positions SET stream_id = %s"
                " WHERE stream_name = %s AND instance_name = 'persister1'",
                pushed,
                name,
            )
            (finding,) = (await self.examine(dsn)).findings
            self.assertEqual((finding.id, finding.where), ("position-ahead", stream))
            self.assertIn("persister1 at 700", finding.what)
            self.sql(dsn, finding.cure.partition(": ")[2])
            self.assertEqual(await self.found(dsn), [])

    async def test_finds_a_position_behind_the_table(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        for stream, name, writer, behind, at in (
            ("receipts", "receipts", "writer1", 40, 53),
            ("account_data", "account_data", "writer1", 30, 45),  # its rows have no writer
        ):
            move = "UPDATE stream_positions SET stream_id = %s WHERE (stream_name, instance_name) = (%s, %s)"
            self.sql(dsn, move, behind, name, writer)
            (finding,) = (await self.examine(dsn)).findings
            self.assertEqual((finding.id, finding.where), ("position-behind", stream))
            self.assertIn(
                f"is at {behind} in stream_positions and has rows up to {at}", finding.what
            )
            self.assertEqual(finding.severity, Severity.WARNING)
            self.sql(dsn, move, at, name, writer)
            self.assertEqual(await self.found(dsn), [])

    async def test_finds_a_stream_without_a_writer(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.sql(dsn, "DELETE FROM stream_positions WHERE stream_name = 'to_device'")
        self.assertEqual(await self.found(dsn), [("no-writer", "to_device")])

    async def test_finds_an_idle_transaction_and_masks_its_query(self) -> None:
        dsn = await foreign_database("1.11.1", self)
        connection = psycopg2.connect(dsn, application_name="forgetful")
        self.addCleanup(connection.close)
        connection.cursor().execute("SELECT 'syt_secret', 'it''s', 1,\n 2 FROM events LIMIT 1")
        pid = connection.get_backend_pid()
        (finding,) = (await self.examine(dsn)).findings
        self.assertEqual((finding.id, finding.where), ("idle-transaction", f"backend {pid}"))
        text = rf"backend {pid} \(forgetful\), idle in transaction for \d+ s, "
        self.assertRegex(finding.what, text)
        self.assertTrue(finding.what.endswith("SELECT '…', '…', 1, 2 FROM events LIMIT 1"))
        self.assertIn(f"pg_terminate_backend({pid})", finding.cure)
        report = await self.examine(dsn, Thresholds())  # it is not old enough
        self.assertEqual(report.findings, ())
        connection.rollback()
        self.assertEqual(await self.found(dsn), [])

    async def test_names_the_stream_that_a_transaction_holds(self) -> None:
        for version in ("1.11.1", "1.43.0", "1.163.2"):
            dsn = await foreign_database(version, self)
            with closing(psycopg2.connect(dsn, application_name="writer1")) as connection:
                connection.cursor().execute("DELETE FROM receipts_linearized")
                pid = connection.get_backend_pid()
                report = await self.examine(dsn)
                (finding,) = report.findings
                self.assertEqual(finding.id, "idle-transaction")
                text = "an open transaction holds receipts: backend"
                self.assertTrue(finding.what.startswith(f"{text} {pid} (writer1), idle "))
                self.assertIn(", from 127.0.0.1:", finding.what)
                held = {name: line.held_by for name, line in report.streams.items() if line.held_by}
                self.assertEqual(list(held), ["receipts"])
                self.assertIn(
                    f"backend {pid} (writer1), idle in transaction", str(held["receipts"])
                )

    def start_slow(self, dsn: str, statement: str) -> tuple[int, Deferred[None]]:
        """Start a slow statement in a thread: its backend PID, and a Deferred for its end."""
        connection = psycopg2.connect(dsn, application_name="slow")

        def work() -> None:
            with closing(connection):
                connection.cursor().execute(statement)

        return connection.get_backend_pid(), deferToThread(work)

    async def report_with(self, dsn: str, words: str) -> ExaminationReport:
        """The first report with a finding that contains ``words``."""
        while True:
            report = await self.examine(dsn)
            if any(words in finding.what for finding in report.findings):
                return report

    async def test_names_the_backend_that_a_transaction_waits_for(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        connection = psycopg2.connect(dsn, application_name="holder")
        self.addCleanup(connection.close)
        connection.cursor().execute("LOCK TABLE receipts_linearized IN ACCESS EXCLUSIVE MODE")
        holder = connection.get_backend_pid()
        pid, ended = self.start_slow(dsn, "SELECT FROM receipts_linearized")
        report = await self.report_with(dsn, f"waits for backend {holder}")
        found = {finding.where: finding for finding in report.findings}
        self.assertEqual(set(found), {"receipts", f"backend {holder}", f"backend {pid}"})
        locked = found["receipts"]
        self.assertEqual((locked.id, locked.severity), ("table-locked", Severity.ERROR))
        self.assertIn(
            f"nobody can read or write receipts_linearized, so neither could this: backend {holder}",
            locked.what,
        )
        self.assertEqual((len(report.streams), "receipts" in report.streams), (15, False))
        waiting = found[f"backend {pid}"]
        self.assertEqual((waiting.id, waiting.severity), ("long-transaction", Severity.WARNING))
        connection.rollback()
        await ended

    async def test_a_long_read_is_only_a_note(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        pid, ended = self.start_slow(dsn, "SELECT pg_sleep(60) FROM events")
        report = await self.report_with(dsn, "SELECT pg_sleep")  # it is past its BEGIN
        (finding,) = report.findings
        self.assertIn("has written nothing", finding.what)
        self.assertEqual((finding.id, finding.severity), ("long-transaction", Severity.NOTE))
        self.assertIn(f"backend {pid} (slow), active for ", finding.what)
        self.assertTrue(report.is_healthy)
        self.sql(dsn, "SELECT pg_cancel_backend(%s)", pid)
        await self.assertFailure(ended, psycopg2.errors.QueryCanceled)

    async def test_ignores_a_position_that_moves_before_the_second_look(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        waits: list[int] = []

        async def wait(*then: object) -> None:
            waits.append(1)
            self.sql(dsn, move, *then)

        move = "UPDATE stream_positions SET stream_id = %s WHERE (stream_name, instance_name) = (%s, %s)"
        behind = (40, "receipts", "writer1")
        for then, where in (
            ((53, "receipts", "writer1"), []),
            ((45, "receipts", "writer1"), []),  # it moves under load
            ((600, "events", "persister1"), ["receipts"]),  # this position is about to move, too
        ):
            self.sql(dsn, move, *behind)
            report = await self.examine(dsn, wait=partial(wait, *then))
            self.assertEqual([each.where for each in report.findings], where)
        self.assertEqual(len(waits), 3)
        self.sql(dsn, move, 612, "events", "persister1")
        self.sql(dsn, move, 53, "receipts", "writer1")
        self.assertEqual((await self.examine(dsn, wait=wait)).findings, ())
        self.assertEqual(len(waits), 3)

    async def test_reports_sessions_hidden_from_a_reader(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        parts = urlsplit(dsn)
        reader = dsn.replace(f"{parts.username}:{parts.password}@", "guest:guest@")
        self.addCleanup(self.sql, dsn, "DROP ROLE guest")
        self.sql(dsn, "CREATE ROLE guest LOGIN PASSWORD 'guest' IN ROLE pg_read_all_data")
        connection = psycopg2.connect(dsn)
        self.addCleanup(connection.close)
        connection.cursor().execute("SELECT FROM events")
        report = await self.examine(reader)
        self.assertEqual([finding.id for finding in report.findings], ["sessions-hidden"])
        self.assertEqual(
            (report.has_problems, report.is_complete, report.is_healthy), (False, False, False)
        )
        self.assertEqual(len(report.streams), 16)
        self.sql(dsn, "GRANT pg_read_all_stats TO guest")
        report = await self.examine(reader)
        self.assertEqual([finding.id for finding in report.findings], ["idle-transaction"])
        self.assertEqual(
            (report.has_problems, report.is_complete, report.is_healthy), (True, True, False)
        )
        connection.rollback()
        self.assertTrue((await self.examine(reader)).is_healthy)

    async def test_reports_tables_that_the_user_may_not_read(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        parts = urlsplit(dsn)
        reader = dsn.replace(f"{parts.username}:{parts.password}@", "guest:guest@")
        self.addCleanup(self.sql, dsn, "DROP ROLE guest")
        self.addCleanup(self.sql, dsn, "DROP OWNED BY guest")
        self.sql(
            dsn,
            "CREATE ROLE guest LOGIN PASSWORD 'guest' IN ROLE pg_read_all_stats;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest",
        )
        report = await self.examine(reader)
        found = {finding.where: finding for finding in report.findings}
        self.assertEqual({finding.id for finding in found.values()}, {"not-readable"})
        self.assertIn("may not read sequence receipts_sequence:", found["receipts"].what)
        self.assertEqual((report.has_problems, report.is_complete), (False, False))
        self.assertEqual(report.streams["receipts"].highest, 55)
        self.sql(
            dsn,
            "GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO guest;"
            "REVOKE SELECT ON receipts_linearized, stream_positions FROM guest",
        )
        report = await self.examine(reader)
        self.assertEqual(
            [(each.id, each.where) for each in report.findings],
            [("not-readable", "all streams"), ("not-readable", "receipts")],
        )
        self.assertNotIn("receipts", report.streams)
        self.assertEqual(report.streams["events"].highest, 614)
        self.sql(dsn, "REVOKE SELECT ON schema_version FROM guest")
        with self.assertRaisesRegex(MayNotRead, "may not read table schema_version"):
            await self.examine(reader)

    async def test_refuses_to_fix(self) -> None:
        dsn = await foreign_database("1.163.2", self)
        self.sql(dsn, "SELECT setval('events_stream_seq', 10)")
        with self.assertRaises(NotOurs):
            await self.examine(dsn, fix=True)
        self.assertEqual(await self.found(dsn), [("sequence-behind", "events")])

    async def test_refuses_an_unknown_database(self) -> None:
        with self.assertRaises(NothingToExamine):
            await self.examine(await fresh_database(self))
