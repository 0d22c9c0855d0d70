"""How far a stream may be read."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector


class SafeBound(NamedTuple):
    """One stream at one look.

    :ivar bound: nothing at or below it can still be committed (R5)
    :ivar last: the last token that anybody may have taken
    :ivar trimmed: facts at or below it are gone
    :ivar waits_for: what holds the bound back, for a person
    """

    bound: PositionVector
    last: Token
    trimmed: Token
    waits_for: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True when nothing is under way: the bound is where the stream ends."""
        return self.bound.linear >= self.last
