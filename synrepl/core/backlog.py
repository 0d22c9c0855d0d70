"""A bounded queue, and back-pressure for its producers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from synrepl.core.clock import Promise, Scheduler

T = TypeVar("T")


class Capacity(Protocol):
    """A consumer that can fall behind its producers."""

    @property
    def full(self) -> bool:
        """True while producers should wait."""

    async def room(self) -> None:
        """Wait until it is no longer full. It may be full again soon."""


class Unlimited:
    """A consumer that never falls behind."""

    full = False

    async def room(self) -> None:
        """Return at once."""


UNLIMITED = Unlimited()


class AllOf:
    """Several consumers of the same items: full while any of them is."""

    def __init__(self, consumers: Iterable[Capacity]) -> None:
        self._consumers = list(consumers)

    @property
    def full(self) -> bool:
        """True while any of them is full."""
        return any(consumer.full for consumer in self._consumers)

    async def room(self) -> None:
        """Wait for each of them in turn."""
        for consumer in self._consumers:
            await consumer.room()


class Backlog(Generic[T]):
    """A first-in, first-out queue.

    :param most: capacity; :meth:`put` accepts no more
    :param high: high-water mark; the queue counts as full from here on
    """

    def __init__(self, scheduler: Scheduler, most: int, high: int) -> None:
        self._scheduler = scheduler
        self._most = most
        self._high = high
        self._items: deque[T] = deque()
        self._room: deque[Promise[None]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> bool:
        """Add an item; False when the capacity is reached."""
        if len(self._items) >= self._most:
            return False
        self._items.append(item)
        return True

    def take(self) -> T:
        """Remove and return the first item of a queue that is not empty."""
        item = self._items.popleft()
        while self._room and not self.full:
            self._room.popleft().callback(None)
        return item

    @property
    def full(self) -> bool:
        """True at the high-water mark and above."""
        return len(self._items) >= self._high

    async def room(self) -> None:
        """Wait until the queue is below its high-water mark."""
        if self.full:
            promise: Promise[None] = self._scheduler.promise()
            self._room.append(promise)
            await promise
