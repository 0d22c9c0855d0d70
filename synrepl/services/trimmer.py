"""Trims ephemeral streams: deletes facts that all followers have handled, or that are too old."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.services.sizes import DEFAULT_SIZES
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Stream


@dataclass(slots=True)
class TrimCounts:
    """What trimming has done in one stream since the process started.

    :ivar rows: number of deleted rows
    :ivar held_by: the named follower for which the oldest fact is kept; None if there is none
    """

    rows: int = 0
    held_by: str | None = None


class Trimmer:
    """Trims streams periodically, one after the other.

    :param linear: returns the linear position of a stream as known here, 0 while unknown; facts
        above it are never trimmed
    :param every_s: seconds between two rounds
    :param keep_s: younger facts are kept, for followers that have no name; in seconds
    :param max_s: older facts are deleted, even if followers still need them; in seconds, at least
        ``keep_s``
    :param rows: maximum number of rows deleted in one transaction
    :ivar counts: what was trimmed, by stream name
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: FactStore,
        streams: Sequence[Stream],
        linear: Callable[[Stream], Token],
        log: Logger,
        *,
        every_s: float,
        keep_s: float,
        max_s: float,
        rows: int = DEFAULT_SIZES.trim_rows,
    ) -> None:
        self._scheduler = scheduler
        self._store = store
        self._streams = tuple(streams)
        self._linear = linear
        self._log = log
        self._every_s = every_s
        self._keep_s = keep_s
        self._max_s = max_s
        self._rows = rows
        self.counts = {stream.name: TrimCounts() for stream in streams}

    async def run(self) -> None:
        """Trim for as long as the process runs; a failure is retried in the next round."""
        while True:
            await self._scheduler.sleep(self._every_s)
            for stream in self._streams:
                try:
                    await self._trim(stream)
                except SynreplError as error:
                    self._log.warn("cannot trim {stream}: {error}", stream=stream.name, error=error)

    async def _trim(self, stream: Stream) -> None:
        aged = await self._store.mark(stream, self._keep_s, self._max_s)
        cap = min(aged.past_keep, self._linear(stream))
        counts = self.counts[stream.name]
        while True:
            trim = await self._store.trim(stream, cap, aged.past_max, self._rows)
            counts.rows += trim.rows
            counts.held_by = trim.held_by
            if trim.rows < self._rows:
                return
            await self._scheduler.sleep(0)
