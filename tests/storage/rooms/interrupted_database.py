"""Maintenance that is interrupted once at each of its statements, and before and after each COMMIT."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from simulator.rooms.watched_transaction import WatchedTransaction
from synrepl.driver.blocking import BlockingDatabase
from synrepl.storage.database import Isolation, Transaction
from tests.storage.rooms.blocking_store import InjectedFailure

T = TypeVar("T")


class Interruptions:
    """What was interrupted so far: each statement of each kind of transaction, and its COMMIT.

    :ivar places: those that were; each is interrupted once
    """

    def __init__(self) -> None:
        self.places: set[tuple[str, ...]] = set()

    def is_new(self, *place: str) -> bool:
        """Whether a place has not been interrupted yet; it counts as interrupted then."""
        if place in self.places:
            return False
        self.places.add(place)
        return True

    def reached(self, *place: str) -> None:
        """Fail here the first time.

        :raises InjectedFailure:
        """
        if self.is_new(*place):
            raise InjectedFailure(number=len(self.places))


class InterruptedDatabase:
    """A blocking database as a :class:`~synrepl.storage.database.Database`, with interruptions.

    When the connection is lost at COMMIT, a database runs the work again, whether it was committed or not.
    """

    def __init__(self, database: BlockingDatabase, interruptions: Interruptions) -> None:
        self._database = database
        self._interruptions = interruptions

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run work in a transaction that may fail, or be committed twice."""

        def interrupted(txn: Transaction) -> T:
            result = work(
                WatchedTransaction(txn, lambda sql: self._interruptions.reached(name, sql))
            )
            self._interruptions.reached(name, "before COMMIT")
            return result

        again = True
        while again:
            result = self._database.run(name, interrupted, read_only=read_only, isolation=isolation)
            again = self._interruptions.is_new(name, "answer to COMMIT lost")
        self._interruptions.reached(name, "after COMMIT")
        return result
