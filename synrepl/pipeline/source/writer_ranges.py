"""The tokens of one stream between two position vectors: a range for each writer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from synrepl.core.tokens import Range, Token
from synrepl.positions.vector import PositionVector


@dataclass(frozen=True, slots=True)
class WriterRanges:
    """The tokens above ``start`` and at or below ``end``, writer by writer.

    Each writer has its own range. Where the ranges of all writers agree, rows can be read without
    a condition on the writer. Half-open, like all ranges.

    :ivar start: everything up to here has been read
    :ivar end: everything up to here is to be read
    :ivar span: limits the ranges to these tokens
    """

    start: PositionVector
    end: PositionVector
    span: Range

    @classmethod
    def between(cls, start: PositionVector, end: PositionVector) -> WriterRanges:
        """All tokens between two positions."""
        spans = [cls._of(start, end, writer) for writer in (None, *cls._named(start, end))]
        wanted = [span for span in spans if not span.empty]
        if not wanted:
            return cls(start, end, Range(start.linear, start.linear))
        span = Range(min(span.after for span in wanted), max(span.upto for span in wanted))
        return cls(start, end, span)

    @property
    def empty(self) -> bool:
        """True if no token can lie inside."""
        return self.span.empty

    @property
    def writers(self) -> dict[str, Range]:
        """The ranges of the writers that either position names, within the span."""
        return {
            writer: self._clipped(self._of(self.start, self.end, writer))
            for writer in self._named(self.start, self.end)
        }

    @property
    def others(self) -> Range:
        """The range of all writers that neither position names, within the span."""
        return self._clipped(self._of(self.start, self.end, None))

    @property
    def is_uniform(self) -> bool:
        """True if every writer's range is the whole span."""
        return all(span == self.span for span in (self.others, *self.writers.values()))

    def within(self, span: Range) -> WriterRanges:
        """The part of them in a range of tokens."""
        return WriterRanges(self.start, self.end, self._clipped(span))

    def parts(self) -> Iterator[WriterRanges]:
        """At most three parts: before, where and after the ranges of all writers overlap."""
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
    """``end`` limited to tokens up to ``token``, but not below ``start``."""
    writers = {
        writer: max(start[writer], min(end[writer], token))
        for writer in start.writers.keys() | end.writers.keys()
    }
    return PositionVector(writers, max(start.linear, min(end.linear, token)))
