"""Statements that read part of a stream, whichever part."""

from __future__ import annotations

import msgspec

from synrepl.core.tokens import Range

#: Where the least and the greatest stream ID belong. No SQL can hold a NUL, so whatever
#: text somebody compares with, this is not in it.
LOW, HIGH = "\0low\0", "\0high\0"


class Scan(msgspec.Struct, frozen=True):
    """A statement without parameters, but for the stream IDs that it is to be about.

    :ivar template: with :data:`LOW` and :data:`HIGH` in it
    :ivar counts_down: the stream's IDs are its tokens negated
    """

    template: str
    counts_down: bool

    def between(self, span: Range) -> str:
        """The statement for a range of tokens."""
        low, high = ids(span, self.counts_down)
        return self.template.replace(LOW, low).replace(HIGH, high)


def ids(span: Range, counts_down: bool) -> tuple[str, str]:
    """The least and the greatest stream ID of the tokens in a range, for a statement."""
    low, high = span.after + 1, span.upto
    return (str(-high), str(-low)) if counts_down else (str(low), str(high))
