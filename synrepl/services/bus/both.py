"""Movements go two ways: to connections of our own, and to the bus."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import Movements
from synrepl.streams.definition import Fact, Stream


class BothMovements:
    """Tells two of every move; see :class:`~synrepl.services.announcing.stream_state.Movements`."""

    def __init__(self, first: Movements, second: Movements) -> None:
        self._first = first
        self._second = second

    def writer_moved(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Pass on to both."""
        self._first.writer_moved(stream, writer, prev, new, facts)
        self._second.writer_moved(stream, writer, prev, new, facts)

    def linear_moved(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Pass on to both."""
        self._first.linear_moved(stream, prev, new, facts)
        self._second.linear_moved(stream, prev, new, facts)
