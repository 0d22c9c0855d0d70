"""What passed through: facts and rows whose writer's position moved past them, by stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.services.announcing.stream_state import Movements
from synrepl.streams.definition import Fact, Stream


class Throughput:
    """Counts movements on their way; see :class:`~.stream_state.Movements`.

    :param onward: who really wants them
    """

    def __init__(self, onward: Movements) -> None:
        self._onward = onward
        self.facts: Counter[str] = Counter()
        self.rows: Counter[str] = Counter()

    def writer_moved(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Count, and pass on."""
        if facts:
            self.facts[stream.name] += len(facts)
            self.rows[stream.name] += sum([len(fact.rows) for fact in facts])
        self._onward.writer_moved(stream, writer, prev, new, facts)

    def linear_moved(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Pass on: these facts have been counted when their writers moved."""
        self._onward.linear_moved(stream, prev, new, facts)
