"""A database for services, on one connection, that counts statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.database import DeferredScript, Isolation, Transaction

T = TypeVar("T")


class CountingDatabase:
    """Implements :class:`synrepl.storage.database.Database`, without waiting.

    :ivar statements: number of round trips so far, without COMMIT
    """

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database
        self.statements = 0

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction."""

        def counted(txn: Transaction) -> T:
            return work(WatchedTransaction(txn, self._count))  # type: ignore[arg-type]

        return self._database.run(name, counted, read_only=read_only, isolation=isolation)

    def _count(self, sql: str) -> None:
        # A deferred script is sent with what follows.
        self.statements += not isinstance(sql, DeferredScript)
