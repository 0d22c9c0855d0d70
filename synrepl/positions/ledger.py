"""The ledger of one writer: requested, reserved and settled tokens, and the position they allow.

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
    """A pending request for tokens. Those it brings will be above ``floor``."""

    floor: Token


class Ledger:
    """One writer's tokens of one stream, from request to settlement.

    Invariant R1: :attr:`position` never passes a token that is reserved and
    not settled, nor one that an open request may still bring. Every operation is
    O(log n) in the number of tokens above the position.

    :param position: initial position, with nothing outstanding
    """

    def __init__(self, position: Token) -> None:
        self._position = position
        self._seen = position
        # Floors only rise, so the oldest open request has the lowest.
        self._requests: OrderedDict[Request, Token] = OrderedDict()
        # Every known token above the position: True once it is settled.
        self._settled: dict[Token, bool] = {}
        self._unsettled_heap: list[Token] = []  # settled tokens are removed when they reach the top
        self._settled_heap: list[Token] = []
        self._outstanding = 0

    @property
    def position(self) -> Token:
        """The largest settled token with no unsettled or requested token of this writer below it."""
        return self._position

    @property
    def seen(self) -> Token:
        """The largest known token of the sequence, of any writer."""
        return self._seen

    @property
    def oldest(self) -> Token | None:
        """The smallest token that is reserved and not settled; None without one."""
        heap = self._unsettled_heap
        while heap and self._settled.get(heap[0], True):
            heappop(heap)
        return heap[0] if heap else None

    @property
    def floor(self) -> Token:
        """No token of this writer at or below it is unsettled or requested.

        With nothing outstanding it is the largest possible token, so that the
        minimum over all writers of a sequence is meaningful.
        """
        oldest = self.oldest
        floor = MAX_TOKEN if oldest is None else oldest - 1
        return min(floor, next(iter(self._requests.values()), MAX_TOKEN))

    @property
    def outstanding(self) -> int:
        """Number of tokens that are reserved and not settled."""
        return self._outstanding

    @property
    def open_requests(self) -> int:
        """Number of requests that are neither resolved nor abandoned."""
        return len(self._requests)

    def knows(self, token: Token) -> bool:
        """Whether a token above the position has been reserved here, settled or not."""
        return token in self._settled

    def saw(self, token: Token) -> None:
        """Note a token that another writer got from the same sequence."""
        self._seen = max(self._seen, token)

    def request(self) -> Request:
        """Open a request, *before* tokens are taken from the sequence."""
        request = Request(self._seen)
        self._requests[request] = request.floor
        return request

    def reserved(self, request: Request, tokens: Sequence[Token]) -> None:
        """Resolve a request into the tokens it brought, which may be none.

        :raises SequenceBehind: a token is at or below the request's floor, already
            known, or given twice; nothing changes, and the request stays open
        :raises RequestClosed: it was resolved or abandoned before
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
        """Close a request that brought no token that will ever be written.

        :raises RequestClosed: it was resolved or abandoned before
        """
        if self._requests.pop(request, None) is None:
            raise RequestClosed()
        self._advance()

    def settle(self, tokens: Collection[Token]) -> Token:
        """Note that the transactions of these tokens have ended, by commit or rollback.

        :returns: the position, which may have advanced
        :raises NotReserved: a token is not outstanding; nothing changes
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
        """Advance to a token up to which the sequence is settled, as far as our own tokens allow.

        :returns: whether the position advanced
        """
        before = self._position
        self._advance()
        self._position = max(self._position, min(token, self.floor))
        self._seen = max(self._seen, self._position)
        return self._position > before

    def _advance(self) -> None:
        heap = self._settled_heap
        if not self._outstanding and not self._requests:
            # Nothing holds the position back: the usual case, so avoid popping one by one.
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
