"""Waits for the facts of one writer that another one's build on, where a process has those of the other one already."""

from __future__ import annotations

from synrepl.core.errors import Unavailable
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.streams.synapse.events import EVENTS

#: How long an update of a client's rooms waits for them, in seconds. Then it leaves out what builds on them.
GAP_WAIT_S = 5.0


class GapWait:
    """Implements :class:`.FillsGaps` for the stream of events."""

    def __init__(self, applied: AppliedVectors, covered: TokenWait) -> None:
        self._applied = applied
        self._covered = covered

    async def filled(self, upto: PositionVector) -> PositionVector | None:
        """Wait until all facts are applied up to the highest one that a vector covers."""
        try:
            highest = PositionVector(linear=upto.highest)
            await self._covered.until_reached({EVENTS.name: highest}, GAP_WAIT_S)
        except Unavailable:
            return None
        return self._applied.current().events
