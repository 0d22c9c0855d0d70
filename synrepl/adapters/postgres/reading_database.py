"""A database that is read by a program without a reactor, under asyncio or Trio."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import Lock, to_thread

from synrepl.adapters.postgres.pool import PoolSlot
from synrepl.core.errors import InputError
from synrepl.driver.attempt import Attempt
from synrepl.driver.connection import DatabaseAddress
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")


class OnlyRead(InputError):
    """{name!r} wants to write, and this database was opened to be read; write with a process of synrepl"""


class ReadingDatabase:
    """Implements :class:`synrepl.storage.database.Database` for reading; connects when first used.

    There is one connection. Transactions run on it one after the other, each in a thread.

    :param dsn: a libpq URI or key=value string; appears in no error
    :param instance: the program's name, which the server shows
    :raises BadDsn: ``dsn`` cannot be read
    """

    def __init__(self, dsn: str, instance: str) -> None:
        self._address = DatabaseAddress(dsn, instance)
        self._slot = PoolSlot(self._address, reconnects=True)
        self._turn = Lock()

    async def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one read-only transaction; once more on a new connection if the old one was lost.

        :raises OnlyRead: it is not to be read-only
        :raises DatabaseAway: there is no connection
        """
        if not read_only:
            raise OnlyRead(name=name)
        attempt = Attempt(self._address, name, work, True, isolation)
        async with self._turn:
            return await to_thread.run_sync(self._run, attempt)

    def _run(self, attempt: Attempt[T]) -> T:
        if self._slot.connection is not None:
            try:
                return self._slot.run(attempt.run).result
            except DatabaseAway:
                pass  # the server was restarted since
        return self._slot.run(attempt.run).result

    def close(self) -> None:
        """Close the connection."""
        self._slot.discard()
