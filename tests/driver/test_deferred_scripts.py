"""Scripts that a transaction sends with what follows, and those that it begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg2.extensions import parse_dsn
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.core.errors import StorageError
from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.database import (
    OPENING_COLUMNS,
    DeferredScript,
    OpeningScript,
    PlannedOnce,
    Transaction,
    UniqueViolation,
)
from synrepl.storage.store import BadValue
from tests.adapters.fault_proxy import FaultProxy
from tests.adapters.test_postgres import at_port
from tests.storage.postgres import PostgresCase

reactor: Any = _reactor

_ADD = PlannedOnce("INSERT INTO deferred (number, name) VALUES (%s, %s)")
_ADD_PLAIN = "INSERT INTO deferred VALUES (7, '7 %')"
_NUMBERS = "SELECT array_agg(number ORDER BY number) FROM deferred WHERE name NOT LIKE '%q'"
_OPEN = OpeningScript([f"SELECT name, {OPENING_COLUMNS} FROM deferred WHERE number = %s"])


class DeferredScripts(PostgresCase):
    """Over one connection."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.database = self.process("one").database
        self.sql("CREATE TABLE deferred (number integer PRIMARY KEY, name text)")

    async def test_are_sent_before_the_next_statement(self) -> None:
        def work(txn: Transaction) -> object:
            txn.execute(DeferredScript([_ADD, _ADD]), (1, "50 %", 2, "two"))
            txn.execute(DeferredScript([_ADD_PLAIN]))
            found = txn.execute(_NUMBERS).fetchone()[0]
            txn.execute(DeferredScript([_ADD]), (3, "three"))
            txn.copy_in("COPY deferred FROM STDIN", ["4\tfour\n"])
            txn.execute(DeferredScript([_ADD]), (5, "five"))
            txn.insert_many("INSERT INTO deferred VALUES %s", [(6, "six")])
            return found

        self.assertEqual(await self.database.run("a test", work), [1, 2, 7])
        self.assertEqual(self.sql(_NUMBERS), [1, 2, 3, 4, 5, 6, 7])

    async def test_are_sent_before_a_statement_with_named_parameters(self) -> None:
        named = "SELECT %(one)s || name FROM deferred WHERE number = %(two)s AND %(one)s <> '%%'"

        def work(txn: Transaction) -> list[object]:
            found = []
            for number in (7, 8):
                txn.execute(DeferredScript([_ADD_PLAIN.replace("7", str(number))]))
                txn.execute(named, {"one": "%s ", "two": number})
                found.append(txn.fetchone()[0])
            txn.execute(DeferredScript([_ADD]), (9, "nine %"))
            found.append(txn.execute(named, {"one": "", "two": 9}).fetchone()[0])
            return found

        self.assertEqual(await self.database.run("a test", work), ["%s 7 %", "%s 8 %", "nine %"])

    async def test_are_committed_when_nothing_follows(self) -> None:
        await self.database.run("a test", lambda txn: txn.execute(DeferredScript([_ADD_PLAIN])))
        self.assertEqual(self.sql("SELECT name FROM deferred WHERE number = 7"), "7 %")

    async def test_an_error_of_one_changes_nothing_and_has_its_name(self) -> None:
        def work(values: tuple[object, ...], error: type[StorageError]) -> None:
            def add(txn: Transaction) -> None:
                txn.execute("INSERT INTO deferred VALUES (1, 'one')")
                txn.execute(DeferredScript([_ADD]), values)

            with self.assertRaises(error):
                database.run("a test", add)

        with BlockingDatabase(self.dsn, "one") as database:
            for _ in range(2):
                work((1, "again"), UniqueViolation)
                work(("no number", ""), BadValue)
                work((2, "nul \0"), BadValue)
            database.run("a test", lambda txn: txn.execute(DeferredScript([_ADD]), (2, "two")))
        self.assertEqual(self.sql(_NUMBERS), [2])


class RoundTrips(PostgresCase):
    """Counted by a proxy."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.sql("CREATE TABLE deferred (number integer PRIMARY KEY, name text)")
        self.proxy = FaultProxy(int(parse_dsn(self.dsn)["port"]))
        self.addCleanup(lambda: Deferred.fromCoroutine(self.proxy.stop()))

    async def round_trips(
        self, work: Callable[[Transaction], object], read_only: bool = False
    ) -> tuple[object, int]:
        """The result of some work, and the number of its round trips on a connection that is open."""
        database = PostgresDatabase(reactor, at_port(self.dsn, self.proxy.port), "one")
        self.addCleanup(lambda: Deferred.fromCoroutine(database.close()))
        await database.run("open", lambda txn: txn.execute("SELECT 1"))
        self.proxy.cut_at = 1_000
        found = await database.run("a test", work, read_only=read_only)
        count, self.proxy.cut_at = 1_000 - self.proxy.cut_at, None
        return found, count

    async def test_a_transaction_that_opens_and_defers_takes_two(self) -> None:
        def work(txn: Transaction) -> object:
            found = txn.execute(_OPEN, (1,)).fetchone_or_none()
            txn.execute(DeferredScript([_ADD]), (2, "two"))
            return None if found is None else found[0]

        self.sql("INSERT INTO deferred VALUES (1, 'one')")
        self.assertEqual(await self.round_trips(work), ("one", 2))

    async def test_an_opening_script_without_a_row_takes_one_more(self) -> None:
        def work(txn: Transaction) -> object:
            return txn.execute(_OPEN, (1,)).fetchone_or_none()

        self.assertEqual(await self.round_trips(work), (None, 3))

    async def test_one_query_that_changes_nothing_takes_two(self) -> None:
        def work(txn: Transaction) -> object:
            return txn.execute("SELECT count(*) FROM deferred").fetchone()[0]

        self.assertEqual(await self.round_trips(work, read_only=True), (0, 2))

    async def test_work_without_a_statement_takes_none(self) -> None:
        self.assertEqual(await self.round_trips(lambda txn: None), (None, 0))
