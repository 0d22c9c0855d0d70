"""Writes the ``INVALIDATE_CACHE`` commands of legacy workers to the ``caches`` stream.

Source: seed "TCP replication, first generation", the list of commands. A real master does the
same: the row comes back to all workers, including the one that sent the command.
"""

from __future__ import annotations

from itertools import islice

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.services.coherence.invalidations import Invalidations
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.effects import Key
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.wire.commands import InvalidateCache

#: Maximum number of rows that wait for the database, and of rows in one fact.
MAX_WAITING = 10_000
ROWS_OF_A_FACT = 500

_BACK_OFF = BackOff(0.1, 5.0)


class TooManyInvalidations(Unavailable):
    """{waiting} invalidations already wait for the database; try again later"""


class InvalidationRelay:
    """Writes invalidations as this process's writer, retrying until it succeeds."""

    def __init__(
        self, scheduler: Scheduler, writer: StreamWriter, invalidations: Invalidations, log: Logger
    ) -> None:
        self._scheduler = scheduler
        self._writer = writer
        self._invalidations = invalidations
        self._log = log
        self._waiting: dict[tuple[str, Key], CachesRow] = {}
        self._busy = False

    @property
    def waiting(self) -> int:
        """Number of rows waiting to be written."""
        return len(self._waiting)

    def take(self, command: InvalidateCache) -> None:
        """Queue the invalidation that a worker sent.

        :raises BadInvalidation: :raises BadKeys: no reader could apply it
        :raises TooManyInvalidations: the database has been unavailable for long
        """
        row = self._invalidations.row(command.cache, command.keys)
        asked = (command.cache, tuple(command.keys))
        if len(self._waiting) >= MAX_WAITING and asked not in self._waiting:
            raise TooManyInvalidations(waiting=len(self._waiting))
        self._waiting[asked] = row
        if not self._busy:
            self._busy = True
            self._scheduler.spawn("relay invalidations", self._write())

    async def stop(self) -> None:
        """Make one last attempt to write the waiting rows."""
        try:
            while self._waiting:
                await self._write_some()
        except SynreplError as error:
            self._log.warn(
                "{waiting} invalidations were not written: {error}",
                waiting=self.waiting,
                error=error,
            )

    async def _write_some(self) -> None:
        rows = dict(islice(self._waiting.items(), ROWS_OF_A_FACT))
        # Removed first: the same invalidation, if it arrives meanwhile, is a new change.
        for asked in rows:
            del self._waiting[asked]
        try:
            await self._writer.append(CACHES, [list(rows.values())])
        except BaseException:
            self._waiting = rows | self._waiting
            raise

    async def _write(self) -> None:
        retry = Retry(_BACK_OFF, self._scheduler.random)
        try:
            while self._waiting:
                try:
                    await self._write_some()
                    retry.succeeded()
                except SynreplError as error:
                    self._log.warn("invalidations wait: {error}", error=error)
                    await self._scheduler.sleep(retry.failed())
        finally:
            self._busy = False
