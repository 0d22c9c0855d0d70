"""Up to where a sequence's tokens are settled, found out by looking from outside.

Whoever takes a token first takes a reservation lock and keeps it until the
token is settled. So if the sequence had given out ``last``, and *after that*
certain holders existed, then nobody else can hold a token at or below ``last``;
once those holders are gone, all up to ``last`` is settled.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from synrepl.core.tokens import Token

#: How many looks are remembered that still wait for their holders to go.
MAX_PENDING = 16


@dataclass(slots=True)
class _Look:
    """What one observation found: the last token given out, and who may still hold one."""

    last: Token
    holders: set[Hashable]


class SettlementTracker:
    """The safe bound of one writer, or of a whole stream, under repeated observation.

    :param bound: known to be safe at the start
    """

    def __init__(self, bound: Token = 0) -> None:
        self._bound = bound
        self._pending: list[_Look] = []  # oldest first; ``last`` rises strictly

    @property
    def bound(self) -> Token:
        """Everything at or below is settled. Never goes back."""
        return self._bound

    @property
    def holders(self) -> Collection[Hashable]:
        """The reservations, as of the last look, that keep the bound where it is."""
        return frozenset(self._pending[0].holders) if self._pending else frozenset()

    def observe(self, last: Token, holders: Collection[Hashable]) -> Token:
        """Take in one look from outside.

        :param last: the last token the sequence had given out
        :param holders: the identities of the reservations that existed *after*
            ``last`` was read; each lasts as long as its reservation and is never
            used again
        :returns: the bound
        """
        now = set(holders)
        self._forget_above(last)
        if not now:
            self._bound = max(self._bound, last)
            self._pending.clear()
            return self._bound
        self._drop_gone(now)
        # An older look at the same token waits for fewer holders, so it is the better one.
        if last > self._bound and (not self._pending or last > self._pending[-1].last):
            self._pending.append(_Look(last, now))
            if len(self._pending) > MAX_PENDING:
                # The oldest will be done first and the newest reaches furthest.
                del self._pending[MAX_PENDING // 2]
        return self._bound

    def _forget_above(self, last: Token) -> None:
        # A sequence that went back may give those tokens out again.
        while self._pending and self._pending[-1].last > last:
            self._pending.pop()

    def _drop_gone(self, now: set[Hashable]) -> None:
        # Later looks wait for all the holders that earlier ones still wait for,
        # so those that are done come first.
        for look in self._pending:
            look.holders &= now
        done = 0
        while done < len(self._pending) and not self._pending[done].holders:
            self._bound = max(self._bound, self._pending[done].last)
            done += 1
        del self._pending[:done]
