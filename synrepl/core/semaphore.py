"""A counting semaphore for coroutines on any scheduler."""

from __future__ import annotations

from collections import deque
from types import TracebackType

from synrepl.core.clock import Promise, Scheduler


class Semaphore:
    """Admits a limited number of coroutines to its ``async with`` block, in order.

    :param places: maximum number at a time
    """

    def __init__(self, scheduler: Scheduler, places: int) -> None:
        self._scheduler = scheduler
        self._free = places
        self._waiting: deque[Promise[None]] = deque()

    async def acquire(self) -> None:
        """Wait for a place, to be given back by :meth:`release`."""
        if self._free:
            self._free -= 1
            return
        promise: Promise[None] = self._scheduler.promise()
        self._waiting.append(promise)
        await promise

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:
            return  # the coroutine is being discarded, so no other one is resumed
        self.release()

    def release(self) -> None:
        """Give a place back."""
        if self._waiting:
            self._waiting.popleft().callback(None)  # hands the place over
        else:
            self._free += 1
