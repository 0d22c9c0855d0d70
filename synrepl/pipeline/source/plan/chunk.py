"""What one task reads."""

from __future__ import annotations

import msgspec

from synrepl.core.tokens import Range, Token
from synrepl.pipeline.source.database.scan import Scan


class Chunk(msgspec.Struct, frozen=True):
    """Part of one stream's range, made so that any process can read it, any number of times.

    :ivar after: tokens above it and
    :ivar upto: no further are in it, though perhaps not of every writer
    :ivar scan: of its rows, in order
    :ivar raw: of the same rows as text, see :meth:`.SourceDatabase.raw`
    :ivar reached_sql: gives true where it may be read, see :meth:`.SourceDatabase.reached_sql`
    :ivar trimmed_sql: gives up to where facts are gone; None where nobody trims
    :ivar rows: about how many there are
    """

    stream: str
    after: Token
    upto: Token
    scan: Scan
    raw: Scan
    reached_sql: str
    trimmed_sql: str | None
    rows: int

    @property
    def sql(self) -> str:
        """Gives its rows, in order."""
        return self.scan.between(Range(self.after, self.upto))

    def within(self, after: Token, upto: Token) -> Chunk:
        """The part in a smaller range."""
        return msgspec.structs.replace(self, after=after, upto=upto)

    def as_text(self) -> Chunk:
        """The same facts, as text."""
        return msgspec.structs.replace(self, scan=self.raw)
