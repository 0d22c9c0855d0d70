"""Listeners to the advances of positions: one that passes them on to several, and one that counts."""

from __future__ import annotations

from collections import Counter
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


class Throughput:
    """Counts facts and rows when their writer's position passes them.

    Implements :class:`.PositionListener`.
    """

    def __init__(self) -> None:
        self.facts: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Count the facts."""
        if facts:
            self.facts[stream.name] += len(facts)
            self.rows[stream.name] += sum([len(fact.rows) for fact in facts])

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Ignored: the facts were counted when their writers advanced."""
