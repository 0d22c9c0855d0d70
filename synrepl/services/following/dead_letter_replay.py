"""Counts a follower's dead letters, and replays them on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.following.consumer import Consumer
from synrepl.services.following.handler_calls import HandlerCalls
from synrepl.services.following.position_record import PositionRecord
from synrepl.storage.followers.dead_letters import DeadLetter

#: Seconds between polls.
POLL_S = 1.0

#: Dead letters listed in a status, and replayed per poll.
MAX_LISTED = 20
MAX_PER_POLL = 100


class DeadLetterReplay:
    """Polls a follower's dead letters, and replays those that are marked.

    :ivar counts: dead letters by handler, as of the last poll
    :ivar newest: the newest dead letters, as of the last poll
    """

    def __init__(
        self,
        scheduler: Scheduler,
        consumers: Sequence[Consumer],
        record: PositionRecord,
        calls: HandlerCalls,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._record = record
        self._calls = calls
        self._log = log
        self.counts: Mapping[str, int] = {}
        self.newest: Sequence[DeadLetter] = ()

    async def run(self) -> None:
        """Poll for as long as the process runs."""
        while self._record.is_persistent:
            try:
                await self.poll()
            except SynreplError as error:
                self._log.warn("cannot read dead letters: {error}", error=error)
            await self._scheduler.sleep(POLL_S)

    async def poll(self) -> None:
        """Poll once.

        :raises SynreplError: the record cannot be read or written
        """
        self.counts, self.newest, requested = await self._record.letters(MAX_LISTED, MAX_PER_POLL)
        for letter in requested:
            await self.replay(letter)
        if requested:
            self.counts, self.newest, _ = await self._record.letters(MAX_LISTED, MAX_PER_POLL)

    async def replay(self, letter: DeadLetter) -> bool:
        """Replay a dead letter; False when its handler is not configured here, or fails again.

        :raises SynreplError: the record cannot be written
        """
        consumer = self._consumers.get(letter.fact.handler)
        return consumer is not None and await self._calls.replay(consumer, letter)

    def to_json(self) -> dict[str, Any]:
        """``{"count", "newest"}``."""
        return {
            "count": sum(self.counts.values()),
            "newest": [letter.to_json() for letter in self.newest],
        }
