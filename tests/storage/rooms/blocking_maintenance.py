"""Maintenance in the caller's thread, with failures wherever a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.database import Isolation, Transaction
from tests.storage.rooms.blocking_store import FailingTransaction, InjectedFailure

T = TypeVar("T")


class AwaitedDatabase:
    """A blocking database as a :class:`~synrepl.storage.database.Database`.

    :param fail_at: the statement that fails, counted over all transactions
    :ivar statements: how many there were
    """

    def __init__(self, database: BlockingDatabase, fail_at: int | None = None) -> None:
        self._database = database
        self._fail_at = fail_at
        self.statements = 0

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work in a transaction that may fail."""

        def counted(txn: Transaction) -> T:
            left = None if self._fail_at is None else self._fail_at - self.statements
            if left is not None and left < 1:
                raise InjectedFailure(number=self._fail_at)
            failing = FailingTransaction(txn, left)
            try:
                return work(failing)
            finally:
                self.statements += failing.count

        return self._database.run(name, counted, read_only=read_only, isolation=isolation)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but an :class:`AwaitedDatabase`."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("it waits for something")
