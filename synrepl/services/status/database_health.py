"""Whether a process's database answers, asked every few seconds."""

from __future__ import annotations

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.storage.database import Database, Transaction
from synrepl.storage.incarnations import Incarnations

#: Seconds between two questions.
EVERY_S = 5.0


class DatabaseHealth:
    """Asks a database for nothing in particular, so that an idle process knows that it is away.

    :param what: whose database it is, for logs and ``/ready``
    :param ours: the incarnations of its server that the process has met; None where the database
        has no bookkeeping of synrepl, so that its server need not be confirmed
    :ivar trouble: why the last question had no answer; None when it had one
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        what: str,
        log: Logger,
        ours: Incarnations | None = None,
    ) -> None:
        self._ours = ours
        self._scheduler = scheduler
        self._database = database
        self._what = what
        self._log = log
        self.trouble: str | None = None

    async def run(self) -> None:
        """Ask again and again."""
        while True:
            await self._scheduler.sleep(EVERY_S)
            try:
                await self.ask()
            except SynreplError as error:
                self._tell(f"{self._what} cannot be used: {error}")
            else:
                self._tell(None)

    async def ask(self) -> None:
        """Ask once.

        :raises DatabaseAway: and what else :meth:`.Database.run` raises
        """
        await self._database.run("health", self._ask, read_only=True)

    def _ask(self, txn: Transaction) -> None:
        if self._ours is not None:
            self._ours.check(txn)
        else:
            txn.execute("SELECT 1").fetchone()

    def check(self) -> str | None:
        """For :class:`.readiness.Readiness`."""
        return self.trouble

    def _tell(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            self._log.warn("{trouble}", trouble=trouble)
        elif trouble is None and self.trouble is not None:
            self._log.info("{what} answers again", what=self._what)
        self.trouble = trouble


def database_healths(
    scheduler: Scheduler,
    log: Logger,
    own: Database | None,
    incarnations: Incarnations,
    foreign: Database | None,
) -> list[DatabaseHealth]:
    """Health of the databases that a worker reads or writes.

    :param own: with synrepl's bookkeeping
    :param incarnations: those of its server that the process has met
    :param foreign: that of a real Synapse
    """
    found = []
    if own is not None:
        found.append(DatabaseHealth(scheduler, own, "the database", log, incarnations))
    if foreign is not None:
        found.append(DatabaseHealth(scheduler, foreign, "the real server's database", log))
    return found
