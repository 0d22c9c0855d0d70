"""The linear position: everything of every writer at or below it is settled.

Source: seed "Streams", 'a "linear" current stream ID'.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from synrepl.core.tokens import Token

#: Maximum number of settled tokens above a hole that are remembered individually.
MAX_WAITING = 100_000


class LinearTracker:
    """Tracks the largest token at or below which every token is known to be settled.

    Sequences skip tokens (rollbacks outside this process, crashes), so a hole
    may never fill by itself. When :attr:`has_hole` is true, observe the database (see
    :class:`~synrepl.positions.settlement.SettlementTracker`) and call :meth:`settled_upto`.
    Up to ``max_waiting`` tokens above a hole are remembered; those beyond the
    limit are settled by the next observation.

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
        """Whether a settled token lies above one that is not known to be settled."""
        return self._highest > self._position

    def settled(self, token: Token) -> None:
        """Note one settled token of any writer. Repeating it does no harm."""
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
        """Note several settled tokens; consecutive ones at the position take a fast path."""
        for token in tokens:
            if token == self._position + 1 and not self._heap:
                self._position = token
            else:
                self.settled(token)

    def settled_upto(self, bound: Token) -> None:
        """Note that every token at or below ``bound`` was observed to be settled."""
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
