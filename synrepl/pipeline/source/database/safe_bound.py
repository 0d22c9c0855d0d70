"""The safe bound of a stream: how far it may be read."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector


class SafeBound(NamedTuple):
    """How far one stream may be read, as observed once.

    :ivar bound: no fact at or below it can still be committed (R5)
    :ivar last: the last token that a writer may have allocated
    :ivar trimmed: facts at or below it have been trimmed
    :ivar waits_for: descriptions of what holds the bound back
    """

    bound: PositionVector
    last: Token
    trimmed: Token
    waits_for: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if no write is in flight: the bound is the end of the stream."""
        return self.bound.linear >= self.last
