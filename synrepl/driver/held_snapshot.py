"""A snapshot of the database that is held open, so that other connections can read at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from synrepl.driver.connection import DatabaseAddress, close
from synrepl.driver.transaction import PostgresTransaction
from synrepl.storage.database import Isolation, Transaction

#: The transaction is idle as long as others read.
_SETTINGS = {"idle_in_transaction_session_timeout": "0", "statement_timeout": "0"}


class HeldSnapshot(NamedTuple):
    """A snapshot that is held.

    :ivar txn: the read-only transaction that holds it, at the snapshot itself
    :ivar name: the argument of ``SET TRANSACTION SNAPSHOT``
    """

    txn: Transaction
    name: str


@contextmanager
def held_snapshot(dsn: str, instance: str) -> Iterator[HeldSnapshot]:
    """Hold a snapshot. It keeps the server from removing row versions that were deleted since.

    :param instance: name of the client; the server shows it as ``synrepl <instance>``
    :raises DatabaseAway: the database cannot be reached
    :raises DatabaseRefused: the server refuses this user or database
    """
    address = DatabaseAddress(dsn, instance, settings=_SETTINGS)
    connection = address.connect()
    try:
        isolation = Isolation.REPEATABLE_READ
        txn = PostgresTransaction(connection, address, instance, True, isolation)
        name = str(txn.execute("SELECT pg_export_snapshot()").fetchone()[0])
        yield HeldSnapshot(txn, name)
    finally:
        close(connection)
