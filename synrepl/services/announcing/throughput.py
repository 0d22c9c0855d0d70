"""Counts announced facts and rows, by stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact, Stream


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
