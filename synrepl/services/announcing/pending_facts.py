"""Facts that are known and may not be announced yet."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from synrepl.core.tokens import Token
from synrepl.streams.definition import Fact


class PendingFacts:
    """Facts that wait for a position to pass them, given back in the order of their tokens.

    Mostly a position passes facts as soon as they have come. So what came last
    stays as it came, and only goes through the heap when something else waits.

    :ivar rows: how many rows wait, without those that came last
    """

    def __init__(self) -> None:
        self.rows = 0
        self._latest: Sequence[Fact] = ()
        self._heap: list[tuple[Token, Fact]] = []

    @property
    def last(self) -> Token:
        """The largest token that waits; 0 for none."""
        self._spread()
        return max(self._heap)[0] if self._heap else 0

    def add(self, facts: Sequence[Fact]) -> None:
        """Let facts wait: ascending ones, in a sequence that nobody changes any more."""
        if facts:
            self._spread()
            self._latest = facts

    def take(self, position: Token) -> Sequence[Fact]:
        """The facts at or below ``position``, in order. They wait no longer."""
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
        """Forget all of them."""
        self._latest = ()
        self._heap.clear()
        self.rows = 0

    def _spread(self) -> None:
        for fact in self._latest:
            heappush(self._heap, (fact.token, fact))
            self.rows += len(fact.rows)
        self._latest = ()
