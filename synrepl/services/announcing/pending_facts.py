"""Facts that are known but may not be announced yet."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact


class PendingFacts:
    """Facts that wait for a position to pass them, returned in the order of their tokens.

    Usually a position passes facts as soon as they are added. So the sequence added last is kept
    as it is, and goes through the heap only if other facts wait.

    :ivar rows: number of waiting rows, without those added last
    """

    def __init__(self) -> None:
        self.rows = 0
        self._latest: Sequence[Fact] = ()
        self._heap: list[tuple[Token, Fact]] = []

    @property
    def last(self) -> Token:
        """The largest waiting token; 0 for none."""
        self._spread()
        return max(self._heap)[0] if self._heap else 0

    def add(self, facts: Sequence[Fact]) -> None:
        """Add facts, ascending, in a sequence that is not changed afterwards."""
        if facts:
            self._spread()
            self._latest = facts

    def take(self, position: Token) -> Sequence[Fact]:
        """Remove and return the facts at or below ``position``, in order."""
        latest, heap = self._latest, self._heap
        if not heap and (not latest or latest[-1].token <= position):
            self._latest = ()
            return latest
        self._spread()
        taken: list[Fact] = []
        while heap and heap[0][0] <= position:
            taken.append(heappop(heap)[1])
        self.rows -= sum(len(fact.rows) for fact in taken)
        return taken

    def clear(self) -> None:
        """Remove all facts."""
        self._latest = ()
        self._heap.clear()
        self.rows = 0

    def _spread(self) -> None:
        for fact in self._latest:
            heappush(self._heap, (fact.token, fact))
            self.rows += len(fact.rows)
        self._latest = ()
