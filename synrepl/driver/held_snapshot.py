"""A snapshot of the database that is held open, so that other connections can read at it."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from synrepl.driver.attempt import Attempt
from synrepl.driver.connection import DatabaseAddress, PostgresConnection, close
from synrepl.driver.transaction import PostgresTransaction
from synrepl.storage.database import Isolation, Transaction

#: The transaction is idle as long as others read.
_SETTINGS = {"idle_in_transaction_session_timeout": "0", "statement_timeout": "0"}

#: PostgreSQL 17 and newer. Older ones refuse a connection that sets it.
_UNLIMITED = """
    SELECT set_config('transaction_timeout', '0', true)
    WHERE current_setting('server_version_num')::int >= 170000
"""

#: A worker of Spark may stay idle for long after its last task.
_JOINED_SETTINGS = {"idle_in_transaction_session_timeout": "60s", "statement_timeout": "0"}


class HeldSnapshot(NamedTuple):
    """A snapshot that is held.

    :ivar txn: the read-only transaction that holds it, at the snapshot itself
    :ivar name: the argument of ``SET TRANSACTION SNAPSHOT``
    :ivar where: the database, for messages
    """

    txn: Transaction
    name: str
    where: str


@contextmanager
def held_snapshot(
    dsn: str, instance: str, before: Callable[[Transaction], object] | None = None
) -> Iterator[HeldSnapshot]:
    """Hold a snapshot. It keeps the server from removing row versions that were deleted since.

    :param instance: name of the client; the server shows it as ``synrepl <instance>``
    :param before: what it reads is read from the same server before the snapshot is taken
    :raises DatabaseAway: the database cannot be reached
    :raises DatabaseRefused: the server refuses this user or database
    """
    address = DatabaseAddress(dsn, instance, settings=_SETTINGS)
    connection = address.connect()
    try:
        if before is not None:
            Attempt(address, instance, before, True, Isolation.READ_COMMITTED).run(connection)
        isolation = Isolation.REPEATABLE_READ
        txn = PostgresTransaction(connection, address, instance, True, isolation)
        txn.execute(_UNLIMITED)
        name = str(txn.execute("SELECT pg_export_snapshot()").fetchone()[0])
        yield HeldSnapshot(txn, name, address.where)
    finally:
        close(connection)


class JoinedSnapshot:
    """A transaction that reads at a snapshot that another connection holds.

    Its connection is closed with the object, or by the server once it has been idle for a minute; then the next
    statement opens another one.

    :param snapshot: :attr:`HeldSnapshot.name`
    """

    def __init__(self, dsn: str, instance: str, snapshot: str) -> None:
        self._address = DatabaseAddress(dsn, instance, settings=_JOINED_SETTINGS)
        self._instance = instance
        self._snapshot = snapshot
        self._connection: PostgresConnection | None = None
        self._open: PostgresTransaction | None = None

    @property
    def txn(self) -> Transaction:
        """The transaction.

        :raises DatabaseAway: :raises DatabaseRefused:
        :raises QueryFailed: the snapshot is not held any more
        """
        connection = self._connection
        if connection is None or self._open is None or _is_ended(connection):
            connection = self._connection = self._address.connect()
            isolation = Isolation.REPEATABLE_READ
            txn = PostgresTransaction(connection, self._address, self._instance, True, isolation)
            txn.execute("SET TRANSACTION SNAPSHOT %s", (self._snapshot,))
            self._open = txn
        return self._open


def _is_ended(connection: PostgresConnection) -> bool:
    """Whether the server has ended a connection that was idle; sends nothing."""
    if connection.closed:
        return True
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)
