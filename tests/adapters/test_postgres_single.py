"""Single statements without a thread, on a real PostgreSQL."""

from __future__ import annotations

from typing import Any

import psycopg2
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.single import MAX_WAITING, PostgresSingles
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.storage.database import (
    CommitUnknown,
    DatabaseBusy,
    Prepared,
    QueryFailed,
    UniqueViolation,
)
from synrepl.storage.store import BadValue, DatabaseAway
from synrepl.testing.postgres import fresh_database

INSERT = Prepared("insert", "INSERT INTO t (a, b) VALUES ($1, CAST($2 AS text)) RETURNING a")
SLOW = Prepared("slow", "SELECT pg_backend_pid() FROM pg_sleep($1)")
PID = Prepared("pid", "SELECT pg_backend_pid()")


class SingleStatements(TestCase):
    timeout = 60

    async def setUp(self) -> None:
        self.dsn = await fresh_database(self)
        self.outside = psycopg2.connect(self.dsn)
        self.outside.autocommit = True
        self.addCleanup(self.outside.close)
        self.sql("CREATE TABLE t (a integer PRIMARY KEY, b text)")
        self.singles = PostgresSingles(reactor, self.dsn, "test")
        self.addCleanup(self.singles.close)

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        with self.outside.cursor() as cursor:
            cursor.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def run_soon(self, prepared: Prepared, *params: object) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.singles.run(prepared, params))

    async def until_busy(self) -> int:
        """The backend of ours that runs a statement, and no longer only plans it."""
        while True:
            rows = self.sql(
                "SELECT pid FROM pg_stat_activity WHERE state = 'active'"
                " AND query LIKE 'EXECUTE%' AND application_name = 'synrepl test'"
            )
            if rows:
                return int(rows[0][0])
            await TwistedScheduler(reactor).sleep(0.005)

    async def test_each_commits_by_itself_and_in_order(self) -> None:
        values = ["plain", "tab\tand\\ and ' and %s", None]
        answers = await gatherResults(
            [self.run_soon(INSERT, n, value) for n, value in enumerate(values)]
        )
        self.assertEqual(answers, [[(0,)], [(1,)], [(2,)]])
        self.assertEqual(self.sql("SELECT a, b FROM t ORDER BY a"), list(enumerate(values)))

    async def test_an_error_is_named_and_harms_nobody_else(self) -> None:
        cases: list[tuple[tuple[object, object], type[Exception]]] = [
            ((1, "again"), UniqueViolation),
            (("x", "no number"), BadValue),
            ((2, "a\0b"), BadValue),
        ]
        await self.run_soon(INSERT, 1, "first")
        for params, error in cases:
            with self.subTest(error.__name__):
                await self.assertFailure(self.run_soon(INSERT, *params), error)
        broken = Prepared("broken", "SELECT no_such_column")
        for _ in range(2):
            await self.assertFailure(self.run_soon(broken), QueryFailed)
        await self.run_soon(INSERT, 3, "after")
        self.assertEqual(self.sql("SELECT a FROM t ORDER BY a"), [(1,), (3,)])

    async def test_a_refused_first_use_prepares_nothing(self) -> None:
        await self.assertFailure(self.run_soon(INSERT, "x", "no number"), BadValue)
        self.assertEqual(await self.run_soon(INSERT, 1, "now"), [(1,)])

    async def test_statements_that_the_server_forgot_are_prepared_again(self) -> None:
        await self.run_soon(INSERT, 1, "first")
        forget = Prepared("forget_all", "SELECT forget_all()")
        self.sql(
            "CREATE FUNCTION forget_all() RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN EXECUTE 'DEALLOCATE \"insert\"'; END $$"
        )
        await self.run_soon(forget)
        self.assertEqual(await self.run_soon(INSERT, 2, "second"), [(2,)])

    async def test_a_plan_whose_result_has_another_type_is_made_again(self) -> None:
        await self.run_soon(INSERT, 1, "first")
        self.sql("ALTER TABLE t ALTER COLUMN a TYPE bigint")
        waiting = [self.run_soon(INSERT, n, "later") for n in (2, 3)]
        self.assertEqual(await gatherResults(waiting), [[(2,)], [(3,)]])

    async def test_a_statement_that_somebody_else_prepared_is_prepared_again(self) -> None:
        self.sql(
            "CREATE FUNCTION prepare_other() RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN EXECUTE 'PREPARE \"insert\" AS SELECT 1'; END $$"
        )
        await self.run_soon(Prepared("other", "SELECT prepare_other()"))
        self.assertEqual(await self.run_soon(INSERT, 1, "first"), [(1,)])

    async def test_the_outcome_of_a_statement_cut_off_is_unknown(self) -> None:
        running, waiting = self.run_soon(SLOW, 30), self.run_soon(INSERT, 1, "unsent")
        self.sql("SELECT pg_terminate_backend(%s)", await self.until_busy())
        await self.assertFailure(running, CommitUnknown)
        await self.assertFailure(waiting, DatabaseAway)
        self.assertEqual(await self.run_soon(INSERT, 2, "on a new connection"), [(2,)])
        self.assertEqual(self.sql("SELECT a FROM t"), [(2,)])

    async def test_reconnects_after_a_loss_while_idle(self) -> None:
        ((pid,),) = await self.run_soon(PID)
        self.sql("SELECT pg_terminate_backend(%s, 10000)", pid)
        while self.singles.connected:  # it is noticed without being used
            await TwistedScheduler(reactor).sleep(0.005)
        self.assertNotEqual(await self.run_soon(PID), [(pid,)])

    async def test_fails_when_the_database_is_away(self) -> None:
        away = PostgresSingles(reactor, "host=127.0.0.1 port=1 dbname=x user=y password=zq", "test")
        self.addCleanup(away.close)
        error = await self.assertFailure(Deferred.fromCoroutine(away.run(PID, ())), DatabaseAway)
        self.assertNotIn("zq", str(error))

    async def test_refuses_too_many_waiting_statements(self) -> None:
        running = self.run_soon(SLOW, 30)
        await self.until_busy()
        waiting = [self.run_soon(PID) for _ in range(MAX_WAITING)]
        await self.assertFailure(self.run_soon(PID), DatabaseBusy)
        self.singles.close()
        await self.assertFailure(running, CommitUnknown)
        for each in waiting:
            await self.assertFailure(each, DatabaseAway)
        await self.assertFailure(self.run_soon(PID), DatabaseAway)

    def test_serves_only_hosts_given_by_address(self) -> None:
        reachable = {
            "postgresql://u@127.0.0.1/d": True,
            "host=::1 dbname=d": True,
            "host=/run/postgresql dbname=d": True,
            "host=db.example.org": False,
            "host=db.example.org hostaddr=192.0.2.1": True,
            "host=192.0.2.1,/run/postgresql": True,
            "host=192.0.2.1,db.example.org": False,
            "dbname=d": False,
            "no=dsn=at all": False,
        }
        self.assertEqual({dsn: PostgresSingles.can_reach(dsn) for dsn in reachable}, reachable)
