"""One attempt at a transaction: BEGIN, the work, COMMIT. Runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import psycopg2

from synrepl.driver.commit_status import CommitTicket
from synrepl.driver.connection import DatabaseAddress, PostgresConnection, close
from synrepl.driver.errors import is_lost, translate
from synrepl.driver.transaction import PostgresTransaction
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")

#: Returns the transaction's ID, and makes its commit wait for the disk: the server must not lose,
#: in a crash that this process survives, positions and effects that the process saw committed.
_IDENTIFY = (
    "SELECT pg_current_xact_id()::text, CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END"
)


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
        ticket = self._begin(connection)
        transaction = PostgresTransaction(connection, self.address, self.name)
        try:
            result = self.work(transaction)
            transaction.close()
        except BaseException as error:
            self._roll_back(connection, error)
            raise
        try:
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")
        except psycopg2.Error as error:
            if not is_lost(connection, error):
                raise translate(self.name, error) from error
            close(connection)
            return AttemptResult(result, ticket, self.address.redacted(error))
        return AttemptResult(result)

    def _begin(self, connection: PostgresConnection) -> CommitTicket | None:
        """Start the transaction; if it writes, fetch its ID in the same round trip."""
        try:
            incarnation = None if self.read_only else connection.incarnation
            with connection.cursor() as cursor:
                if self.read_only:
                    cursor.execute(f"BEGIN ISOLATION LEVEL {self.isolation} READ ONLY")
                    return None
                cursor.execute(f"BEGIN ISOLATION LEVEL {self.isolation} READ WRITE; {_IDENTIFY}")
                row = cursor.fetchone()
                assert row is not None
        except psycopg2.Error as error:
            if is_lost(connection, error):
                close(connection)
                raise self.address.away(error) from None
            with suppress(psycopg2.Error):
                connection.cursor().execute("ROLLBACK")
            raise translate(self.name, error) from error
        return CommitTicket(row[0], connection.info.backend_pid, incarnation)

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
