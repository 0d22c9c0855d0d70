"""Requests of each server in order, one at a time, as many as may wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.semaphore import Semaphore

#: Transactions of one server that are taken in or wait. A server sends one after the other.
MAX_OF_ORIGIN = 8


class TooManyTransactions(Unavailable):
    """{count} transactions of {origin} are being taken in already; send one after the other"""


class OriginQueues:
    """Lets one transaction of a server after another be taken in."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._turns: dict[str, Semaphore] = {}
        self._counts: dict[str, int] = {}

    @property
    def count(self) -> int:
        """Number of transactions of all servers."""
        return sum(self._counts.values())

    @contextmanager
    def entered(self, origin: str) -> Iterator[Semaphore]:
        """Count a transaction as long as the block lasts.

        :returns: what admits one at a time
        :raises TooManyTransactions:
        """
        count = self._counts.get(origin, 0)
        if count >= MAX_OF_ORIGIN:
            raise TooManyTransactions(origin=origin, count=count)
        self._counts[origin] = count + 1
        turn = self._turns.setdefault(origin, Semaphore(self._scheduler, 1))
        try:
            yield turn
        finally:
            self._counts[origin] -= 1
            if not self._counts[origin]:
                del self._counts[origin], self._turns[origin]
