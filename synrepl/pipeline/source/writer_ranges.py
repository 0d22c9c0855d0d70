"""The tokens of one stream that lie between two positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from synrepl.core.tokens import Range, Token
from synrepl.positions.vector import PositionVector


@dataclass(frozen=True, slots=True)
class WriterRanges:
    """What was settled after ``start`` and no later than ``end``.

    Each writer has a window of its own; where those of all writers agree, tokens can be
    read without asking who wrote them. Half-open, like all ranges.

    :ivar start: taken in already
    :ivar end: to be taken in
    :ivar span: only tokens in this range
    """

    start: PositionVector
    end: PositionVector
    span: Range

    @classmethod
    def between(cls, start: PositionVector, end: PositionVector) -> WriterRanges:
        """All that lies between two positions."""
        spans = [cls._of(start, end, writer) for writer in (None, *cls._named(start, end))]
        wanted = [span for span in spans if not span.empty]
        if not wanted:
            return cls(start, end, Range(start.linear, start.linear))
        span = Range(min(span.after for span in wanted), max(span.upto for span in wanted))
        return cls(start, end, span)

    @property
    def empty(self) -> bool:
        """True when no token can lie inside."""
        return self.span.empty

    @property
    def writers(self) -> dict[str, Range]:
        """The ranges of the writers that are named, within the span."""
        return {
            writer: self._clipped(self._of(self.start, self.end, writer))
            for writer in self._named(self.start, self.end)
        }

    @property
    def others(self) -> Range:
        """The window of writers that neither position names, within the span."""
        return self._clipped(self._of(self.start, self.end, None))

    @property
    def is_uniform(self) -> bool:
        """True when every writer's window is the whole span."""
        return all(span == self.span for span in (self.others, *self.writers.values()))

    def within(self, span: Range) -> WriterRanges:
        """The part in a range of tokens."""
        return WriterRanges(self.start, self.end, self._clipped(span))

    def parts(self) -> Iterator[WriterRanges]:
        """Three at most: before, where and after all writers' ranges agree."""
        spans = [self.others, *self.writers.values()]
        inner = Range(max(span.after for span in spans), min(span.upto for span in spans))
        cuts = [self.span.after, self.span.upto]
        if not inner.empty:
            cuts[1:1] = inner
        for after, upto in pairwise(cuts):
            if upto > after:
                yield self.within(Range(after, upto))

    def _clipped(self, span: Range) -> Range:
        after, upto = max(span.after, self.span.after), min(span.upto, self.span.upto)
        return Range(after, max(after, upto))

    @staticmethod
    def _named(start: PositionVector, end: PositionVector) -> list[str]:
        return sorted(start.writers.keys() | end.writers.keys())

    @staticmethod
    def _of(start: PositionVector, end: PositionVector, writer: str | None) -> Range:
        if writer is None:
            return Range(start.linear, max(start.linear, end.linear))
        return Range(start[writer], max(start[writer], end[writer]))


def cap_position(start: PositionVector, end: PositionVector, token: Token) -> PositionVector:
    """The position between two that has nothing above ``token`` but what ``start`` has."""
    writers = {
        writer: max(start[writer], min(end[writer], token))
        for writer in start.writers.keys() | end.writers.keys()
    }
    return PositionVector(writers, max(start.linear, min(end.linear, token)))
