"""Session-level locks on a real PostgreSQL, and what happens when the session goes."""

from __future__ import annotations

import threading
from typing import Any

from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.session import PostgresSession, open_session
from synrepl.driver.connection import DatabaseRefused
from synrepl.storage.database import Transaction, UniqueViolation
from synrepl.storage.store import DatabaseAway
from synrepl.testing.postgres import fresh_database

WAIT_S = 30


class SessionCase(TestCase):
    """One session, and a database to look at it from."""

    timeout = 60

    async def setUp(self) -> None:
        self.dsn = await fresh_database(self)
        self.database = PostgresDatabase(reactor, self.dsn, "observer")
        self.addCleanup(lambda: Deferred.fromCoroutine(self.database.close()))
        self.session = await self.open(self.dsn)
        self.lost: list[str] = []
        self.losing: Deferred[str] = Deferred()
        self.session.on_lost(self.lost.append)
        self.session.on_lost(self.losing.callback)

    async def open(self, dsn: str) -> PostgresSession:
        session = await open_session(reactor, dsn, "holder")
        self.addCleanup(lambda: Deferred.fromCoroutine(session.close()))
        return session

    async def one(self, sql: str, *params: object) -> Any:
        """The first cell of the answer, from outside the session."""
        return await self.database.run("one", lambda txn: txn.execute(sql, params).fetchone()[0])

    async def locks(self) -> int:
        count: int = await self.one(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 7"
        )
        return count

    async def terminate(self) -> None:
        await self.one("SELECT pg_terminate_backend(%s, 30000)", self.session.backend_pid)


def lock(txn: Transaction) -> bool:
    return bool(txn.execute("SELECT pg_try_advisory_lock(7, 1)").fetchone()[0])


class SessionLocks(SessionCase):
    """As long as it lives."""

    async def test_a_lock_outlives_its_transaction(self) -> None:
        self.assertTrue(await self.session.run(lock))
        self.assertEqual(await self.locks(), 1)
        self.assertFalse(await (await self.open(self.dsn)).run(lock))

    async def test_a_lock_outlives_a_rollback(self) -> None:
        def work(txn: Transaction) -> None:
            lock(txn)
            txn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (1)")

        with self.assertRaises(UniqueViolation):
            await self.session.run(work)
        self.assertEqual(await self.locks(), 1)
        self.assertIsNone(await self.one("SELECT to_regclass('t')"))

    async def test_runs_transactions_in_turn_on_one_connection(self) -> None:
        order: list[int] = []

        def work(txn: Transaction, n: int) -> int:
            order.append(n)
            pid: int = txn.execute("SELECT pg_backend_pid()").fetchone()[0]
            return pid

        running = [
            Deferred.fromCoroutine(self.session.run(lambda txn, n=n: work(txn, n)))
            for n in range(20)
        ]
        pids = {await each for each in running}
        self.assertEqual(order, list(range(20)))
        self.assertEqual(pids, {self.session.backend_pid})

    async def test_close_releases_the_locks(self) -> None:
        await self.locks()  # the observer's thread is there
        before = set(threading.enumerate())
        session = await self.open(self.dsn)
        await session.run(lambda txn: txn.execute("SELECT pg_advisory_lock(8, 1)"))
        lost: list[str] = []
        session.on_lost(lost.append)
        await session.close()
        # Now, for the observer may come to have another thread.
        self.assertEqual(set(threading.enumerate()) - before, set())
        await self.one("SELECT 1 FROM pg_advisory_lock(8, 1)")
        self.assertEqual(lost, [])
        with self.assertRaises(DatabaseAway):
            await session.run(lock)

    async def test_the_server_watches_its_client(self) -> None:
        def shown(txn: Transaction) -> list[Any]:
            names = (
                "tcp_keepalives_idle",
                "tcp_keepalives_interval",
                "tcp_keepalives_count",
                "tcp_user_timeout",
                "client_connection_check_interval",
                "idle_session_timeout",
            )
            return [txn.execute(f"SHOW {name}").fetchone()[0] for name in names]

        self.assertEqual(await self.session.run(shown), ["2", "1", "3", "5000", "1s", "0"])


class LostSessions(SessionCase):
    """A lost session is noticed at once, reported once, and never repaired."""

    async def test_notices_a_loss_while_idle(self) -> None:
        await self.session.run(lock)
        await self.terminate()
        reason = await self.losing
        self.assertTrue(reason)
        self.assertEqual(self.lost, [reason])
        self.assertEqual(await self.locks(), 0)
        with self.assertRaises(DatabaseAway):
            await self.session.run(lock)
        self.assertEqual(self.lost, [reason])

    async def test_notices_a_loss_during_a_transaction(self) -> None:
        begun = threading.Event()

        def work(txn: Transaction) -> None:
            begun.set()
            txn.execute("SELECT pg_sleep(600)")

        running = Deferred.fromCoroutine(self.session.run(work))
        waiting = Deferred.fromCoroutine(self.session.run(lock))
        begun.wait(WAIT_S)
        await self.terminate()
        for each in (running, waiting):
            with self.assertRaises(DatabaseAway):
                await each
        self.assertEqual(len(self.lost), 1)
        self.assertNotIn("cannot be reached", self.lost[0])

    async def test_a_callback_added_after_the_loss_is_called(self) -> None:
        await self.terminate()
        reason = await self.losing
        late: list[str] = []
        self.session.on_lost(late.append)
        self.assertEqual(late, [reason])

    async def test_an_error_in_one_callback_does_not_keep_the_next_from_its_call(self) -> None:
        def fail(reason: str) -> None:
            raise ValueError(reason)

        self.session.on_lost(fail)
        late: Deferred[str] = Deferred()
        self.session.on_lost(late.callback)
        await self.terminate()
        await late
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    async def test_opening_fails_at_once_when_the_database_refuses(self) -> None:
        before = set(threading.enumerate())
        parts = {**extensions.parse_dsn(self.dsn), "password": "hunter2"}
        with self.assertRaises(DatabaseRefused):
            await self.open(extensions.make_dsn(**parts))
        self.assertEqual(set(threading.enumerate()) - before, set())
