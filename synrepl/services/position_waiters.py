"""Waiters for positions of this process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from sortedcontainers import SortedDict

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.services.sources import LINEAR, Key
from synrepl.streams.definition import Fact, Stream

#: Maximum number of concurrent waiters.
MAX_WAITERS = 10_000


class TooManyWaiters(Unavailable):
    """{most} callers wait for positions of this process already; try again later"""


class NoLongerWaiting(Unavailable):
    """this process stops and waits for no positions; ask it again once it is back, or another one"""


class PositionWaiters:
    """Wakes waiters in the reactor turn after the one in which the position moved.

    The code that moves a position is therefore never re-entered by a waiter, and everything that
    precedes the move (caches are invalidated, lines handed to the publisher) is done.

    :param most: maximum number of concurrent waiters
    """

    def __init__(self, scheduler: Scheduler, most: int = MAX_WAITERS) -> None:
        self._scheduler = scheduler
        self._most = most
        #: Waiters by key, ordered by token and then by arrival.
        self._waiting: dict[Key, SortedDict] = {}
        self._all: dict[_Waiter, None] = {}
        self._woken: list[tuple[_Waiter, Token]] = []
        self._numbers = count()
        self._stopped = False

    def __len__(self) -> int:
        """Number of waiters."""
        return len(self._all)

    @property
    def keys(self) -> set[Key]:
        """The positions that have waiters."""
        return set(self._waiting)

    async def wait(self, keys: Sequence[Key], token: Token, timeout_s: float) -> Token | None:
        """Wait until the position of one of ``keys`` moves to ``token`` or above.

        The caller checks the current positions first. Resetting a position ends no wait.

        :returns: the position that was reached; None after ``timeout_s``
        :raises TooManyWaiters: the limit is reached
        :raises NoLongerWaiting: the process stops
        """
        if self._stopped:
            raise NoLongerWaiting()
        if len(self._all) >= self._most:
            raise TooManyWaiters(most=self._most)
        waiter = _Waiter(self._scheduler.promise())
        place = (token, next(self._numbers))
        self._all[waiter] = None
        for key in keys:
            self._waiting.setdefault(key, SortedDict())[place] = waiter
        timer = self._scheduler.callLater(timeout_s, waiter.end, None)
        try:
            return await waiter.promise
        finally:  # also when the caller is cancelled
            waiter.over = True
            if timer.active():
                timer.cancel()
            del self._all[waiter]
            for key in keys:
                self._leave(key, place)

    def moved(self, key: Key, position: Token) -> None:
        """Wake the waiters for this position and lower ones, in the next turn."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        if not self._woken and waiting.peekitem(0)[0][0] <= position:
            self._scheduler.callLater(0, self._wake)
        while waiting and waiting.peekitem(0)[0][0] <= position:
            self._woken.append((waiting.popitem(0)[1], position))
        if not waiting:
            del self._waiting[key]

    def stop(self) -> None:
        """Fail all waiters, and later ones, with :class:`NoLongerWaiting`."""
        self._stopped = True
        for waiter in list(self._all):
            waiter.fail(NoLongerWaiting())

    def _wake(self) -> None:
        woken, self._woken = self._woken, []
        for waiter, position in woken:
            waiter.end(position)

    def _leave(self, key: Key, place: tuple[Token, int]) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(place, None)
            if not waiting:
                del self._waiting[key]


class _Waiter:
    """One wait; only its first end counts."""

    def __init__(self, promise: Promise[Token | None]) -> None:
        self.promise = promise
        self.over = False

    def end(self, position: Token | None) -> None:
        if not self.over:
            self.over = True
            self.promise.callback(position)

    def fail(self, error: Exception) -> None:
        if not self.over:
            self.over = True
            self.promise.errback(error)


class WakingPositionListener:
    """Wakes waiters; the last :class:`~.stream_state.PositionListener` in the order."""

    def __init__(self, waiters: PositionWaiters) -> None:
        self._waiters = waiters

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """Wake waiters for the writer."""
        self._waiters.moved((stream.name, writer), new)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """Wake waiters for the linear position."""
        self._waiters.moved((stream.name, LINEAR), new)
