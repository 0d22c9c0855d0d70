"""Finds out in a worker up to which token it has applied the facts of all writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.sources import LINEAR
from synrepl.storage.database import Database
from synrepl.storage.store import RecordedPositions
from synrepl.storage.writers import recorded_positions

#: Seconds between two looks, while positions move.
LOOK_EVERY_S = 1.0


class LinearPositions:
    """Moves the linear positions of a worker.

    A master tells its followers the position of each writer, and not the linear one. A worker may not take the
    lowest of those positions for it: there may be a writer of which it has not heard yet. But the database has the
    linear position that the master recorded last, and how far each writer had come by then. Once this worker is there
    with all of them, the linear position is reached.

    With a linear position tokens are short, and statements need not look up who wrote an event.

    :param streams: their names
    :param unknown_upto: is told up to which position it is not known what has changed
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        streams: Sequence[str],
        applied: AppliedVectors,
        unknown_upto: Callable[[str, str, Token], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._streams = tuple(streams)
        self._unknown_upto = unknown_upto
        self._applied = applied
        self._log = log

    async def start(self) -> None:
        """Begin at the recorded positions, before anything is cached or followed: all of that is in the database.

        :raises SynreplError: the database cannot be read
        """
        for stream, (linear, _) in (await self._recorded(self._streams)).items():
            self._unknown_upto(stream, LINEAR, linear)
            self._applied.moved(stream, LINEAR, linear)

    async def run(self) -> None:
        """Look now and then, for as long as the process runs; a failure is retried the next time."""
        while True:
            try:
                await self.look()
            except SynreplError as error:
                self._log.warn("cannot read recorded positions: {error}", error=error)
            await self._scheduler.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Move linear positions as far as this worker has come; without a query if no writer's position has moved.

        :raises SynreplError: the database cannot be read
        """
        moved = [each for each in self._streams if self._may_have_moved(each)]
        if not moved:
            return
        for stream, (linear, writers) in (await self._recorded(moved)).items():
            if all(
                self._applied.has_reached(stream, writer, min(position, linear))
                for writer, position in writers.items()
            ):
                self._applied.moved(stream, LINEAR, linear)

    async def _recorded(self, streams: Sequence[str]) -> Mapping[str, RecordedPositions]:
        return await self._database.run(
            "recorded positions", lambda txn: recorded_positions(txn, streams), read_only=True
        )

    def _may_have_moved(self, stream: str) -> bool:
        linear = self._applied.linear(stream)
        return any(position > linear for position in self._applied.writers(stream).values())
