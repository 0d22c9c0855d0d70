"""Waits until this process has what a client wrote through another one."""

from __future__ import annotations

from synrepl.adapters.client_api.write_positions import WritePositions
from synrepl.core.clock import Clock
from synrepl.services.waiting.wait_for import WaitFor

#: Seconds for which a request waits for what its client wrote.
POSITION_WAIT_S = 5.0


class PositionWait:
    """Implements :class:`.WaitsForPositions`."""

    def __init__(self, clock: Clock, waiting: WaitFor) -> None:
        self._clock = clock
        self._waiting = waiting

    async def wait_until_covered(self, positions: WritePositions) -> None:
        """Wait until all positions are applied here.

        :raises WaitTimedOut: they are not yet
        :raises InputError: there is no such stream or writer here
        """
        until = self._clock.seconds() + POSITION_WAIT_S
        for stream, vector in positions.items():
            for writer, token in vector.writers.items():
                left = max(0.0, until - self._clock.seconds())
                await self._waiting.wait_for(stream, writer, token, left)
