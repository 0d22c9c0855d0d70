"""The linear position: everything of every writer at or below it is settled.

Source: seed "Streams", 'a "linear" current stream ID'.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from synrepl.core.tokens import Token

#: How many settled tokens above a hole are remembered one by one.
MAX_WAITING = 100_000


class LinearTracker:
    """The largest token with every token at or below it known to be settled.

    Sequences skip tokens (rollbacks outside this process, crashes), so a hole
    may never fill by itself: when :attr:`has_hole` is true, look from outside (see
    :class:`~synrepl.positions.settlement.SettlementTracker`) and tell :meth:`settled_upto`.
    What lies above a hole is remembered up to ``max_waiting`` tokens; what is
    forgotten beyond that only waits for the next look.

    :param position: everything at or below it is settled
    """

    def __init__(self, position: Token, max_waiting: int = MAX_WAITING) -> None:
        self._position = position
        self._highest = position
        self._max_waiting = max_waiting
        self._heap: list[Token] = []
        self._waiting: set[Token] = set()

    @property
    def position(self) -> Token:
        """The linear position."""
        return self._position

    @property
    def has_hole(self) -> bool:
        """True when something settled lies above a token that nothing is known of."""
        return self._highest > self._position

    def settled(self, token: Token) -> None:
        """Note one settled token, whoever's; saying it twice does no harm."""
        self._highest = max(self._highest, token)
        if token == self._position + 1:
            self._position = token
            self._absorb()
        elif (
            token > self._position
            and token not in self._waiting
            and len(self._waiting) < self._max_waiting
        ):
            self._waiting.add(token)
            heappush(self._heap, token)

    def all_settled(self, tokens: Iterable[Token]) -> None:
        """Note several settled tokens; those that follow one another at the position are quick."""
        for token in tokens:
            if token == self._position + 1 and not self._heap:
                self._position = token
            else:
                self.settled(token)

    def settled_upto(self, bound: Token) -> None:
        """Note that every token at or below ``bound`` was found to be settled."""
        if bound > self._position:
            self._position = bound
            self._highest = max(self._highest, bound)
            self._absorb()

    def _absorb(self) -> None:
        heap = self._heap
        while heap and heap[0] <= self._position + 1:
            token = heappop(heap)
            self._waiting.discard(token)
            self._position = max(self._position, token)
