"""SQL statements that read a range of a stream."""

from __future__ import annotations

import msgspec

from synrepl.core.tokens import Range

#: Placeholders of the least and the greatest stream ID. SQL cannot contain NUL, so no literal
#: contains them.
LOW, HIGH = "\0low\0", "\0high\0"


class Scan(msgspec.Struct, frozen=True):
    """A statement without parameters, with placeholders for the range of stream IDs.

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
    """The least and the greatest stream ID of a range of tokens, as SQL."""
    low, high = span.after + 1, span.upto
    return (str(-high), str(-low)) if counts_down else (str(low), str(high))
