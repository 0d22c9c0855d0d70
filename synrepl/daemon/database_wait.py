"""The steps of a start that need the database, each repeated while the database is away."""

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

_BACK_OFF = BackOff(0.2, 5.0)

#: The first attempts that fail are logged, and then one in so many.
_LOGGED_FIRST, _LOGGED_THEN = 3, 10


class EmbeddedAway(Unavailable):
    """the embedded database does not run: {path} is missing; start the master of this data_dir"""


#: What passes by itself: the database comes back, or the master makes what is missing in it.
_PASSES = (DatabaseAway, DatabaseBusy, CommitUnknown, EmbeddedAway, SchemaBehind, StreamNotMade)


class DatabaseWait:
    """Waits for a database that is away, at whatever step of the start it is found away.

    :param waiting: called with the reason for each wait, and with "starting" after it
    """

    def __init__(self, scheduler: Scheduler, waiting: Callable[[str], object], log: Logger) -> None:
        self._scheduler = scheduler
        self._waiting = waiting
        self._log = log

    async def until_done(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step, again and again until the database is there for all of it.

        :param step: may have taken effect, in part or as a whole, when it is run again
        :raises DatabaseRefused: waiting does not help
        :raises SynreplError: and what else the step raises
        """
        retry = Retry(_BACK_OFF, self._scheduler.random)
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
