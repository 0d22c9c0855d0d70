"""The token up to which a sequence is settled, derived from observations of the database.

A transaction takes a reservation lock before it takes a token, and keeps the lock
until the token is settled. So if the sequence had given out ``last``, and *after that*
certain holders existed, nobody else can hold a token at or below ``last``.
Once those holders are gone, every token up to ``last`` is settled.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from synrepl.core.tokens import Token

#: Maximum number of remembered observations whose holders are still there.
MAX_PENDING = 16


@dataclass(slots=True)
class _Observation:
    """One observation: the last token given out, and the holders that may still hold one."""

    last: Token
    holders: set[Hashable]


class SettlementTracker:
    """Tracks the settled bound of one writer, or of a whole stream, over repeated observations.

    :param bound: initial bound, known to be settled
    """

    def __init__(self, bound: Token = 0) -> None:
        self._bound = bound
        self._pending: list[_Observation] = []  # oldest first; ``last`` rises strictly

    @property
    def bound(self) -> Token:
        """Everything at or below it is settled. It never moves back."""
        return self._bound

    @property
    def pending(self) -> int:
        """Number of observations that wait for holders; at most :data:`MAX_PENDING`."""
        return len(self._pending)

    @property
    def holders(self) -> Collection[Hashable]:
        """The reservations that hold the bound back, as of the last observation."""
        return frozenset(self._pending[0].holders) if self._pending else frozenset()

    def observe(self, last: Token, holders: Collection[Hashable]) -> Token:
        """Add an observation.

        :param last: the last token the sequence had given out
        :param holders: the identities of the reservations that existed *after* ``last``
            was read; each lasts as long as its reservation and is never reused
        :returns: the new bound
        """
        now = set(holders)
        self._forget_above(last)
        if not now:
            self._bound = max(self._bound, last)
            self._pending.clear()
            return self._bound
        self._drop_gone(now)
        # An older observation of the same token waits for fewer holders, so keep that one.
        if last > self._bound and (not self._pending or last > self._pending[-1].last):
            self._pending.append(_Observation(last, now))
            if len(self._pending) > MAX_PENDING:
                # The oldest completes first and the newest reaches furthest.
                del self._pending[MAX_PENDING // 2]
        return self._bound

    def _forget_above(self, last: Token) -> None:
        # A sequence that was set back may give those tokens out again.
        while self._pending and self._pending[-1].last > last:
            self._pending.pop()

    def _drop_gone(self, now: set[Hashable]) -> None:
        # Later observations wait for all holders that earlier ones still wait for,
        # so the completed ones come first.
        for observation in self._pending:
            observation.holders &= now
        done = 0
        while done < len(self._pending) and not self._pending[done].holders:
            self._bound = max(self._bound, self._pending[done].last)
            done += 1
        del self._pending[:done]
