"""Facts that were set aside: how many there are, and those that are handed over again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.services.announcing.announce import Log
from synrepl.services.following.consumer import Consumer
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.position_record import PositionRecord
from synrepl.storage.dead_letters import DeadLetter

#: Seconds between two looks at the record.
LOOK_S = 1.0

#: How many are shown in a status, and how many are handed over again between two looks.
SHOWN = 20
AT_ONCE = 100


class DeadLetterReplay:
    """Knows a follower's dead letters, and hands those over again that somebody asks for.

    :ivar counts: how many there were at the last look, by handler
    :ivar newest: the newest of them
    """

    def __init__(
        self,
        scheduler: Scheduler,
        consumers: Sequence[Consumer],
        record: PositionRecord,
        calls: HandlerCalls,
        log: Log,
    ) -> None:
        self._scheduler = scheduler
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._record = record
        self._calls = calls
        self._log = log
        self.counts: Mapping[str, int] = {}
        self.newest: Sequence[DeadLetter] = ()

    async def run(self) -> None:
        """Look from time to time, for as long as the process runs."""
        while self._record.is_kept:
            try:
                await self.look()
            except SynreplError as error:
                self._log.warn("cannot look at dead letters: {error}", error=error)
            await self._scheduler.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at the record, and hand over again what is asked for.

        :raises SynreplError: the record cannot be read or written
        """
        self.counts, self.newest, requested = await self._record.letters(SHOWN, AT_ONCE)
        for letter in requested:
            consumer = self._consumers.get(letter.fact.handler)
            if consumer is not None:
                await self._calls.replay(consumer, letter)
        if requested:
            self.counts, self.newest, _ = await self._record.letters(SHOWN, AT_ONCE)

    def to_json(self) -> dict[str, Any]:
        """``{"count", "newest"}``."""
        return {
            "count": sum(self.counts.values()),
            "newest": [letter.to_json() for letter in self.newest],
        }
