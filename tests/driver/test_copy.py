"""COPY from an iterable that raises."""

from __future__ import annotations

from collections.abc import Iterator

from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.database import Transaction
from tests.storage.postgres import PostgresCase


class _Terminated(BaseException):
    """As a signal's handler raises."""


class _OfTheSource(ValueError):
    """Not of a value that psycopg2 cannot adapt."""


class CopyIn(PostgresCase):
    """What the iterable raises is raised, as it is."""

    def assert_raised(self, error: BaseException) -> None:
        database = BlockingDatabase(self.dsn, "tests")
        self.addCleanup(database.close)

        def chunks() -> Iterator[str]:
            yield "one\n"
            raise error

        def work(txn: Transaction) -> None:
            txn.execute("CREATE TEMP TABLE copied (name text)")
            txn.copy_in("COPY copied FROM STDIN", chunks())

        self.assertIs(self.assertRaises(type(error), database.run, "a test", work), error)
        self.assertEqual(
            database.run("a test", lambda txn: txn.execute("SELECT 1").fetchall()), [(1,)]
        )

    def test_an_error(self) -> None:
        self.assert_raised(LookupError("of the source"))

    def test_an_error_of_a_type_that_values_raise(self) -> None:
        self.assert_raised(_OfTheSource("of the source"))
        self.assert_raised(UnicodeEncodeError("ascii", "\xe9", 0, 1, "of the source"))

    def test_what_is_no_error_but_ends_the_process(self) -> None:
        self.assert_raised(_Terminated())
        self.assert_raised(KeyboardInterrupt())
