"""Waits until this process has what a client wrote through another one."""

from __future__ import annotations

from synrepl.adapters.client_api.write_positions import WritePositions
from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.token_wait import NotYetApplied

#: Seconds for which a request waits for what its client wrote.
POSITION_WAIT_S = 5.0


class NotWrittenByClients(InputError):
    """clients write nothing to stream {stream!r}, so there is no position of it to wait for"""


class PositionWait:
    """Implements :class:`.WaitsForPositions`."""

    def __init__(self, clock: Clock, applied: AppliedVectors) -> None:
        self._clock = clock
        self._applied = applied

    async def wait_until_covered(self, positions: WritePositions) -> None:
        """Wait until all positions are applied here, as :class:`.AppliedVectors` has it.

        :raises NotYetApplied: they are not yet
        :raises NotWrittenByClients: there is no such stream
        :raises Unavailable: too many clients wait already, or the process stops
        """
        until = self._clock.seconds() + POSITION_WAIT_S
        for stream, vector in positions.items():
            if not self._applied.knows(stream):
                raise NotWrittenByClients(stream=stream[:255])
            for writer, token in vector.writers.items():
                await self._until_reached(stream, writer, token, until)

    async def _until_reached(self, stream: str, writer: str, token: int, until: float) -> None:
        applied = self._applied
        while not applied.has_reached(stream, writer, token):
            left = until - self._clock.seconds()
            if left <= 0 or not await applied.wait(stream, writer, token, left):
                raise NotYetApplied(stream=stream, writer=writer, wanted=token)
