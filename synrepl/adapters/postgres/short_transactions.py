"""Transactions of two round trips on an asynchronous connection, without threads.

Passing a transaction to a thread and back costs 0.25 ms: two switches, and what the threads use in turn has to move from
one processor's cache to the other's. Where there is nothing to read in between, the reactor can wait for the
connection itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg2
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from synrepl.adapters.postgres.async_connection import AsyncConnection
from synrepl.driver.commit_status import CommitTicket
from synrepl.driver.connection import DatabaseAddress
from synrepl.driver.errors import CONFLICTS, VALUE_ERRORS, translate
from synrepl.driver.incarnation import INCARNATION, ServerIncarnation
from synrepl.driver.prepared_plans import STALE_STATES, planned_statements
from synrepl.driver.transaction import begin_text
from synrepl.storage.database import Isolation, Record, Transaction
from synrepl.storage.short_work import DeferredOnly, Opening, ShortResult

T = TypeVar("T")

_BEGIN = begin_text(Isolation.READ_COMMITTED, read_only=False)


class PostgresShortTransactions:
    """Implements :class:`synrepl.storage.short_work.ShortTransactions`; connects when first used.

    After any error of the database the connection is closed, which rolls back, and the next transaction begins
    to open another one.

    :param reactor: watches the connection
    :param dsn: a libpq URI or key=value string; its host must be an address, see :meth:`.PostgresSingles.can_reach`
    :param instance: the process's name, which the server shows
    :param was_committed: looks up a commit whose answer was lost, see :meth:`.PostgresDatabase.was_committed`
    :raises BadDsn: ``dsn`` cannot be read
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        dsn: str,
        instance: str,
        was_committed: Callable[[str, CommitTicket], Awaitable[bool]],
    ) -> None:
        self._reactor = reactor
        self._address = DatabaseAddress(
            dsn,
            instance,
            settings={"idle_session_timeout": "0", "idle_in_transaction_session_timeout": "60000"},
        )
        self._was_committed = was_committed
        self._connection: AsyncConnection | None = None
        self._incarnation: ServerIncarnation | None = None
        self._planned: set[str] = set()
        self._is_idle = False
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether it can run a transaction now. If it is not connected, it begins to connect."""
        if self._is_idle and self._connection is not None and self._connection.is_closed:
            self._disconnect()
        if self._connection is None and not self._is_closed:
            self._connection = AsyncConnection(self._reactor, self._address)
            Deferred.fromCoroutine(self._open(self._connection))
        return self._is_idle

    async def run(
        self, name: str, opening: Opening, finish: Callable[[Transaction, Record | None], T]
    ) -> ShortResult[T] | None:
        """Run a transaction; see :meth:`.ShortTransactions.run`."""
        connection = self._connection
        assert connection is not None, "is_idle comes first"
        self._is_idle = False
        try:
            rows = await self._send(connection, (_BEGIN, *opening.script.parts), opening.params)
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            self._failed(name, error, is_lost=connection.is_lost(error))
            return None
        txn = DeferredOnly()
        try:
            result = finish(txn, rows[0] if rows else None)
            assert rows, "without a row, it raises"
            ticket = CommitTicket(rows[0][-2], connection.backend_pid, self._incarnation)
        except BaseException:
            await self._roll_back(connection)
            raise
        try:
            await self._send(connection, (*txn.parts, "COMMIT"), txn.params)
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            if not connection.is_lost(error):
                self._failed(name, error, is_lost=False)
                return None
            self._disconnect()
            return ShortResult(result) if await self._was_committed(name, ticket) else None
        self._is_idle = connection is self._connection
        return ShortResult(result)

    def close(self) -> None:
        """Disconnect; a transaction that runs is lost."""
        self._is_closed = True
        self._disconnect()

    async def _open(self, connection: AsyncConnection) -> None:
        try:
            await connection.open()
            try:
                (row,) = await connection.run(INCARNATION, None)
                self._incarnation = ServerIncarnation(*row)
            except psycopg2.errors.InsufficientPrivilege:
                self._incarnation = None
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            if connection is self._connection:
                self._disconnect()
                self._log.info("no short transactions: {error}", error=self._address.away(error))
            return
        self._is_idle = connection is self._connection

    async def _send(
        self, connection: AsyncConnection, parts: Sequence[str], params: Sequence[object]
    ) -> list[Record]:
        planned = planned_statements(parts, self._planned)
        rows = await connection.run(";\n".join(planned.statements), params)
        self._planned |= planned.new
        return rows

    async def _roll_back(self, connection: AsyncConnection) -> None:
        try:
            await self._send(connection, ("ROLLBACK",), ())
            self._is_idle = connection is self._connection
        except psycopg2.Error:
            self._disconnect()

    def _failed(self, name: str, error: Exception, *, is_lost: bool) -> None:
        """Disconnect after an error before the commit.

        :raises SynreplError: unless the transaction can be run again on another connection
        """
        self._disconnect()
        state = getattr(error, "pgcode", None)
        if not is_lost and state not in CONFLICTS and state not in STALE_STATES:
            raise translate(name, error) from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._is_idle = False
        self._planned = set()
        if connection is not None:
            connection.close()
