"""Facts of ephemeral streams go when everybody has dealt with them, or when their time is over."""

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
    """What has become of one stream, since the process started.

    :ivar rows: how many were deleted
    :ivar held_by: the named follower that keeps the oldest fact; None for nobody
    """

    rows: int = 0
    held_by: str | None = None


class Trimmer:
    """Trims streams, one after the other, now and then.

    :param linear: the linear position of a stream as this process knows it, 0
        while it does not; nothing above it is touched
    :param every_s: seconds between two rounds
    :param keep_s: what is younger stays, for followers that have no name
    :param max_s: what is older goes, whoever still wants it; not less than ``keep_s``
    :ivar streams: what has become of each, by name
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
        self._trimmed = tuple(streams)
        self._linear = linear
        self._log = log
        self._every_s = every_s
        self._keep_s = keep_s
        self._max_s = max_s
        self._rows = rows
        self.streams = {stream.name: TrimCounts() for stream in streams}

    async def run(self) -> None:
        """Go round for as long as the process runs; what fails is tried again the next time."""
        while True:
            await self._scheduler.sleep(self._every_s)
            for stream in self._trimmed:
                try:
                    await self._trim(stream)
                except SynreplError as error:
                    self._log.warn("cannot trim {stream}: {error}", stream=stream.name, error=error)

    async def _trim(self, stream: Stream) -> None:
        aged = await self._store.mark(stream, self._keep_s, self._max_s)
        cap = min(aged.past_keep, self._linear(stream))
        told = self.streams[stream.name]
        while True:
            trim = await self._store.trim(stream, cap, aged.past_max, self._rows)
            told.rows += trim.rows
            told.held_by = trim.held_by
            if trim.rows < self._rows:
                return
            await self._scheduler.sleep(0)
