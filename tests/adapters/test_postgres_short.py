"""Transactions of two round trips without a thread, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.postgres.short_transactions import PostgresShortTransactions
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.storage.database import (
    OPENING_COLUMNS,
    DeferredScript,
    OpeningScript,
    PlannedOnce,
    Record,
    Transaction,
    UniqueViolation,
)
from synrepl.storage.short_work import NotShort, Opening, ShortResult
from synrepl.testing.postgres import fresh_database
from tests.adapters.fault_proxy import Cut, FaultProxy

COUNT = OpeningScript([PlannedOnce(f"SELECT count(*) + %s, {OPENING_COLUMNS} FROM t")])
INSERT = DeferredScript([PlannedOnce("INSERT INTO t VALUES (%s)")])


def inserting(*numbers: int) -> Callable[[Transaction, Record | None], object]:
    """Inserts numbers; the result is the first cell of the opening."""

    def finish(txn: Transaction, row: Record | None) -> object:
        for number in numbers:
            txn.execute(INSERT, (number,))
        assert row is not None
        return row[0]

    return finish


class ShortTransactionsInPostgres(TestCase):
    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        self.dsn = await fresh_database(self)
        self.outside = psycopg2.connect(self.dsn)
        self.outside.autocommit = True
        self.addCleanup(self.outside.close)
        self.sql("CREATE TABLE t (a integer PRIMARY KEY)")
        self.proxy = FaultProxy(int(extensions.parse_dsn(self.dsn)["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(self.proxy.stop()))
        database: Any = PostgresDatabase(reactor, self.dsn, "test")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        through = extensions.make_dsn(self.dsn, port=self.proxy.port)
        self.short = PostgresShortTransactions(reactor, through, "test", database.was_committed)
        self.addCleanup(self.short.close)
        await self.until_idle()

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with self.outside.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def stored(self) -> list[int]:
        return [number for (number,) in self.sql("SELECT a FROM t ORDER BY a")]

    async def until_idle(self, idle: bool = True) -> None:
        while self.short.is_idle is not idle:
            await TwistedScheduler(reactor).sleep(0.005)

    def transact(self, finish: Callable[[Transaction, Record | None], object]) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.short.run("a test", Opening(COUNT, (10,)), finish))

    async def test_commits_what_follows_from_the_opening(self) -> None:
        self.assertEqual(await self.transact(inserting(1, 2)), ShortResult(10))
        self.assertEqual(await self.transact(inserting(3)), ShortResult(12))
        self.assertEqual(await self.transact(inserting()), ShortResult(13))
        self.assertEqual(self.stored(), [1, 2, 3])

    async def test_takes_one_at_a_time(self) -> None:
        running = self.transact(inserting(1))
        self.assertFalse(self.short.is_idle)
        await running
        self.assertTrue(self.short.is_idle)

    async def test_rolls_back_what_raises_or_needs_an_answer(self) -> None:
        cases: list[tuple[Callable[[Transaction], object], type[Exception]]] = [
            (lambda txn: 1 // 0, ZeroDivisionError),
            (lambda txn: int("x"), ValueError),
            (lambda txn: txn.execute("SELECT 1"), NotShort),
            (lambda txn: txn.fetchone(), NotShort),
            (lambda txn: txn.fetchone_or_none(), NotShort),
            (lambda txn: txn.fetchall(), NotShort),
            (lambda txn: txn.insert_many("INSERT INTO t VALUES %s", [(1,)]), NotShort),
            (lambda txn: txn.copy_in("COPY t FROM STDIN", ["1\n"]), NotShort),
            (lambda txn: txn.copy_out("COPY t TO STDOUT", print), NotShort),
            (list, NotShort),
        ]
        for number, (call, error) in enumerate(cases):
            with self.subTest(number=number):

                def finish(
                    txn: Transaction,
                    row: Record | None,
                    call: Callable[[Transaction], object] = call,
                ) -> object:
                    txn.execute(INSERT, (1,))
                    return call(txn)

                await self.assertFailure(self.transact(finish), error)
                self.assertTrue(self.short.is_idle)
        self.assertEqual(self.stored(), [])

    async def test_an_error_of_the_database_rolls_back(self) -> None:
        await self.transact(inserting(1))
        await self.assertFailure(self.transact(inserting(2, 1)), UniqueViolation)
        await self.until_idle()
        await self.transact(inserting(3))
        self.assertEqual(self.stored(), [1, 3])

    async def test_a_lost_commit_is_looked_up(self) -> None:
        for cut, answer, stored in (
            (Cut.AFTER, ShortResult(10), [1]),
            (Cut.BEFORE, None, []),
            (Cut.UNNOTICED, None, []),
        ):
            with self.subTest(cut=cut):
                self.sql("DELETE FROM t")
                self.proxy.cut = cut
                self.assertEqual(await self.transact(inserting(1)), answer)
                self.assertEqual(self.stored(), stored)
                await self.until_idle()

    async def test_is_not_run_when_the_connection_is_lost_before_the_commit(self) -> None:
        def finish(txn: Transaction, row: Record | None) -> None:
            self.sql("SELECT pg_terminate_backend(%s, 10000)", self.backend())

        self.assertIsNone(await self.transact(finish))
        await self.until_idle()
        self.assertEqual(await self.transact(inserting(1)), ShortResult(10))

    async def test_notices_a_loss_while_idle(self) -> None:
        self.sql("SELECT pg_terminate_backend(%s, 10000)", self.backend())
        await self.until_idle(False)
        await self.until_idle()
        self.assertEqual(await self.transact(inserting(1)), ShortResult(10))

    async def test_statements_that_the_server_forgot_are_prepared_again(self) -> None:
        await self.transact(inserting(1))
        forget = OpeningScript(["DEALLOCATE ALL", f"SELECT 1, {OPENING_COLUMNS}"])
        await self.short.run("forget", Opening(forget, ()), inserting())
        self.assertIsNone(await self.transact(inserting(2)))
        await self.until_idle()
        self.assertEqual(await self.transact(inserting(2)), ShortResult(11))

    async def test_is_never_idle_while_the_database_is_away_or_after_closing(self) -> None:
        self.proxy.refusing = True
        self.sql("SELECT pg_terminate_backend(%s, 10000)", self.backend())
        await self.until_idle(False)
        self.short.close()
        self.assertFalse(self.short.is_idle)

    def backend(self) -> int:
        ((pid,),) = self.sql(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'synrepl test'"
        )
        return int(pid)
