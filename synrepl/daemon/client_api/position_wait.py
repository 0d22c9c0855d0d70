"""Waits until this process has what a client wrote through another one."""

from __future__ import annotations

from synrepl.adapters.client_api.write_positions import WritePositions
from synrepl.core.errors import InputError
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.token_wait import TokenWait

#: Seconds for which a request waits for what its client wrote.
POSITION_WAIT_S = 5.0


class NotWrittenByClients(InputError):
    """clients write nothing to stream {stream!r}, so there is no position of it to wait for"""


class PositionWait:
    """Implements :class:`.WaitsForPositions`."""

    def __init__(self, applied: AppliedVectors, covered: TokenWait) -> None:
        self._applied = applied
        self._covered = covered

    async def wait_until_covered(self, positions: WritePositions) -> None:
        """Wait until all positions are applied here, as :class:`.AppliedVectors` has it.

        :raises NotYetApplied: they are not yet
        :raises NotWrittenByClients: there is no such stream
        :raises Unavailable: too many clients wait already, or the process stops
        """
        for stream in positions:
            if not self._applied.knows(stream):
                raise NotWrittenByClients(stream=stream[:255])
        await self._covered.until_reached(positions, POSITION_WAIT_S)
