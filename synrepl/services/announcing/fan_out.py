"""Notifies several listeners of the advances of positions."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.streams.definition import Fact, Stream


class FanOut:
    """A :class:`.PositionListener` that passes every advance to others, one after the other.

    The caller chooses the order, and documents it: a listener may rely on those before it.

    :param listeners: in the order in which they are notified
    """

    def __init__(self, listeners: tuple[PositionListener, ...]) -> None:
        self._listeners = listeners

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Pass on; see :meth:`.PositionListener.writer_advanced`."""
        for listener in self._listeners:
            listener.writer_advanced(stream, writer, prev, new, facts)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Pass on; see :meth:`.PositionListener.linear_advanced`."""
        for listener in self._listeners:
            listener.linear_advanced(stream, prev, new, facts)
