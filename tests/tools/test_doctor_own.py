"""Each fault of synrepl's own database is the only finding, and --fix repairs the fixable ones."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred

from synrepl.core.tokens import Token
from synrepl.storage.followers import repair
from synrepl.storage.store import Draft
from synrepl.storage.tables import sequence_name
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.backfill import BACKFILL, BackfillRow
from synrepl.streams.synapse.tag_account_data import TAG_ACCOUNT_DATA, TagAccountDataRow
from synrepl.testing.postgres import with_durable_server
from synrepl.tools.doctor.examine import NoWriterToLend, examine
from synrepl.tools.doctor.report import ExaminationReport, Severity
from synrepl.tools.doctor.thresholds import Thresholds
from tests.storage.postgres import PostgresCase, Process
from tests.storage.samples import NOTES, note

#: Every transaction and reservation is too old.
ANY_AGE = Thresholds(transaction_s=-1.0)

OLD = BackfillRow("$e:x", "!r:x", "m.room.message", None, None, None)


class DoctorOfOwnDatabase(PostgresCase):
    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await with_durable_server(self)
        self.doctor = self.process("doctor")

    async def examine(
        self, thresholds: Thresholds = ANY_AGE, fix: bool = False
    ) -> ExaminationReport:
        return await examine(self.doctor.database, thresholds, fix)

    async def found(self, thresholds: Thresholds = ANY_AGE) -> list[tuple[str, str]]:
        return [(each.id, each.where) for each in (await self.examine(thresholds)).findings]

    async def append(self, stream: Stream, row: Row, count: int) -> list[Token]:
        """Append facts as a writer that then closes its session."""
        process = self.process("one")
        lease = await process.store.open_writer("one", [stream])
        (written,) = await lease.append(stream, [Draft([[row]] * count)], 0)
        await lease.close()
        await process.store.record_positions(
            stream, written.tokens[-1], {"one": written.tokens[-1]}
        )
        await process.close()
        return list(written.tokens)

    async def test_finds_nothing_in_a_healthy_database(self) -> None:
        await self.append(NOTES, note("a"), 3)
        report = await self.examine()
        self.assertEqual((report.findings, report.is_healthy), ((), True))
        line = report.streams["notes"]
        self.assertEqual((line.last, line.highest, line.linear), (3, 3, 3))
        self.assertEqual(line.writers, {"one": 3, "sql": 0})

    async def test_finds_a_sequence_behind_its_table(self) -> None:
        for stream, row in ((NOTES, note("a")), (BACKFILL, OLD)):
            await self.append(stream, row, 40)
            sign = -1 if stream.counts_down else 1
            self.sql(f"SELECT setval('{sequence_name(stream)}', %s)", sign * 8)
            (finding,) = (await self.examine()).findings
            self.assertEqual((finding.id, finding.where), ("sequence-behind", stream.name))
            self.assertIn("gave out 8, the table has facts up to 40", finding.what)
            self.assertTrue(finding.fixable)
            fixed = await self.examine(fix=True)
            self.assertEqual(fixed.done, (f"{stream.name}: the sequence was used up beyond 40",))
            self.assertEqual(fixed.findings, ())
            self.assertEqual((await self.append(stream, row, 1)), [42])
        self.assertEqual((await self.examine(fix=True)).done, ())

    async def test_reports_a_table_that_this_user_may_not_read(self) -> None:
        await self.append(NOTES, note("a"), 3)
        self.sql(
            "CREATE ROLE onlooker LOGIN PASSWORD 'o' IN ROLE pg_read_all_stats;"
            "GRANT USAGE ON SCHEMA synrepl TO onlooker;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA synrepl TO onlooker;"
            "GRANT SELECT ON ALL SEQUENCES IN SCHEMA synrepl TO onlooker;"
            "REVOKE SELECT ON synrepl.notes FROM onlooker"
        )
        self.addCleanup(self.sql, "DROP OWNED BY onlooker; DROP ROLE onlooker")
        parts = urlsplit(self.dsn)
        onlooker = self.dsn.replace(f"{parts.username}:{parts.password}@", "onlooker:o@")
        self.doctor = Process(onlooker, "onlooker")
        self.addCleanup(lambda: Deferred.fromCoroutine(self.doctor.close()))
        report = await self.examine()
        self.assertEqual([(f.id, f.where) for f in report.findings], [("not-readable", "notes")])
        self.assertEqual(
            (report.has_problems, report.is_complete, report.is_healthy), (False, False, False)
        )

    async def test_compares_a_shared_sequence_with_all_its_streams(self) -> None:
        await self.doctor.store.prepare([ACCOUNT_DATA, TAG_ACCOUNT_DATA])
        self.assertEqual(await self.found(), [])
        await self.append(TAG_ACCOUNT_DATA, TagAccountDataRow("@u:x", "!r:x", "{}"), 40)
        self.sql(f"SELECT setval('{sequence_name(ACCOUNT_DATA)}', 8)")
        self.assertEqual(await self.found(), [("sequence-behind", "tag_account_data")])
        report = await self.examine(fix=True)
        self.assertEqual((report.findings, report.streams["account_data"].last), ((), 41))

    async def test_finds_a_position_ahead_of_the_sequence(self) -> None:
        await self.append(NOTES, note("a"), 3)
        for statement in (
            "UPDATE synrepl._streams SET position = 50 WHERE stream = 'notes'",
            "UPDATE synrepl._writers SET position = 90 WHERE stream = 'notes' AND writer = 'one'",
        ):
            self.sql(statement)
            self.assertEqual(await self.found(), [("position-ahead", "notes")])
            self.assertEqual((await self.examine(fix=True)).findings, ())

    async def test_refuses_to_fix_a_sequence_without_a_free_writer(self) -> None:
        self.sql("UPDATE synrepl._streams SET position = 50 WHERE stream = 'notes'")
        self.sql("UPDATE synrepl._writers SET draining = true WHERE stream = 'notes'")
        with self.assertRaisesRegex(NoWriterToLend, "stream 'notes' cannot be used up"):
            await self.examine(fix=True)
        self.assertEqual(await self.found(), [("position-ahead", "notes")])

    async def test_finds_and_fences_a_dead_writer(self) -> None:
        process = self.process("doomed")
        lease = await process.store.open_writer("doomed", [NOTES])
        backend = process.session_of(lease).backend_pid
        self.assertEqual(await self.found(), [])
        self.sql("SELECT pg_terminate_backend(%s, 10000)", backend)
        (finding,) = (await self.examine()).findings
        self.assertEqual((finding.id, finding.severity), ("dead-writer", Severity.ERROR))
        self.assertIn("writer doomed", finding.what)
        fixed = await self.examine(fix=True)
        self.assertEqual(fixed.done, ("notes: writer doomed was fenced off",))
        self.assertEqual(fixed.findings, ())

    async def test_finds_an_idle_transaction_of_another_client(self) -> None:
        connection = self.connect()
        connection.autocommit = False
        self.sql("CREATE TABLE other (x int)", on=connection)
        pid = connection.get_backend_pid()
        report = await self.examine()
        (finding,) = report.findings
        self.assertEqual((finding.id, finding.where), ("idle-transaction", f"backend {pid}"))
        self.assertIn(f"an open transaction holds what it wrote: backend {pid}", finding.what)
        self.assertEqual(report.streams["notes"].held_by, None)
        self.assertEqual((await self.examine(Thresholds())).findings, ())
        connection.rollback()
        self.assertEqual(await self.found(), [])

    async def test_finds_a_locked_table(self) -> None:
        await self.append(NOTES, note("a"), 3)
        connection = self.connect()
        connection.autocommit = False
        self.sql('LOCK TABLE synrepl."notes"', on=connection)
        pid = connection.get_backend_pid()
        report = await self.examine(Thresholds())  # regardless of its age
        (finding,) = report.findings
        self.assertEqual((finding.id, finding.where), ("table-locked", "notes"))
        text = f"nobody can read or write notes, so neither could this: backend {pid}"
        self.assertIn(text, finding.what)
        self.assertEqual((report.streams["notes"].last, report.is_healthy), (3, False))
        connection.rollback()
        self.assertEqual(await self.found(), [])

    async def test_finds_an_open_transaction_that_holds_a_stream(self) -> None:
        connection = self.connect()
        connection.autocommit = False
        self.sql("SELECT synrepl.append('notes', '[{\"text\": \"held\"}]')", on=connection)
        pid = connection.get_backend_pid()
        (finding,) = (await self.examine()).findings
        self.assertEqual((finding.id, finding.where), ("held", "notes"))
        self.assertIn(
            f"held at 0 of 1 by writer sql: backend {pid}, idle in transaction", finding.what
        )
        self.assertIn("SELECT synrepl.append('…', '…')", finding.what)
        self.assertIn(f"pg_terminate_backend({pid})", finding.cure)
        report = await self.examine(Thresholds())  # it is not old enough
        self.assertEqual(report.findings, ())
        self.assertIn(f"sql: backend {pid}, idle", str(report.streams["notes"].held_by))
        connection.rollback()
        self.assertEqual(await self.found(), [])

    async def test_finds_an_open_reservation(self) -> None:
        process: Process = self.process("slow")
        lease = await process.store.open_writer("slow", [NOTES])
        tokens = await lease.reserve(NOTES, 2, 0)
        (finding,) = (await self.examine()).findings
        self.assertEqual((finding.id, finding.where), ("held", "notes"))
        self.assertIn("by writer slow", finding.what)
        await lease.release(NOTES, tokens)
        self.assertEqual(await self.found(), [])

    async def test_ignores_a_transaction_that_holds_nothing(self) -> None:
        connection = self.connect()
        connection.autocommit = False
        self.sql("SELECT count(*) FROM synrepl.notes", on=connection)
        self.assertEqual(await self.found(), [])
        connection.rollback()

    async def test_finds_followers_behind_and_leases_that_end(self) -> None:
        await self.append(NOTES, note("a"), 30)
        store = self.process("follower").store
        await store.record_follower("near", {("notes", "one"): 28})
        await store.record_follower("far", {("notes", "one"): 10})
        await store.renew_lease("near", None, 86_400.0)
        await store.renew_lease("far", ["notes"], 86_400.0)
        thresholds = Thresholds(behind=15)
        report = await self.examine(thresholds)
        (finding,) = report.findings
        self.assertEqual((finding.id, finding.where), ("follower-behind", "notes"))
        self.assertIn("follower far is 20 behind the position of writer one", finding.what)
        self.assertEqual(report.streams["notes"].kept_for, "far")
        self.assertEqual(
            {name: line.behind for name, line in report.followers.items()}, {"far": 20, "near": 2}
        )
        self.sql("UPDATE synrepl._streams SET trimmed = 12 WHERE stream = 'notes'")
        (finding,) = (await self.examine(thresholds)).findings
        self.assertIn("keeps the stream from being trimmed beyond 12", finding.what)
        await store.renew_lease("far", ["notes"], 100.0)
        report = await self.examine()
        self.assertEqual([f.id for f in report.findings], ["lease-ends-soon"])
        self.assertTrue(report.is_healthy)
        await store.renew_lease("far", ["notes"], -100.0)
        report = await self.examine(thresholds)
        self.assertEqual([(f.id, f.where) for f in report.findings], [("lease-expired", "far")])
        self.assertEqual(report.streams["notes"].kept_for, "near")
        cure = "start that worker; or, if it will not come back: 'synrepl followers remove far'"
        self.assertEqual(report.findings[0].cure, cure)
        await self.doctor.database.run("remove", lambda txn: repair.remove(txn, "far"))
        self.assertEqual(await self.found(), [])

    async def test_quotes_the_follower_name_in_a_command(self) -> None:
        store = self.process("follower").store
        await store.renew_lease("it's far", None, -100.0)
        (finding,) = (await self.examine()).findings
        command = finding.cure.partition("'")[2].removesuffix("'")
        self.assertEqual(shlex.split(command), ["synrepl", "followers", "remove", "it's far"])

    async def test_a_follower_without_a_position_is_behind_by_everything(self) -> None:
        await self.append(NOTES, note("a"), 30)
        store = self.process("follower").store
        await store.renew_lease("new", ["notes"], 86_400.0)
        await store.renew_lease("elsewhere", ["events"], 86_400.0)
        report = await self.examine(Thresholds(behind=20))
        (finding,) = report.findings
        self.assertEqual((finding.id, finding.where), ("follower-behind", "notes"))
        self.assertIn("new is 30 behind the position: it has no position on record", finding.what)
        self.assertEqual(
            {name: line.behind for name, line in report.followers.items()},
            {"new": 30, "elsewhere": 0},
        )
        self.sql("UPDATE synrepl._streams SET trimmed = 25 WHERE stream = 'notes'")
        self.assertEqual((await self.examine()).followers["new"].behind, 5)

    async def test_finds_a_follower_ahead_of_the_last_token(self) -> None:
        await self.append(NOTES, note("a"), 30)
        store = self.process("follower").store
        await store.record_follower("w1", {("notes", "one"): 30})
        self.assertEqual(await self.found(), [])
        insert = "INSERT INTO synrepl._handler_positions VALUES ('w1', %s, 'notes', 'one', %s, 0)"
        self.sql(insert, "mail", 1_000_000)
        (finding,) = (await self.examine()).findings
        self.assertEqual(
            (finding.id, finding.where, finding.severity),
            ("follower-ahead", "notes", Severity.ERROR),
        )
        self.assertIn("w1 (handler mail) is at 1000000 of writer one, and only 30", finding.what)
        self.assertIn("'synrepl followers reset w1 notes --to TOKEN'", finding.cure)
        # One finding for all positions in a stream, including those of unknown writers.
        await store.record_follower("w1", {("notes", "forged"): 2_000_000, ("typing", "x"): 9})
        (finding,) = (await self.examine()).findings
        self.assertIn("follower w1 is at 2000000 of writer forged", finding.what)
        self.sql(f"SELECT setval('{sequence_name(NOTES)}', 2000000)")
        self.assertEqual(await self.found(), [])

    async def test_names_the_handlers_that_are_behind(self) -> None:
        await self.append(NOTES, note("a"), 30)
        store = self.process("follower").store
        await store.renew_lease("w1", ["notes"], 86_400.0)
        insert = "INSERT INTO synrepl._handler_positions VALUES ('w1', %s, 'notes', 'one', %s, 0)"
        for handler, position in (("mail", 4), ("totals", 30)):
            self.sql(insert, handler, position)
        for record in ({}, {("notes", "one"): 4}):
            await store.record_follower("w1", record)
            (finding,) = (await self.examine(Thresholds(behind=20))).findings
            self.assertEqual((finding.id, finding.where), ("follower-behind", "notes"))
            self.assertIn("w1 is 26 behind the position of writer one", finding.what)
            self.assertTrue(finding.what.endswith("handlers that are no further: mail"))
        # A handler that is no longer configured does not count.
        await store.record_follower("w1", {("notes", "one"): 30})
        self.assertEqual((await self.examine(Thresholds(behind=20))).findings, ())

    async def test_finds_a_follower_without_heartbeats(self) -> None:
        await self.process("follower").store.renew_lease("w1", None, 86_400.0)
        self.assertEqual(await self.found(), [])
        self.sql("UPDATE synrepl._follower_leases SET seen_at = now() - interval '5 min'")
        (finding,) = (await self.examine()).findings
        self.assertEqual((finding.id, finding.where), ("follower-missing", "w1"))
        self.assertIn("follower w1 last said 300 s ago that it runs", finding.what)
        # A lake has no process that sends heartbeats.
        self.sql("UPDATE synrepl._follower_leases SET seen_at = NULL")
        self.assertEqual(await self.found(), [])

    async def test_finds_a_failover_and_its_possible_losses(self) -> None:
        tokens = await self.append(NOTES, note("a"), 30)
        store = self.process("follower").store
        await store.record_follower("near", {("notes", "one"): tokens[-3]})
        self.sql("UPDATE synrepl._incarnations SET timeline = '0000000A'")
        (finding,) = (report := await self.examine(Thresholds(behind=15))).findings
        self.assertEqual((finding.id, report.is_healthy), ("not-confirmed", False))
        await store.confirm({"notes": {"one": tokens[-1] + 12}})
        (finding,) = (report := await self.examine(Thresholds(behind=15))).findings
        self.assertEqual(
            (finding.id, finding.where, report.is_healthy), ("failover", "server", True)
        )
        lost = f"notes by one may lack facts above {tokens[-1]} up to {tokens[-1] + 12}"
        self.assertIn(lost, finding.what)
        self.assertEqual(await self.found(Thresholds(failover_days=0.0)), [])

    async def test_finds_idempotency_keys_that_are_not_deleted(self) -> None:
        insert = (
            "INSERT INTO synrepl._idempotency_keys (stream, key, digest, tokens, created_at)"
            " VALUES ('notes', %s, '', '{1}', now() - make_interval(days => %s))"
        )
        self.sql(insert, "young", 7)
        self.assertEqual(await self.found(), [])
        self.sql(insert, "old", 9)
        self.assertEqual(await self.found(), [("keys-not-forgotten", "idempotency keys")])

    async def test_finds_pending_migrations(self) -> None:
        self.sql(
            "DELETE FROM synrepl._migrations WHERE migration <> '0001_streams_and_writers.pre'"
        )
        (finding,) = (await self.examine(fix=True)).findings
        self.assertEqual((finding.id, finding.severity), ("migrations-pending", Severity.ERROR))
        self.assertIn("0002_follower_leases.pre", finding.what)
        self.assertEqual(finding.cure, "'synrepl schema --apply pre'")
