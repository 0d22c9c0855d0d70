"""A landing with an end waits until its streams are proven to be settled."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import extensions

from synrepl.driver.blocking import BlockingDatabase
from synrepl.pipeline.lake.check.check import check
from synrepl.pipeline.lake.lake import Lake
from synrepl.pipeline.lake.maintenance import LakeMaintenance, MaintenanceReport
from synrepl.pipeline.lake.table import StreamTable
from synrepl.pipeline.source.database.settlement import BlockingClock
from synrepl.pipeline.source.database.synapse_database import SynapseDatabase
from synrepl.positions.vector import PositionVector
from synrepl.storage.foreign.bounds import SETTLE_S
from system_tests.pipeline.landing_case import LandingCase
from system_tests.pipeline.spark_fixture import shared_session
from system_tests.pipeline.test_landing_synapse import ForeignCase
from tests.storage.foreign_databases import foreign_database
from tests.storage.samples import NOTES

#: One release per variant of the tables and of the recorded positions.
RELEASES = ("1.0.0", "1.11.1", "1.20.1", "1.43.0", "1.163.2")


class ManualTime:
    """A clock that is advanced by the landing's own waiting."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = BlockingClock(lambda: self.now, self.pause)

    def pause(self, seconds: float) -> None:
        self.now += seconds


class SettlingSynapseReleases(ForeignCase):
    """Dumps of real servers' databases, with the real settling time."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.time = ManualTime()
        self.spark = shared_session()

    async def begin(self, version: str, case: SettlingSynapseReleases | None = None) -> None:
        self.dsn = await foreign_database(version, case)
        database = BlockingDatabase(self.dsn, "tests")
        self.source = self.opened(SynapseDatabase(database, now=lambda: self.time.now))
        self.lake = Lake.open_or_create(Path(self.mktemp()), self.source.server, True)

    def run_once(self, settle_timeout_s: float = 60.0) -> MaintenanceReport:
        """Land in one run, without earlier observations."""
        maintenance = LakeMaintenance(
            self.spark, self.lake, self.source, self.dsn, clock=self.time.clock
        )
        with self.lake.write_lock():
            return maintenance.run(self.source.streams, settle_timeout_s=settle_timeout_s)

    async def landed_at_once(self, version: str) -> None:
        await self.begin(version)
        report = self.run_once()
        self.assertEqual((report.unsettled, report.left_out), ({}, {}))
        self.assertGreaterEqual(self.time.now, SETTLE_S)
        rows = 0
        for stream in self.source.streams:
            facts = self.facts(stream)
            self.assertEqual(self.landed_facts(stream), facts, stream)
            rows += sum(len(fact.rows) for fact in facts)
        self.assertEqual(sum(report.rows.values()), rows)
        self.assertGreater(rows, 500)

    async def test_every_stream_of_1_0_0_is_landed_by_one_run(self) -> None:
        await self.landed_at_once("1.0.0")

    async def test_every_stream_of_1_11_1_is_landed_by_one_run(self) -> None:
        await self.landed_at_once("1.11.1")

    async def test_every_stream_of_1_20_1_is_landed_by_one_run(self) -> None:
        await self.landed_at_once("1.20.1")

    async def test_every_stream_of_1_43_0_is_landed_by_one_run(self) -> None:
        await self.landed_at_once("1.43.0")

    async def test_every_stream_of_1_163_2_is_landed_by_one_run(self) -> None:
        await self.landed_at_once("1.163.2")

    async def test_a_lake_that_has_everything_is_not_waited_for(self) -> None:
        await self.begin("1.20.1")
        self.run_once()
        database = BlockingDatabase(self.dsn, "tests")
        self.source = self.opened(SynapseDatabase(database, now=lambda: self.time.now))
        begun = self.time.now
        report = self.run_once()
        self.assertEqual((report.rows, report.unsettled, self.time.now), ({}, {}, begun))

    async def test_facts_held_by_an_open_transaction_are_named_and_landed_later(
        self,
    ) -> None:
        await self.begin("1.163.2", self)
        with closing(psycopg2.connect(self.dsn)) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone() or (0,)
            report = self.run_once()
            self.assertGreaterEqual(self.time.now, 59.0)
            caches = report.unsettled["caches"]
            self.assertEqual((caches.settled, caches.last), (PositionVector(), 503))
            self.assertEqual(caches.waits_for, (f"the transaction of PID {pid}",))
            self.assertNotIn("caches", report.rows)
            # Recorded positions need no proof, so these facts are not held back.
            self.assertEqual(self.landed_facts("receipts"), self.facts("receipts"))
        report = self.run_once()
        self.assertEqual(report.unsettled, {})
        self.assertEqual(self.landed_facts("caches"), self.facts("caches"))

    async def test_ends_at_once_without_a_settle_timeout(self) -> None:
        await self.begin("1.11.1")
        report = self.run_once(settle_timeout_s=0)
        self.assertEqual((report.rows, self.time.now), ({}, 0.0))
        rows = {stream for stream in self.source.streams if self.facts(stream)}
        self.assertEqual(set(report.unsettled), rows)
        self.assertEqual(
            report.unsettled["events"].waits_for, ("transactions that may begin within 5 s",)
        )

    async def test_observes_once_more_if_landing_took_all_the_time(self) -> None:
        await self.begin("1.163.2")
        real = StreamTable.append

        def slow(table: StreamTable, *args: Any, **options: Any) -> None:
            self.time.now += 30.0
            real(table, *args, **options)

        self.patch(StreamTable, "append", slow)
        report = self.run_once(settle_timeout_s=1.0)
        self.assertEqual(report.unsettled, {})
        self.assertEqual(self.landed_facts("caches"), self.facts("caches"))

    async def test_a_stream_whose_newest_row_is_deleted_meanwhile_is_not_waited_for(self) -> None:
        await self.begin("1.11.1", self)
        real = self.time.pause

        def pause(seconds: float) -> None:
            self.execute(
                "DELETE FROM receipts_linearized WHERE stream_id ="
                " (SELECT max(stream_id) FROM receipts_linearized)"
                " AND (SELECT count(*) FROM receipts_linearized) > 64"
            )
            real(seconds)

        self.time.clock = BlockingClock(lambda: self.time.now, pause)
        report = self.run_once()
        self.assertEqual((report.unsettled, report.rows["receipts"]), ({}, 64))
        self.assertLess(self.time.now, 20.0)


class SettlingOwnStreams(LandingCase):
    """A database of synrepl's own, in which open reservations can be observed."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.time = ManualTime()

    def run_once(self, settle_timeout_s: float = 60.0) -> MaintenanceReport:
        maintenance = LakeMaintenance(
            self.spark, self.lake, self.source, self.dsn, clock=self.time.clock
        )
        with self.lake.write_lock():
            return maintenance.run(self.source.streams, settle_timeout_s=settle_timeout_s)

    def test_facts_that_commit_while_it_waits_are_landed_by_the_same_run(self) -> None:
        slow = self.open()
        self.notes(1, 1, on=slow)
        self.notes(2, 3)
        real = self.time.pause

        def pause(seconds: float) -> None:
            slow.commit()
            real(seconds)

        self.time.clock = BlockingClock(lambda: self.time.now, pause)
        report = self.run_once()
        self.assertEqual((report.unsettled, report.rows), ({}, {"notes": 3}))
        self.assert_landed()

    def test_the_holder_of_a_token_is_named(self) -> None:
        slow = self.open()
        self.notes(1, 1, on=slow)
        self.notes(2, 3)
        report = self.run_once()
        notes = report.unsettled["notes"]
        self.assertEqual((set(report.unsettled), notes.last), ({"notes"}, 3))
        (who,) = notes.waits_for
        self.assertIn(f"writer 'sql' (backend {pid_of(slow)}", who)
        slow.rollback()
        self.assertEqual(self.run_once().unsettled, {})
        self.assert_landed()

    async def test_a_dead_writer_is_named(self) -> None:
        process = self.process("doomed")
        lease = await process.store.open_writer("doomed", [NOTES])
        await lease.reserve(NOTES, 1, 0)
        self.notes(1, 2)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", process.session_of(lease).backend_pid)
        report = self.run_once()
        self.assertIn("'doomed', which died", report.unsettled["notes"].waits_for[0])
        await self.process("other").store.fence(NOTES, "doomed")
        self.assertEqual(self.run_once().unsettled, {})
        self.assert_landed()


def pid_of(connection: extensions.connection) -> int:
    return int(connection.info.backend_pid)


class UnknownSynapseTables(ForeignCase):
    """A Synapse with a table that cannot be read."""

    def test_a_stream_that_cannot_be_read_is_named(self) -> None:
        self.execute("ALTER TABLE presence_stream RENAME COLUMN state TO condition")
        self.source = self.opened(
            SynapseDatabase(BlockingDatabase(self.dsn, "tests"), settle_s=0.0)
        )
        with self.lake.write_lock():
            maintenance = LakeMaintenance(self.spark, self.lake, self.source, self.dsn)
            report = maintenance.run(self.source.streams)
        self.assertEqual(list(report.left_out), ["presence"])
        self.assertIn("presence_stream.state", report.left_out["presence"])
        self.assertGreater(report.rows["events"], 0)

    def test_a_check_names_it_and_compares_the_others(self) -> None:
        def opened() -> SynapseDatabase:
            database = BlockingDatabase(self.dsn, "tests")
            found: SynapseDatabase = self.opened(SynapseDatabase(database, settle_s=0.0))
            return found

        self.source = opened()
        with self.lake.write_lock():
            LakeMaintenance(self.spark, self.lake, self.source, self.dsn).run(self.source.streams)
        self.execute("ALTER TABLE presence_stream RENAME COLUMN state TO condition")
        report = check(self.spark, self.lake, opened(), self.dsn)
        self.assertIn("presence_stream.state", report.left_out["presence"])
        self.assertEqual({each.stream for each in report.streams if not each.equal}, {"presence"})
        (presence,) = (each for each in report.streams if each.stream == "presence")
        self.assertIn("presence_stream.state", presence.not_compared)
