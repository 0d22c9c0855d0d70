"""Databases for tests: each its own, filled once and copied, gone afterwards."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from synrepl.testing.postgres import (
    DatabaseNotMade,
    DatabaseTemplate,
    fresh_database,
    server,
)

_FILL = (
    "CREATE TABLE orders (order_id serial PRIMARY KEY, item text);"
    "INSERT INTO orders (item) VALUES ('tea')"
)


def run(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own; the rows of its result."""
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def exists(dsn: str) -> bool:
    """Whether the server has a database."""
    name = parse_dsn(dsn)["dbname"]
    return run(server().dsn, f"SELECT 1 FROM pg_database WHERE datname = '{name}'") != []


class Test:
    """A test that is over when :meth:`end` is called."""

    def __init__(self) -> None:
        self._cleanups: list[Any] = []

    def addCleanup(self, call: Any, /, *args: object) -> None:
        self._cleanups.append((call, args))

    async def end(self) -> None:
        """Clean up."""
        while self._cleanups:
            call, args = self._cleanups.pop()
            await call(*args)


class Databases(TestCase):
    """Databases of tests, empty or filled."""

    async def test_a_database_is_of_one_test_and_dropped_with_all_connections_when_it_is_over(
        self,
    ) -> None:
        one, other = Test(), Test()
        dsn = await fresh_database(one)
        run(dsn, _FILL)
        with closing(psycopg2.connect(dsn)) as left_open:
            again = await fresh_database(other)
            self.assertEqual(run(again, "SELECT to_regclass('orders')::text"), [(None,)])
            await one.end()
            self.assertFalse(exists(dsn))
            with self.assertRaises(psycopg2.OperationalError):
                left_open.cursor().execute("SELECT 1")
        self.assertTrue(exists(again))
        await other.end()
        self.assertFalse(exists(again))

    async def test_a_test_may_have_dropped_its_database(self) -> None:
        test = Test()
        await _drop(await fresh_database(test))
        await test.end()

    async def test_a_refusal_of_postgres_is_named(self) -> None:
        with self.assertRaises(DatabaseNotMade) as caught:
            await DatabaseTemplate(_drop).copy(self)
        self.assertRegex(str(caught.exception), 'database "test_[0-9]+" does not exist$')


async def _drop(dsn: str) -> None:
    with closing(psycopg2.connect(server().dsn)) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"DROP DATABASE {parse_dsn(dsn)['dbname']}")


async def _fill(dsn: str) -> None:
    await deferToThread(run, dsn, _FILL)


class Templates(TestCase):
    """Databases that are filled once and copied."""

    def setUp(self) -> None:
        self.filled = 0
        self.left_open: list[Any] = []

    async def fill(self, dsn: str) -> None:
        """Fill a database, and leave a connection to it open."""
        self.filled += 1
        await _fill(dsn)
        self.left_open.append(psycopg2.connect(dsn))
        self.addCleanup(self.left_open[-1].close)

    async def test_copies_have_what_was_filled_in_once_and_are_independent(self) -> None:
        template = DatabaseTemplate(self.fill)
        one, other = await gatherResults(
            [Deferred.fromCoroutine(template.copy(self)) for _ in range(2)]
        )
        self.assertEqual(self.filled, 1)
        run(one, "INSERT INTO orders (item) VALUES ('milk')")
        self.assertEqual(run(one, "TABLE orders ORDER BY order_id"), [(1, "tea"), (2, "milk")])
        self.assertEqual(run(other, "TABLE orders"), [(1, "tea")])

    async def test_a_copy_is_dropped_when_its_test_is_over_and_the_template_is_not(self) -> None:
        template = DatabaseTemplate(self.fill)
        test = Test()
        dsn = await template.copy(test)
        await test.end()
        self.assertFalse(exists(dsn))
        self.assertEqual(run(await template.copy(self), "TABLE orders"), [(1, "tea")])
        self.assertEqual(self.filled, 1)

    async def test_nobody_is_connected_to_the_template_after_it_was_filled(self) -> None:
        await DatabaseTemplate(self.fill).copy(self)
        with self.assertRaises(psycopg2.OperationalError):
            self.left_open[0].cursor().execute("SELECT 1")
        dsn = self.left_open[0].dsn
        refused = self.assertRaises(psycopg2.OperationalError, run, dsn, "SELECT 1")
        self.assertIsNotNone(refused)

    async def test_filling_that_failed_is_attempted_anew(self) -> None:
        attempts: list[str] = []

        async def fill(dsn: str) -> None:
            attempts.append(dsn)
            if len(attempts) == 1:
                raise ZeroDivisionError
            await _fill(dsn)

        template = DatabaseTemplate(fill)
        with self.assertRaises(ZeroDivisionError):
            await template.copy(self)
        self.assertFalse(exists(attempts[0]))
        self.assertEqual(run(await template.copy(self), "TABLE orders"), [(1, "tea")])
