"""What one writer has asked for, holds and has settled, and how far that lets its position go.

Source of the rules: seed "Streams", "Current stream ID" and "Writing to streams".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from synrepl.core.errors import SynreplError
from synrepl.core.tokens import MAX_TOKEN, Token


class SequenceBehind(SynreplError):
    """the sequence gave out {token}, but {seen} had been seen before it was asked, or the token is in use; it must be moved forward before anything is written"""


class NotReserved(SynreplError):
    """token {token} cannot be settled: it is not reserved, or has been settled already"""


class RequestClosed(SynreplError):
    """this request for tokens has been resolved or abandoned already"""


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """Tokens are being asked for; whatever comes will be above ``floor``."""

    floor: Token


class Ledger:
    """One writer's tokens of one stream, from request to settlement.

    Invariant R1: :attr:`position` never passes a token that is reserved and
    not settled, nor what an open request may still bring. Every operation is
    O(log n) in the tokens above the position.

    :param position: where the writer stands at the start, with nothing outstanding
    """

    def __init__(self, position: Token) -> None:
        self._position = position
        self._seen = position
        # Floors only rise, so the oldest open request has the lowest.
        self._requests: OrderedDict[Request, Token] = OrderedDict()
        # Every known token above the position, and whether it is settled.
        self._settled: dict[Token, bool] = {}
        self._unsettled_heap: list[Token] = []  # settled ones are skipped when they surface
        self._settled_heap: list[Token] = []
        self._outstanding = 0

    @property
    def position(self) -> Token:
        """The largest settled token of this writer with nothing unsettled, or still to come, below."""
        return self._position

    @property
    def seen(self) -> Token:
        """The largest token of the sequence known here, whoever's it is."""
        return self._seen

    @property
    def oldest(self) -> Token | None:
        """The smallest token that is reserved and not settled."""
        heap = self._unsettled_heap
        while heap and self._settled.get(heap[0], True):
            heappop(heap)
        return heap[0] if heap else None

    @property
    def floor(self) -> Token:
        """Nothing of this writer at or below it is unsettled, or still to come.

        With nothing outstanding that is the largest token there can be. For
        whoever looks at all writers of a sequence at once.
        """
        oldest = self.oldest
        floor = MAX_TOKEN if oldest is None else oldest - 1
        return min(floor, next(iter(self._requests.values()), MAX_TOKEN))

    @property
    def outstanding(self) -> int:
        """How many tokens are reserved and not settled."""
        return self._outstanding

    @property
    def open_requests(self) -> int:
        """How many requests are neither resolved nor abandoned."""
        return len(self._requests)

    def knows(self, token: Token) -> bool:
        """Whether a token above the position has been reserved here, settled or not."""
        return token in self._settled

    def saw(self, token: Token) -> None:
        """Note a token that some other writer got from the same sequence."""
        self._seen = max(self._seen, token)

    def request(self) -> Request:
        """Note, *before* the sequence is asked, that tokens are going to come."""
        request = Request(self._seen)
        self._requests[request] = request.floor
        return request

    def reserved(self, request: Request, tokens: Sequence[Token]) -> None:
        """Resolve a request into the tokens it brought, which may be none.

        :raises SequenceBehind: for a token at or below the request's floor, one
            that is known already, or one given twice; nothing is changed then,
            and the request stays open
        :raises RequestClosed: when it was resolved or abandoned before
        """
        if request not in self._requests:
            raise RequestClosed()
        floor, fresh = request.floor, dict.fromkeys(tokens, False)
        if len(fresh) < len(tokens):
            raise SequenceBehind(token=_twice(tokens), seen=floor)
        for token in tokens:
            if token <= floor or token in self._settled:
                raise SequenceBehind(token=token, seen=floor)
        del self._requests[request]
        self._settled.update(fresh)
        for token in tokens:
            heappush(self._unsettled_heap, token)
        self._seen = max(self._seen, max(tokens, default=0))
        self._outstanding += len(tokens)
        self._advance()

    def abandon(self, request: Request) -> None:
        """Give a request up: it brought no token that will ever be written.

        :raises RequestClosed: when it was resolved or abandoned before
        """
        if self._requests.pop(request, None) is None:
            raise RequestClosed()
        self._advance()

    def settle(self, tokens: Collection[Token]) -> Token:
        """Note that the transactions of these tokens are over, committed or rolled back alike.

        :returns: the position, which may have moved
        :raises NotReserved: for a token that is not outstanding; nothing is changed then
        """
        done = dict.fromkeys(tokens, True)
        if len(done) < len(tokens):
            raise NotReserved(token=_twice(tokens))
        for token in tokens:
            if self._settled.get(token, True):
                raise NotReserved(token=token)
        self._settled.update(done)
        for token in tokens:
            heappush(self._settled_heap, token)
        self._outstanding -= len(tokens)
        self._advance()
        return self._position

    def skip(self, token: Token) -> bool:
        """Go on to a token up to which the sequence is settled, if nothing of ours holds us back.

        :returns: whether the position has moved
        """
        before = self._position
        self._advance()
        self._position = max(self._position, min(token, self.floor))
        self._seen = max(self._seen, self._position)
        return self._position > before

    def _advance(self) -> None:
        heap = self._settled_heap
        if not self._outstanding and not self._requests:
            # Nothing holds the position: the usual case, and worth not popping one by one.
            self._position = max(heap, default=self._position)
            heap.clear()
            self._unsettled_heap.clear()
            self._settled.clear()
            return
        floor = self.floor
        while heap and heap[0] <= floor:
            self._position = heappop(heap)
            del self._settled[self._position]


def _twice(tokens: Collection[Token]) -> Token:
    return Counter(tokens).most_common(1)[0][0]
