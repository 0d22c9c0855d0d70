"""Transactions whose snapshot is older than a decision about their writer, on a real database."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg2
from psycopg2.errors import SerializationFailure

from synrepl.services.membership import Membership, StillOpen
from synrepl.storage import membership as storage
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.membership import BroughtBack, State
from synrepl.storage.postgres.lease import PostgresLease
from synrepl.storage.staging import staging as staged
from synrepl.storage.staging import with_ids as preserved
from synrepl.storage.staging.staging import StagedAttempt, StagingJob
from synrepl.storage.store import Drained
from synrepl.streams.columns import row_columns
from synrepl.streams.definition import UNTAGGED
from tests.storage.postgres import PostgresCase
from tests.storage.samples import NOTES
from tests.storage.skipping_scheduler import SkippingScheduler

LEVELS = ("REPEATABLE READ", "SERIALIZABLE")

#: Seconds; the tests end the wait sooner.
LONG = 60.0

ROWS = '[{"text": "late"}]'
APPEND = "SELECT synrepl.append('notes', %s, 'billing')"
ENTER = "SELECT synrepl.enter(%s, %s, false, true)"


class OldSnapshots(PostgresCase):
    """Each test begins transactions at both isolation levels before it makes a decision."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.operator = self.process("operator")
        self.membership = Membership(self.operator.scheduler, self.operator.database)
        await self.membership.add(NOTES, "billing")
        self.old = [self.begin(level) for level in LEVELS]
        self.leases: list[PostgresLease] = []

    def begin(self, level: str) -> psycopg2.extensions.connection:
        """A transaction that has taken its snapshot."""
        connection = psycopg2.connect(self.dsn)
        self.addCleanup(connection.close)
        connection.set_session(level)
        self.sql("SELECT count(*) FROM synrepl._writers", on=connection)
        return connection

    def all_refused(self, statement: str = APPEND, *params: object) -> None:
        """Check that no old transaction gets a token, and that a retry is refused with the reason."""
        for connection in self.old:
            with self.assertRaises(SerializationFailure):
                self.sql(statement, *(params or (ROWS,)), on=connection)
            connection.rollback()
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes WHERE stream_id < 7"), 0)

    async def state(self, writer: str = "billing") -> State:
        found = await self.membership.members([NOTES])
        return next(member.state for member in found if member.writer == writer)

    # -- draining -----------------------------------------------------------------------

    async def test_a_drained_writer_gets_no_token_by_an_old_snapshot(self) -> None:
        await self.membership.drain(NOTES, "billing", LONG)
        self.assertIs(await self.state(), State.DRAINED)
        self.all_refused()
        for connection in self.old:
            with self.assertRaisesRegex(psycopg2.Error, "is drained"):
                self.sql(APPEND, ROWS, on=connection)
            connection.rollback()

    async def test_an_old_snapshot_that_has_a_token_is_waited_for(self) -> None:
        await self.operator.database.run("drain", self.drain)
        self.sql(APPEND, ROWS, on=self.old[0])  # it is not drained yet
        self.assertIs(await self.state(), State.DRAINING)
        impatient = Membership(SkippingScheduler(), self.operator.database)
        with self.assertRaisesRegex(StillOpen, "backend"):
            await impatient.drain(NOTES, "billing", 1.0)
        self.assertIs(await self.state(), State.DRAINING)
        self.old[0].commit()
        await self.membership.drain(NOTES, "billing", LONG)
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 1)

    async def test_a_writer_that_is_brought_back_meanwhile_is_not_drained(self) -> None:
        await self.operator.database.run("drain", self.drain)
        await self.operator.database.run("add", lambda txn: storage.add(txn, "notes", "billing"))
        with self.assertRaises(BroughtBack):
            await self.operator.database.run("conclude", self.conclude)

    def drain(self, txn: Transaction) -> None:
        storage.drain(txn, "notes", "billing")

    def conclude(self, txn: Transaction) -> bool:
        return storage.conclude_drain(txn, "notes", "billing")

    async def test_a_writer_that_is_brought_back_takes_tokens_again(self) -> None:
        await self.membership.drain(NOTES, "billing", LONG)
        await self.membership.add(NOTES, "billing")
        self.assertIs(await self.state(), State.IDLE)
        new = self.begin("REPEATABLE READ")
        self.sql(APPEND, ROWS, on=new)
        new.commit()
        await self.membership.drain(NOTES, "billing", LONG)
        self.assertIs(await self.state(), State.DRAINED)

    # -- fencing and removal ------------------------------------------------------------

    async def test_a_fenced_writer_enters_by_no_old_snapshot(self) -> None:
        number, epoch = await self.become("w1")
        self.end_process("w1")
        self.assertTrue(await self.operator.store.fence(NOTES, "w1"))
        self.all_refused(ENTER, number, epoch)

    async def test_a_name_that_was_given_back_is_entered_by_no_old_snapshot(self) -> None:
        number, epoch = await self.become("w1")
        await self.leases[0].close()
        self.all_refused(ENTER, number, epoch)

    async def become(self, writer: str) -> tuple[int, int]:
        """A process becomes a writer, and begins transactions; the writer's number and epoch."""
        lease = await self.process(writer).store.open_writer(writer, [NOTES])
        self.leases.append(lease)
        self.old = [self.begin(level) for level in LEVELS]
        number = self.sql("SELECT number FROM synrepl._writers WHERE writer = %s", writer)
        return number, lease.epoch(NOTES)

    async def test_a_name_whose_process_died_is_not_taken_by_an_old_snapshot(self) -> None:
        await self.process("billing").store.open_writer("billing", [NOTES])
        self.end_process("billing")
        self.all_refused()

    async def test_a_removed_writer_takes_nothing_by_an_old_snapshot(self) -> None:
        await self.membership.drain(NOTES, "billing", LONG)
        await self.membership.remove(NOTES, "billing")
        self.all_refused()

    async def test_a_writer_that_came_later_is_not_added_twice(self) -> None:
        await self.membership.add(NOTES, "new")
        self.all_refused("SELECT synrepl.add_writer('notes', %s)", "new")

    # -- Spark --------------------------------------------------------------------------

    async def stage(self, columns: Sequence[str], row: bytes) -> StagedAttempt:
        """Stage one row, as a task does."""

        def work(txn: Transaction) -> StagedAttempt:
            staged.ensure_staging(txn, "notes", row_columns(NOTES.kinds[UNTAGGED]))
            return staged.stage(txn, "notes", "job", 1, columns, [row], [])

        return await self.operator.database.run("stage", work)

    async def test_a_job_takes_no_place_of_a_drained_writer(self) -> None:
        attempt = await self.stage(["text"], b"1\t0\tlate\n")
        runs: list[Transaction] = []

        def work(txn: Transaction) -> None:
            txn.execute("SELECT count(*) FROM synrepl._writers")
            if not runs:  # this takes the snapshot
                self.drain_at_once("billing")
            runs.append(txn)
            staged.append_staged(txn, StagingJob("notes", "billing", "job"), [attempt], ["text"])

        with self.assertRaises(Drained):
            await self.operator.database.run("t", work, isolation=Isolation.REPEATABLE_READ)
        self.assertEqual(len(runs), 2)

    async def test_no_id_below_replayed_rows_is_given_out(self) -> None:
        attempt = await self.stage(
            ["stream_id", "row_no", "writer", "text"], b"1\t0\t7\t0\tsql\treplayed\n"
        )
        job = StagingJob("notes", "sql", "job")
        await self.operator.database.run(
            "replay", lambda txn: preserved.append_with_ids(txn, job, [attempt], ["text"])
        )
        self.all_refused()  # the sequence is behind until it is advanced
        await self.operator.database.run("move", lambda txn: preserved.move_sequence(txn, "notes"))
        self.assertGreater(self.sql(APPEND, ROWS), 7)

    # -- unaffected ---------------------------------------------------------------------

    async def test_recording_positions_refuses_no_writer(self) -> None:
        for position in range(1, 4):
            await self.operator.store.record_positions(NOTES, position, {"billing": position})
        for connection in self.old:
            self.assertGreater(self.sql(APPEND, ROWS, on=connection), 0)
        # Transactions that have a token do not prevent positions from being recorded.
        await self.operator.store.record_positions(NOTES, 4, {"billing": 4})
        for connection in self.old:
            connection.commit()
        self.assertEqual(self.sql("SELECT count(*) FROM synrepl.notes"), 2)

    async def test_decisions_about_other_writers_refuse_no_writer(self) -> None:
        await self.membership.add(NOTES, "another")
        await self.membership.drain(NOTES, "another", LONG)
        self.sql(APPEND, ROWS, on=self.old[0])
        self.old[0].commit()

    def drain_at_once(self, writer: str) -> None:
        """Drain a writer without open reservations; return the result."""
        for change in ("draining = true", "drained = true, generation = generation + 1"):
            self.sql(f"UPDATE synrepl._writers SET {change} WHERE writer = %s", writer)

    def end_process(self, writer: str) -> None:
        """End the session of the process that is a writer, as when that is killed."""
        backend = self.sql("SELECT backend FROM synrepl._writers WHERE writer = %s", writer)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", backend)
