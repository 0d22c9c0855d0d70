"""The outcome of commits, looked up on real servers that crashed."""

from __future__ import annotations

import contextlib
import os
import signal

import psycopg2
from twisted.trial.unittest import SynchronousTestCase

from synrepl.driver.commit_status import CommitStatus, CommitTicket, look_up
from synrepl.driver.connection import DatabaseAddress, PostgresConnection
from synrepl.storage.launch.postgres import PostgresServer
from synrepl.storage.store import DatabaseAway
from tests.driver.embedded_server import existing_data_dir, query_one


class CommitStatusAfterACrash(SynchronousTestCase):
    """Transaction IDs are assigned again after a crash."""

    def setUp(self) -> None:
        self.server = PostgresServer(existing_data_dir(), fsync=False)
        self.server.start()
        self.addCleanup(self.server.stop)
        if query_one(self.server.dsn, "SHOW wal_writer_delay") != "10s":
            # Nothing reaches the disk but by a synchronous commit. Of a reload each process
            # hears in its own time, and the WAL writer would write once more.
            query_one(self.server.dsn, "ALTER SYSTEM SET wal_writer_delay = '10s'")
            query_one(self.server.dsn, "ALTER SYSTEM SET autovacuum = off")
            self.server.stop()
            self.server.start()
        query_one(self.server.dsn, "CREATE TABLE IF NOT EXISTS t (n int)")

    def connect(self) -> PostgresConnection:
        connection = DatabaseAddress(self.server.dsn, "tests").connect()
        self.addCleanup(connection.close)
        return connection

    def commit(self, connection: PostgresConnection, synchronous: bool) -> CommitTicket:
        incarnation = connection.incarnation
        with connection.cursor() as cursor:
            cursor.execute(f"SET synchronous_commit = {'on' if synchronous else 'off'}")
            cursor.execute("BEGIN; SELECT pg_current_xact_id()::text")
            row = cursor.fetchone()
            assert row is not None
            cursor.execute("INSERT INTO t VALUES (1); COMMIT")
        return CommitTicket(row[0], connection.info.backend_pid, incarnation)

    def crash(self) -> None:
        assert self.server.child is not None
        self.server.child.end([(signal.SIGKILL, 30.0)])
        self.server.restart()

    def test_a_durable_commit_is_committed_until_a_restart(self) -> None:
        ticket = self.commit(self.connect(), synchronous=True)
        self.assertIs(look_up(self.connect(), ticket), CommitStatus.COMMITTED)
        self.crash()  # it was, but so may somebody else's under the same ID
        self.assertIs(look_up(self.connect(), ticket), CommitStatus.RESTARTED)

    def test_a_lost_commit_whose_id_is_in_use_again_is_aborted(self) -> None:
        lost = self.commit(self.connect(), synchronous=False)
        self.crash()
        connection = self.connect()
        self.assertIs(look_up(connection, lost), CommitStatus.ABORTED)
        other = self.connect()
        while int(self.commit(other, synchronous=True).xid) < int(lost.xid):
            pass
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_xact_status(%s::xid8)", (lost.xid,))
            self.assertEqual(cursor.fetchone(), ("committed",))  # which is not about ours
        self.assertIs(look_up(connection, lost), CommitStatus.ABORTED)
        connection.cursor().execute("CHECKPOINT")
        self.assertIs(look_up(connection, lost), CommitStatus.RESTARTED)

    def test_an_id_reused_in_an_unseen_incarnation_is_unknown(self) -> None:
        lost = self.commit(self.connect(), synchronous=False)
        self.crash()
        other = self.connect()
        while int(self.commit(other, synchronous=True).xid) < int(lost.xid):
            pass
        self.crash()  # its recovery leaves a checkpoint above the ID that was used twice
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_xact_status(%s::xid8)", (lost.xid,))
            self.assertEqual(cursor.fetchone(), ("committed",))
        self.assertIs(look_up(connection, lost), CommitStatus.RESTARTED)

    def test_a_transaction_open_at_a_crash_is_aborted(self) -> None:
        connection = self.connect()
        incarnation = connection.incarnation
        with connection.cursor() as cursor:
            cursor.execute("BEGIN; SELECT pg_current_xact_id()::text")
            row = cursor.fetchone()
        assert row is not None
        ticket = CommitTicket(row[0], 0, incarnation)
        self.assertIs(look_up(self.connect(), ticket), CommitStatus.PENDING)
        self.crash()
        self.assertIs(look_up(self.connect(), ticket), CommitStatus.ABORTED)

    def test_backend_crash_that_the_postmaster_survives_is_another_incarnation(self) -> None:
        first, second = self.connect(), self.connect()
        before = first.incarnation
        with self.assertRaises(psycopg2.Error), second.cursor() as cursor:
            os.kill(second.info.backend_pid, signal.SIGKILL)
            cursor.execute("SELECT pg_sleep(60)")
        with self.assertRaises(psycopg2.Error), first.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")
        self.assertNotEqual(self.connect_patiently().incarnation, before)

    def connect_patiently(self) -> PostgresConnection:
        """Connect again; the server refuses during recovery."""
        for _ in range(10_000):
            with contextlib.suppress(DatabaseAway):
                return self.connect()
        return self.connect()
