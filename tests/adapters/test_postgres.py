"""Transactions on a real PostgreSQL, and everything that may go wrong with them."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from psycopg2 import extensions
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.core.errors import SynreplError
from synrepl.driver.connection import BadDsn, DatabaseRefused
from synrepl.storage.database import (
    CommitUnknown,
    ConstraintViolation,
    DatabaseBusy,
    DeferredScript,
    Isolation,
    LockNotAvailable,
    NoRow,
    QueryFailed,
    RaisedByDatabase,
    SerializationFailure,
    Transaction,
    UniqueViolation,
    WorkEndedTransaction,
)
from synrepl.storage.store import BadValue, DatabaseAway
from synrepl.testing.postgres import fresh_database
from tests.adapters.fault_proxy import Cut, FaultProxy

WAIT_S = 30  # for what another thread does meanwhile


def at_port(dsn: str, port: int) -> str:
    return extensions.make_dsn(**{**extensions.parse_dsn(dsn), "port": str(port)})


class DatabaseCase(TestCase):
    """A fresh database with a table ``t (id bigint primary key, n bigint not null)``."""

    timeout = 60

    async def setUp(self) -> None:
        self.dsn = await fresh_database(self)
        self.database = self.open(self.dsn)
        await self.sql("CREATE TABLE t (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0)")

    def open(self, dsn: str, **limits: Any) -> PostgresDatabase:
        database = PostgresDatabase(reactor, dsn, "tests", DatabaseLimits(**limits))
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        return database

    def proxy(self) -> FaultProxy:
        proxy = FaultProxy(int(extensions.parse_dsn(self.dsn)["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(proxy.stop()))
        return proxy

    async def sql(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        def work(txn: Transaction) -> list[tuple[Any, ...]]:
            txn.execute(sql, params)
            return txn.fetchall() if txn.rowcount >= 0 and re.match("SELECT|SHOW", sql) else []

        return await self.database.run("sql", work)

    async def rows(self) -> list[tuple[int, int]]:
        return await self.sql("SELECT id, n FROM t ORDER BY id")

    async def failing(self, work: Callable[[Transaction], object], **options: Any) -> SynreplError:
        with self.assertRaises(SynreplError) as caught:
            await self.database.run("failing", work, **options)
        return caught.exception


def insert(key: int) -> Callable[[Transaction], int]:
    def work(txn: Transaction) -> int:
        txn.execute("INSERT INTO t (id) VALUES (%s)", (key,))
        return key

    return work


class Transactions(DatabaseCase):
    """What work functions can do."""

    async def test_result_is_returned_and_committed(self) -> None:
        self.assertEqual(await self.database.run("insert", insert(7)), 7)
        self.assertEqual(await self.rows(), [(7, 0)])

    async def test_rolled_back_when_the_work_raises(self) -> None:
        class Mine(Exception):
            pass

        def work(txn: Transaction) -> None:
            insert(1)(txn)
            raise Mine

        with self.assertRaises(Mine):
            await self.database.run("mine", work)
        self.assertEqual(await self.rows(), [])

    async def test_waits_for_the_disk_where_the_database_does_not(self) -> None:
        name = extensions.parse_dsn(self.dsn)["dbname"]

        def shown(txn: Transaction) -> str:
            return str(txn.execute("SHOW synchronous_commit").fetchone()[0])

        for given, wanted in (("off", "on"), ("local", "local"), ("on", "on")):
            await self.sql(f"ALTER DATABASE {name} SET synchronous_commit = {given}")
            database = self.open(self.dsn)
            self.assertEqual(await database.run("show", shown), wanted)
            self.assertEqual(await database.run("show", shown, read_only=True), given)

    async def test_connections_have_the_expected_settings(self) -> None:
        shown = {
            name: (await self.sql(f"SHOW {name}"))[0][0]
            for name in (
                "application_name",
                "client_encoding",
                "timezone",
                "jit",
                "idle_in_transaction_session_timeout",
                "transaction_isolation",
            )
        }
        self.assertEqual(
            shown,
            {
                "application_name": "synrepl tests",
                "client_encoding": "UTF8",
                "timezone": "UTC",
                "jit": "off",
                "idle_in_transaction_session_timeout": "1min",
                "transaction_isolation": "read committed",
            },
        )

    async def test_json_and_bytes_come_back_exactly(self) -> None:
        big = 2**64 + 1
        [row] = await self.sql(
            "SELECT %s::json, %s::jsonb, %s::bytea, NULL::jsonb, NULL::bytea",
            f'{{"a": [{big}]}}',
            f"[{big}, 0.5]",
            b"\x00\xff",
        )
        self.assertEqual(row, ({"a": [big]}, [big, 0.5], b"\x00\xff", None, None))

    async def test_percent_needs_no_doubling_without_parameters(self) -> None:
        self.assertEqual(await self.sql("SELECT '100%'"), [("100%",)])

    async def test_accepts_parameters_by_name(self) -> None:
        def work(txn: Transaction) -> object:
            return txn.execute("SELECT %(a)s + %(a)s", {"a": 2}).fetchone()

        self.assertEqual(await self.database.run("named", work), (4,))

    async def test_fetches_rows_one_by_one_and_all(self) -> None:
        def work(txn: Transaction) -> list[Any]:
            txn.execute("SELECT generate_series(1, 5)")
            parts: list[Any] = [txn.rowcount, txn.fetchone(), txn.fetchone_or_none()]
            parts.append([next(iter(txn)), txn.fetchall(), txn.fetchone_or_none()])
            return parts

        self.assertEqual(
            await self.database.run("fetch", work), [5, (1,), (2,), [(3,), [(4,), (5,)], None]]
        )

    async def test_fetching_no_row_gives_none(self) -> None:
        error = await self.failing(lambda txn: txn.execute("SELECT FROM t").fetchone())
        self.assertIsInstance(error, NoRow)

    async def test_inserts_many_rows(self) -> None:
        def work(txn: Transaction) -> tuple[list[Any], int]:
            returned = txn.insert_many(
                "INSERT INTO t (id, n) VALUES %s RETURNING id",
                ((n, n) for n in range(2500)),
                "(%s, %s * 2)",
            )
            return returned, txn.rowcount

        returned, count = await self.database.run("many", work)
        self.assertEqual(returned, [(n,) for n in range(2500)])
        self.assertEqual(count, 2500)
        self.assertEqual(await self.sql("SELECT count(*), sum(n) FROM t"), [(2500, 2499 * 2500)])

    async def test_inserting_many_accepts_no_rows(self) -> None:
        def work(txn: Transaction) -> list[Any]:
            return txn.insert_many("INSERT INTO t (id) VALUES %s RETURNING id", [])

        self.assertEqual(await self.database.run("none", work), [])

    async def test_copy_in_and_out(self) -> None:
        def fill(txn: Transaction) -> int:
            return txn.copy_in("COPY t FROM STDIN", (f"{n}\t{n}\n" for n in range(5000)))

        out: list[bytes] = []

        def empty(txn: Transaction) -> int:
            out.clear()
            return txn.copy_out("COPY (SELECT * FROM t ORDER BY id) TO STDOUT", out.append)

        self.assertEqual(await self.database.run("fill", fill), 5000)
        self.assertEqual(await self.database.run("empty", empty, read_only=True), 5000)
        self.assertEqual(b"".join(out), b"".join(b"%d\t%d\n" % (n, n) for n in range(5000)))

    async def test_copy_in_of_bytes(self) -> None:
        await self.database.run(
            "fill", lambda txn: txn.copy_in("COPY t FROM STDIN", [b"1\t", b"2\n"])
        )
        self.assertEqual(await self.rows(), [(1, 2)])

    async def test_copy_in_refuses_a_lone_surrogate(self) -> None:
        error = await self.failing(lambda txn: txn.copy_in("COPY t FROM STDIN", ["1\t\ud800\n"]))
        assert isinstance(error, BadValue)
        self.assertIn("surrogates not allowed", str(error))

    async def test_copy_in_raises_what_its_chunks_raise(self) -> None:
        def chunks() -> Iterator[str]:
            yield "1\t1\n"
            raise LookupError("no more rows")

        with self.assertRaisesRegex(LookupError, "no more rows"):
            await self.database.run("fill", lambda txn: txn.copy_in("COPY t FROM STDIN", chunks()))
        self.assertEqual(await self.rows(), [])

    async def test_a_read_only_transaction_cannot_write(self) -> None:
        error = await self.failing(insert(1), read_only=True)
        assert isinstance(error, QueryFailed)
        self.assertEqual(error.sqlstate, "25006")

    async def test_runs_as_many_transactions_as_connections(self) -> None:
        meeting = threading.Barrier(8, timeout=WAIT_S)
        running = [self.database.run("meet", lambda txn: meeting.wait()) for _ in range(8)]
        met = await gatherResults([Deferred.fromCoroutine(each) for each in running])
        self.assertEqual(sorted(met), list(range(8)))


class TransactionRefusals(DatabaseCase):
    """Errors of the server and of the driver have names, and undo the transaction."""

    async def test_names_a_unique_violation(self) -> None:
        await self.database.run("insert", insert(1))
        error = await self.failing(insert(1))
        assert isinstance(error, UniqueViolation)
        self.assertEqual(error.constraint, "t_pkey")
        self.assertIn("(id)=(1)", str(error))

    async def test_names_a_constraint_violation(self) -> None:
        await self.sql("CREATE TABLE u (id bigint CONSTRAINT known REFERENCES t)")
        error = await self.failing(lambda txn: txn.execute("INSERT INTO u VALUES (1)"))
        assert isinstance(error, ConstraintViolation)
        self.assertEqual(error.constraint, "known")

    async def test_names_a_violation_found_at_commit(self) -> None:
        await self.sql("CREATE TABLE u (id bigint REFERENCES t INITIALLY DEFERRED)")
        error = await self.failing(lambda txn: txn.execute("INSERT INTO u VALUES (1)"))
        self.assertIsInstance(error, ConstraintViolation)
        self.assertEqual(await self.sql("SELECT * FROM u"), [])

    async def test_passes_on_error_codes_raised_in_sql(self) -> None:
        raising = "DO $$BEGIN RAISE 'no %', 1 USING ERRCODE='SY042', DETAIL='why'; END$$"
        error = await self.failing(lambda txn: txn.execute(raising))
        assert isinstance(error, RaisedByDatabase)
        self.assertEqual((error.code, error.detail), ("SY042", "why"))
        self.assertIn("no 1", str(error))

    async def test_refuses_values_that_do_not_fit(self) -> None:
        for value in (2**63, "x", None, "nul\0", "\ud800"):
            with self.subTest(value):
                error = await self.failing(
                    lambda txn, v=value: txn.execute("INSERT INTO t VALUES (1, %s)", (v,))
                )
                self.assertIsInstance(error, BadValue)

    async def test_refuses_a_type_that_the_driver_does_not_know(self) -> None:
        error = await self.failing(lambda txn: txn.execute("SELECT %s", (object(),)))
        self.assertIsInstance(error, QueryFailed)

    async def test_the_column_is_named_where_it_is_known(self) -> None:
        error = await self.failing(lambda txn: txn.execute("INSERT INTO t VALUES (1, NULL)"))
        assert isinstance(error, BadValue)
        self.assertEqual(error.facts["where"], "public.t.n")

    async def test_refuses_a_json_number_that_cannot_be_read(self) -> None:
        error = await self.failing(lambda txn: txn.execute("SELECT '1e9999'::jsonb").fetchall())
        self.assertIsInstance(error, BadValue)

    async def test_names_a_lock_that_is_not_available(self) -> None:
        locked, done = threading.Event(), threading.Event()

        def hold(txn: Transaction) -> None:
            txn.execute("LOCK TABLE t")
            locked.set()
            done.wait(WAIT_S)

        def want(txn: Transaction) -> None:
            locked.wait(WAIT_S)
            txn.execute("LOCK TABLE t NOWAIT")

        holding = Deferred.fromCoroutine(self.database.run("hold", hold))
        self.assertIsInstance(await self.failing(want), LockNotAvailable)
        done.set()
        await holding

    async def test_names_a_wrong_statement(self) -> None:
        error = await self.failing(lambda txn: txn.execute("SELEKT"))
        assert isinstance(error, QueryFailed)
        self.assertEqual(error.sqlstate, "42601")

    async def test_an_error_swallowed_by_the_work_fails_the_transaction(self) -> None:
        def work(txn: Transaction) -> None:
            insert(1)(txn)
            with contextlib.suppress(BadValue):
                txn.execute("SELECT 1 / 0")

        self.assertIsInstance(await self.failing(work), WorkEndedTransaction)
        self.assertEqual(await self.rows(), [])

    async def test_refuses_a_commit_in_the_work(self) -> None:
        error = await self.failing(lambda txn: txn.execute("COMMIT"))
        self.assertIsInstance(error, WorkEndedTransaction)
        self.assertEqual(await self.sql("SELECT 1"), [(1,)])


class SerializationFailures(DatabaseCase):
    """Two real transactions in each other's way: one runs again."""

    async def test_retries_after_a_serialization_failure(self) -> None:
        await self.database.run("insert", insert(1))
        read, written = threading.Event(), threading.Event()
        seen: list[int] = []

        def slow(txn: Transaction) -> None:
            txn.execute("SELECT n FROM t WHERE id = 1")
            seen.append(txn.fetchone()[0])
            read.set()
            written.wait(WAIT_S)
            txn.execute("UPDATE t SET n = %s WHERE id = 1", (seen[-1] + 1,))

        def fast(txn: Transaction) -> None:
            read.wait(WAIT_S)
            txn.execute("UPDATE t SET n = 10 WHERE id = 1")

        running = Deferred.fromCoroutine(
            self.database.run("slow", slow, isolation=Isolation.REPEATABLE_READ)
        )
        await self.database.run("fast", fast)
        written.set()
        await running
        self.assertEqual(seen, [0, 10])
        self.assertEqual(await self.rows(), [(1, 11)])

    async def test_retries_after_a_deadlock(self) -> None:
        await gatherResults(
            [Deferred.fromCoroutine(self.database.run("insert", insert(n))) for n in (1, 2)]
        )
        meeting = threading.Barrier(2)
        through = threading.Event()
        runs: list[int] = []

        def work(txn: Transaction, first: int, second: int) -> None:
            runs.append(first)
            if len(runs) > 2:  # it could have its row again before the other has woken up
                through.wait(WAIT_S)
            txn.execute("SET LOCAL deadlock_timeout = '10ms'")
            txn.execute("UPDATE t SET n = n + 1 WHERE id = %s", (first,))
            if len(runs) <= 2:
                meeting.wait(WAIT_S)
            txn.execute("UPDATE t SET n = n + 1 WHERE id = %s", (second,))
            through.set()

        await gatherResults(
            [
                Deferred.fromCoroutine(
                    self.database.run("deadlock", lambda txn, a=a, b=b: work(txn, a, b))
                )
                for a, b in ((1, 2), (2, 1))
            ]
        )
        self.assertEqual(len(runs), 3)
        self.assertEqual(await self.rows(), [(1, 2), (2, 2)])

    async def test_gives_up_after_the_maximum_of_attempts(self) -> None:
        database = self.open(self.dsn, attempts=3)
        runs: list[int] = []

        def work(txn: Transaction) -> None:
            runs.append(1)
            txn.execute("DO $$BEGIN RAISE 'again' USING ERRCODE = '40001'; END$$")

        with self.assertRaises(SerializationFailure) as caught:
            await database.run("again", work)
        self.assertEqual(len(runs), 3)
        self.assertIn("after 3 attempts", str(caught.exception))


class LostConnections(DatabaseCase):
    """Connections that break."""

    async def test_retries_when_the_connection_is_lost_in_a_transaction(self) -> None:
        pids: list[int] = []

        def work(txn: Transaction) -> None:
            insert(1)(txn)
            pids.append(txn.execute("SELECT pg_backend_pid()").fetchone()[0])
            if len(pids) == 1:
                txn.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        await self.database.run("in the middle", work)
        self.assertEqual(len(set(pids)), 2)
        self.assertEqual(await self.rows(), [(1, 0)])

    async def test_retries_when_the_connection_is_lost_between_transactions(self) -> None:
        other = self.open(self.dsn)
        await self.sql("SELECT 1")
        await other.run(
            "terminate",
            lambda txn: txn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ),
        )
        self.assertEqual(await self.sql("SELECT 2"), [(2,)])

    async def test_retries_a_loss_that_the_work_reports_as_another_error(self) -> None:
        runs: list[int] = []

        def work(txn: Transaction) -> int:
            runs.append(1)
            if len(runs) == 1:
                try:
                    txn.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                except SynreplError as error:
                    raise ValueError("something else") from error
            return 5

        self.assertEqual(await self.database.run("obstinate", work), 5)

    async def cut(
        self, cut: Cut, read_only: bool = False, deferred: bool = False
    ) -> tuple[int, list[tuple[int, int]]]:
        """Cut the first COMMIT; return how often the work ran, and the rows in the table.

        :param deferred: whether the work sends its statement with the COMMIT
        """
        proxy = self.proxy()
        database = self.open(at_port(self.dsn, proxy.port))
        proxy.cut = cut
        runs: list[int] = []

        def work(txn: Transaction) -> int:
            runs.append(1)
            insert = "INSERT INTO t SELECT count(*) FROM t"  # a second one would show
            if read_only:
                txn.execute("SELECT FROM t")
            else:
                txn.execute(DeferredScript([insert]) if deferred else insert)
            return len(runs)

        self.assertEqual(await database.run("cut", work, read_only=read_only), len(runs))
        self.assertIs(proxy.cut, Cut.NEVER)
        return len(runs), await self.rows()

    async def test_a_commit_that_reached_the_server_is_not_repeated(self) -> None:
        self.assertEqual(await self.cut(Cut.AFTER), (1, [(0, 0)]))

    async def test_a_commit_that_did_not_reach_the_server_is_repeated(self) -> None:
        self.assertEqual(await self.cut(Cut.BEFORE), (2, [(0, 0)]))

    async def test_what_was_sent_with_a_lost_commit_is_there_once(self) -> None:
        self.assertEqual(await self.cut(Cut.AFTER, deferred=True), (1, [(0, 0)]))
        self.assertEqual(await self.cut(Cut.BEFORE, deferred=True), (2, [(0, 0), (1, 0)]))

    async def test_an_unfinished_transaction_is_waited_for_before_it_is_repeated(self) -> None:
        self.assertEqual(await self.cut(Cut.UNNOTICED), (2, [(0, 0)]))

    async def test_end_of_a_read_only_transaction_does_not_matter(self) -> None:
        self.assertEqual(await self.cut(Cut.BEFORE, read_only=True), (1, []))

    async def test_an_outcome_that_cannot_be_looked_up_is_unknown(self) -> None:
        proxy = self.proxy()
        database = self.open(at_port(self.dsn, proxy.port), give_up_s=0.0)
        proxy.cut = Cut.AFTER

        def work(txn: Transaction) -> None:
            proxy.refusing = True
            insert(1)(txn)

        with self.assertRaises(CommitUnknown) as caught:
            await database.run("lost", work)
        self.assertIn("transaction", str(caught.exception))

    async def test_waits_for_a_database_that_is_away(self) -> None:
        proxy = self.proxy()
        proxy.refusing = True
        refusals: list[int] = []

        def refused() -> None:
            refusals.append(1)
            proxy.refusing = len(refusals) < 3

        proxy.on_refused = refused
        database = self.open(at_port(self.dsn, proxy.port))
        await database.run("patient", insert(1))
        self.assertEqual(len(refusals), 3)
        self.assertEqual(await self.rows(), [(1, 0)])

    async def test_gives_up_on_a_database_that_stays_away(self) -> None:
        proxy = self.proxy()
        proxy.refusing = True
        database = self.open(at_port(self.dsn, proxy.port), give_up_s=0.0)
        with self.assertRaises(DatabaseAway) as caught:
            await database.run("impatient", insert(1))
        self.assertIn(f"port={proxy.port}", str(caught.exception))
        self.assert_no_password(caught.exception)

    async def test_wrong_password_is_refused_at_once(self) -> None:
        parts = {**extensions.parse_dsn(self.dsn), "password": "hunter2"}
        database = self.open(extensions.make_dsn(**parts))
        with self.assertRaises(DatabaseRefused) as caught:
            await database.run("stranger", insert(1))
        self.assertIn("password authentication failed", str(caught.exception))
        self.assertNotIn("hunter2", str(caught.exception))

    async def test_unknown_database_is_refused_at_once(self) -> None:
        database = self.open(f"{self.dsn}_not")
        with self.assertRaises(DatabaseRefused):
            await database.run("nowhere", insert(1))

    def assert_no_password(self, error: Exception) -> None:
        self.assertNotIn(extensions.parse_dsn(self.dsn)["password"], str(error))

    def test_bad_dsn_is_not_shown(self) -> None:
        for dsn in ("host=x passwort=hunter2", "postgresql://u:hunter2@[x/", "hunter2"):
            with self.assertRaises(BadDsn) as caught:
                PostgresDatabase(reactor, dsn, "tests")
            self.assertNotIn("hunter2", str(caught.exception))


class DatabaseLimitsAndClose(DatabaseCase):
    """Queue and close."""

    async def test_refuses_transactions_beyond_the_queue(self) -> None:
        database = self.open(self.dsn, connections=1, queue=1)
        go_on = threading.Event()
        running = Deferred.fromCoroutine(database.run("a", lambda txn: go_on.wait(WAIT_S)))
        waiting = Deferred.fromCoroutine(database.run("b", insert(1)))
        with self.assertRaises(DatabaseBusy):
            await database.run("c", insert(2))
        go_on.set()
        await running
        await waiting
        self.assertEqual(await self.rows(), [(1, 0)])

    async def test_a_cancelled_wait_leaves_the_queue(self) -> None:
        database = self.open(self.dsn, connections=1, queue=1)
        go_on = threading.Event()
        running = Deferred.fromCoroutine(database.run("a", lambda txn: go_on.wait(WAIT_S)))
        waiting = Deferred.fromCoroutine(database.run("b", insert(1)))
        waiting.addErrback(lambda _: None)
        waiting.cancel()
        next_one = Deferred.fromCoroutine(database.run("c", insert(2)))
        go_on.set()
        await running
        await next_one
        self.assertEqual(await self.rows(), [(2, 0)])

    async def test_cancelled_transaction_keeps_its_connection_to_the_end(self) -> None:
        database = self.open(self.dsn, connections=1)
        started, go_on = threading.Event(), threading.Event()

        def work(txn: Transaction) -> None:
            started.set()
            go_on.wait(WAIT_S)
            insert(1)(txn)

        running = Deferred.fromCoroutine(database.run("a", work))
        running.addErrback(lambda _: None)
        next_one = Deferred.fromCoroutine(database.run("b", insert(2)))
        started.wait(WAIT_S)
        running.cancel()
        go_on.set()
        await next_one
        self.assertEqual(await self.rows(), [(1, 0), (2, 0)])

    async def test_close_waits_for_running_transactions_and_refuses_queued_ones(self) -> None:
        database = self.open(self.dsn, connections=1)
        go_on = threading.Event()

        def work(txn: Transaction) -> None:
            go_on.wait(WAIT_S)
            insert(1)(txn)

        running = Deferred.fromCoroutine(database.run("a", work))
        waiting = Deferred.fromCoroutine(database.run("b", insert(2)))
        closing = Deferred.fromCoroutine(database.close())
        with self.assertRaises(DatabaseAway):
            await waiting
        go_on.set()
        await closing
        await running
        with self.assertRaises(DatabaseAway):
            await database.run("late", insert(3))
        self.assertEqual(await self.rows(), [(1, 0)])

    async def test_close_terminates_transactions_that_take_too_long(self) -> None:
        database = self.open(self.dsn, close_s=0.1)
        begun: Deferred[None] = Deferred()

        def work(txn: Transaction) -> None:
            reactor.callFromThread(begun.callback, None)
            txn.execute("SELECT pg_sleep(600)")

        running = Deferred.fromCoroutine(database.run("long", work))
        await begun
        closing = Deferred.fromCoroutine(database.close())
        with self.assertRaises(DatabaseAway):
            await running
        await closing

    async def test_close_ends_a_transaction_that_is_still_connecting(self) -> None:
        database = self.open(self.dsn, close_s=0.0)
        running = Deferred.fromCoroutine(
            database.run("long", lambda txn: txn.execute("SELECT pg_sleep(600)"))
        )
        closing = Deferred.fromCoroutine(database.close())
        with self.assertRaises(DatabaseAway):
            await running
        await closing

    async def test_close_ends_waiting_for_a_database_that_is_away(self) -> None:
        proxy = self.proxy()
        proxy.refusing = True
        refused: Deferred[None] = Deferred()
        proxy.on_refused = lambda: refused.callback(None) if not refused.called else None
        database = self.open(at_port(self.dsn, proxy.port), give_up_s=600.0)
        running = Deferred.fromCoroutine(database.run("away", insert(1)))
        await refused
        await database.close()
        with self.assertRaises(DatabaseAway):
            await running

    async def test_close_leaves_no_thread_and_no_connection(self) -> None:
        before = set(threading.enumerate())
        database = self.open(self.dsn)
        await gatherResults(
            [Deferred.fromCoroutine(database.run("insert", insert(n))) for n in range(8)]
        )
        self.assertTrue(set(threading.enumerate()) - before)
        await database.close()
        self.assertEqual(set(threading.enumerate()) - before, set())
