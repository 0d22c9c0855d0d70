"""Verifies events from other servers: their form, signatures and hashes (checks 1 to 3)."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.rooms import ReceiptResult, RoomVersion


class EventVerifier:
    """Verifies events with keys that are fetched as needed."""

    async def verify(
        self, raws: Sequence[bytes], version: RoomVersion, *, origin: str | None = None
    ) -> Sequence[ReceiptResult]:
        """Checks 1 to 3 of events, in order.

        :param origin: the server that sent them, for logs
        """
        raise NotImplementedError
