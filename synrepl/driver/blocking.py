"""A blocking database client: one connection, one transaction at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import random
from typing import Self, TypeVar

from synrepl.core.retry import BackOff, Patience, Retry
from synrepl.driver.attempt import Attempt
from synrepl.driver.connection import DatabaseAddress, DatabaseRefused, PostgresConnection, close
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.store import DatabaseAway

T = TypeVar("T")

#: Seconds to keep retrying while the database is unreachable.
PATIENCE_S = 30.0

_BACK_OFF = BackOff(0.1, 2.0)


class BlockingDatabase:
    """Runs work functions in the caller's thread. It must not be shared between threads.

    :param dsn: a libpq URI or key=value string
    :param instance: name of the client; the server shows it as ``synrepl <instance>``
    :param patience_s: seconds to keep retrying while the database is unreachable
    :raises BadDsn: see :class:`.connection.DatabaseAddress`
    """

    def __init__(self, dsn: str, instance: str, patience_s: float = PATIENCE_S) -> None:
        self.address = DatabaseAddress(dsn, instance)
        self._patience_s = patience_s
        self._connection: PostgresConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next transaction opens another one."""
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def run(
        self,
        name: str,
        work: Callable[[Transaction], T],
        *,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> T:
        """Run ``work`` in one transaction and commit; roll back when it raises.

        It runs again when the connection is lost, **even if it was lost during COMMIT**.
        Work that writes must therefore check first whether it was already done.

        :param name: name of the work, for errors
        :raises DatabaseAway: unreachable for ``patience_s``, counted from the first failure
        :raises DatabaseRefused: at once, because retrying does not help
        """
        attempt = Attempt(self.address, name, work, read_only, isolation)
        retry = Retry(_BACK_OFF, random)
        patience = Patience(time.monotonic, self._patience_s)
        while True:
            try:
                ran = attempt.run(self._connected())
                if ran.in_doubt is None:
                    return ran.result
                away = self.address.away(ran.reason)
            except DatabaseRefused:
                raise
            except DatabaseAway as error:
                away = error
            self.close()
            delay_s = retry.failed()
            if not patience.allows(delay_s):
                raise away
            time.sleep(delay_s)

    def _connected(self) -> PostgresConnection:
        if self._connection is None or self._connection.closed:
            self._connection = self.address.connect()
        return self._connection
