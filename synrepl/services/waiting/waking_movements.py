"""Movements of a master's streams wake whoever waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.services.following.source import LINEAR
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.streams.definition import Fact, Stream


class WakingMovements:
    """Wakes waiters; a :class:`~.stream_state.Movements` that comes after all that deal with one."""

    def __init__(self, waiters: PositionWaiters) -> None:
        self._waiters = waiters

    def writer_moved(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Wake those who wait for the writer."""
        self._waiters.moved((stream.name, writer), new)

    def linear_moved(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Wake those who wait for the linear position."""
        self._waiters.moved((stream.name, LINEAR), new)
