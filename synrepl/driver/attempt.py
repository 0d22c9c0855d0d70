"""One attempt at a transaction: BEGIN, the work, COMMIT. Runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg2

from synrepl.driver.commit_status import CommitTicket
from synrepl.driver.connection import DatabaseAddress, PostgresConnection, close
from synrepl.driver.errors import VALUE_ERRORS, is_lost, translate
from synrepl.driver.transaction import PostgresTransaction
from synrepl.storage.database import Isolation, StalePlans, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttemptResult(Generic[T]):
    """The result of a work function that returned.

    :ivar in_doubt: ticket to look up the commit with, if the connection was lost during
        COMMIT; None if the commit was confirmed
    :ivar reason: why the connection was lost
    """

    result: T
    in_doubt: CommitTicket | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """A transaction to run: its work function and settings. It can be run any number of times.

    :ivar name: name of the work, for errors
    """

    address: DatabaseAddress
    name: str
    work: Callable[[Transaction], T]
    read_only: bool
    isolation: Isolation

    def run(self, connection: PostgresConnection) -> AttemptResult[T]:
        """Run the work in its own transaction on ``connection``.

        If it raises, nothing was committed.

        :raises DatabaseAway: the connection was lost before COMMIT
        """
        transaction = PostgresTransaction(
            connection, self.address, self.name, self.read_only, self.isolation
        )
        try:
            result = self.work(transaction)
            transaction.check_open()
        except BaseException as error:
            self._roll_back(connection, error)
            raise
        try:
            transaction.commit()
        except psycopg2.Error as error:
            if not is_lost(connection, error):
                translated = translate(self.name, error)
                self._roll_back(connection, translated)  # a deferred script may have failed
                raise translated from error
            close(connection)
            return AttemptResult(result, transaction.ticket, self.address.redacted(error))
        except StalePlans as error:
            self._roll_back(connection, error)
            raise
        except VALUE_ERRORS as error:
            translated = translate(self.name, error)
            self._roll_back(connection, translated)
            raise translated from error
        return AttemptResult(result)

    def _roll_back(self, connection: PostgresConnection, error: BaseException) -> None:
        """Roll back. A connection lost meanwhile is raised as such, whatever the work raised."""
        try:
            if not connection.closed:
                with connection.cursor() as cursor:
                    cursor.execute("ROLLBACK")
                return
        except psycopg2.Error:
            close(connection)
        if isinstance(error, Exception) and not isinstance(error, DatabaseAway):
            raise self.address.away(error) from error
