"""Repeats steps of a start while the database is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.driver.connection import DatabaseRefused
from synrepl.storage.database import CommitUnknown, DatabaseBusy
from synrepl.storage.migrations import SchemaBehind
from synrepl.storage.store import DatabaseAway, StreamNotMade

T = TypeVar("T")

#: Delays between attempts, in seconds: the first one, and the longest.
_BACK_OFF = BackOff(0.2, 5.0)

#: Number of failed attempts that are logged at first, and interval of those logged later.
_LOGGED_FIRST, _LOGGED_THEN = 3, 10


class EmbeddedAway(Unavailable):
    """the embedded database does not run: {path} is missing; start the master of this data_dir"""


#: Errors that go away by themselves: the database returns, or the master prepares it.
_PASSES = (DatabaseAway, DatabaseBusy, CommitUnknown, EmbeddedAway, SchemaBehind, StreamNotMade)


class DatabaseWait:
    """Waits for a database that is away, at any step of the start.

    :param waiting: called with the reason of each wait, and with "starting" after the last
    :param back_off: delays between attempts
    """

    def __init__(
        self,
        scheduler: Scheduler,
        waiting: Callable[[str], object],
        log: Logger,
        back_off: BackOff = _BACK_OFF,
    ) -> None:
        self._scheduler = scheduler
        self._waiting = waiting
        self._log = log
        self._back_off = back_off

    async def until_done(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step until it succeeds.

        :param step: must be idempotent: it may have taken effect when it is repeated
        :raises DatabaseRefused: the database refuses, and waiting does not help
        :raises SynreplError: any other error of the step
        """
        retry = Retry(self._back_off, self._scheduler.random)
        while True:
            try:
                result = await step()
            except DatabaseRefused:
                raise
            except _PASSES as error:
                self._waiting(str(error))
                if retry.failures < _LOGGED_FIRST or retry.failures % _LOGGED_THEN == 0:
                    self._log.warn("waiting for the database: {error}", error=error)
                await self._scheduler.sleep(retry.failed())
            else:
                if retry.failures:
                    self._waiting("starting")
                return result
