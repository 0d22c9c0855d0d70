"""Has readers wait for what the partial state of a room lacks, until the room is complete.

Source: seed "How do faster joins work?", "Approximation error".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.tokens import Token
from synrepl.storage.rooms.reading.partial_states import StateNotKnownYet
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.caches import CachesRow
from synrepl.streams.synapse.un_partial_stated_room import (
    IS_PARTIAL_CACHE,
    UnPartialStatedRoomRow,
)

T = TypeVar("T")

#: The longest wait, and the longest time until a reader looks again although nobody woke it, in seconds.
LONGEST_WAIT_S, LOOK_AGAIN_S = 20.0, 5.0

#: Maximum number of readers that wait.
MAX_READERS = 10_000


class TooManyReaders(Unavailable):
    """{most} readers wait for the states of partial rooms in this process already; try again later"""


class FullStateWait:
    """Waits for partial rooms; observes the facts of a :class:`.Coherence`.

    What wakes is a fact of ``un_partial_stated_room``, or, from a master whose dialect has no such stream, of
    ``caches``.

    :param timeout_s: the longest wait, in seconds
    """

    def __init__(self, scheduler: Scheduler, timeout_s: float = LONGEST_WAIT_S) -> None:
        self._scheduler = scheduler
        self._timeout_s = timeout_s
        self._waiting: dict[str, set[Promise[None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of readers that wait."""
        return self._count

    async def read(self, room_id: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read something of a room, and again, until what it needs is known. It may be cancelled.

        :param read: raises :class:`.StateNotKnownYet` as long as it is not
        :raises StateNotKnownYet: it was not known for too long
        :raises TooManyReaders: the limit is reached
        """
        until = self._scheduler.seconds() + self._timeout_s
        while True:
            woken = self._begin(room_id)
            try:
                return await read()
            except StateNotKnownYet:
                left = until - self._scheduler.seconds()
                if left <= 0:
                    raise
                if self._count >= MAX_READERS:
                    raise TooManyReaders(most=MAX_READERS) from None
                await self._wait(room_id, woken, min(left, LOOK_AGAIN_S))
            finally:  # also when the caller is cancelled
                self._end(room_id, woken)

    async def _wait(self, room_id: str, woken: Promise[None], seconds: float) -> None:
        timer = self._scheduler.callLater(seconds, self._look_again, room_id, woken)
        self._count += 1
        try:
            await woken
        finally:
            self._count -= 1
            if timer.active():
                timer.cancel()

    def _begin(self, room_id: str) -> Promise[None]:
        promise: Promise[None] = self._scheduler.promise()
        self._waiting.setdefault(room_id, set()).add(promise)
        return promise

    def _look_again(self, room_id: str, promise: Promise[None]) -> None:
        """Wake one reader, unless it is being woken."""
        if promise in self._waiting.get(room_id, ()):
            self._end(room_id, promise)
            promise.callback(None)

    def _end(self, room_id: str, promise: Promise[None]) -> None:
        waiting = self._waiting.get(room_id, set())
        waiting.discard(promise)
        if not waiting:
            self._waiting.pop(room_id, None)

    # -- facts ------------------------------------------------------------------------

    def applied(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """Wake the readers of rooms that are complete."""
        if not self._waiting:
            return
        for fact in facts:
            for row in fact.rows:
                if isinstance(row, UnPartialStatedRoomRow):
                    self._wake(row.room_id)
                elif isinstance(row, CachesRow) and row.cache_func == IS_PARTIAL_CACHE:
                    self._wake_named(row)

    def unknown_upto(self, stream: str, writer: str, token: Token) -> None:
        """Wake all readers: their rooms may be complete."""
        for room_id in list(self._waiting):
            self._wake(room_id)

    def _wake_named(self, row: CachesRow) -> None:
        for room_id in list(self._waiting) if row.keys is None else row.keys:
            self._wake(str(room_id))

    def _wake(self, room_id: str) -> None:
        for promise in self._waiting.pop(room_id, set()):
            promise.callback(None)
