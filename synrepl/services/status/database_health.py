"""Checks every few seconds that a process's database answers."""

from __future__ import annotations

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.storage.database import Database, Transaction
from synrepl.storage.incarnations import Incarnations

#: Seconds between two probes.
EVERY_S = 5.0


class DatabaseHealth:
    """Probes a database, so that even an idle process notices an outage.

    :param what: which database it is, for logs and ``/ready``
    :param incarnations: the server's incarnations that the process knows; None if the database
        has no bookkeeping of synrepl, so that its server need not be confirmed
    :ivar trouble: why the last probe failed; None if it succeeded
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        what: str,
        log: Logger,
        incarnations: Incarnations | None = None,
    ) -> None:
        self._incarnations = incarnations
        self._scheduler = scheduler
        self._database = database
        self._what = what
        self._log = log
        self.trouble: str | None = None

    async def run(self) -> None:
        """Probe the database for as long as the process runs."""
        while True:
            await self._scheduler.sleep(EVERY_S)
            try:
                await self.probe()
            except SynreplError as error:
                self._set(f"{self._what} cannot be used: {error}")
            else:
                self._set(None)

    async def probe(self) -> None:
        """Probe the database once.

        :raises DatabaseAway: and whatever else :meth:`.Database.run` raises
        """
        await self._database.run("health", self._probe, read_only=True)

    def _probe(self, txn: Transaction) -> None:
        if self._incarnations is not None:
            self._incarnations.check(txn)
        else:
            txn.execute("SELECT 1").fetchone()

    def check(self) -> str | None:
        """A check for :class:`.readiness.Readiness`."""
        return self.trouble

    def _set(self, trouble: str | None) -> None:
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
    """The health of the databases that a worker uses.

    :param own: the database with synrepl's bookkeeping
    :param incarnations: the incarnations of its server that the process knows
    :param foreign: the database of a real Synapse
    """
    found = []
    if own is not None:
        found.append(DatabaseHealth(scheduler, own, "the database", log, incarnations))
    if foreign is not None:
        found.append(DatabaseHealth(scheduler, foreign, "the real server's database", log))
    return found
