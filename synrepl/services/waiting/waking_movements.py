"""Movements of a master's streams wake whoever waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import Movements
from synrepl.services.following.source import LINEAR
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.streams.definition import Fact, Stream


class WakingMovements:
    """Wakes waiters once a movement has been dealt with; see :class:`~.stream_state.Movements`.

    :param onward: who really wants the movements
    """

    def __init__(self, onward: Movements, waiters: PositionWaiters) -> None:
        self._onward = onward
        self._waiters = waiters

    def writer_moved(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Pass on, then wake."""
        self._onward.writer_moved(stream, writer, prev, new, facts)
        self._waiters.moved((stream.name, writer), new)

    def linear_moved(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Pass on, then wake."""
        self._onward.linear_moved(stream, prev, new, facts)
        self._waiters.moved((stream.name, LINEAR), new)
