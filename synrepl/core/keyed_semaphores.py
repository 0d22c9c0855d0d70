"""A semaphore for each of any number of keys, as long as somebody uses it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from synrepl.core.clock import Scheduler
from synrepl.core.semaphore import Semaphore

K = TypeVar("K", bound=Hashable)


class KeyedSemaphores(Generic[K]):
    """Admits a limited number of coroutines for each key.

    :param places: maximum number at a time, for each key
    """

    def __init__(self, scheduler: Scheduler, places: int) -> None:
        self._scheduler = scheduler
        self._places = places
        self._semaphores: dict[K, tuple[Semaphore, int]] = {}

    @property
    def users(self) -> int:
        """Number of coroutines that are admitted or wait, for all keys."""
        return sum(users for _, users in self._semaphores.values())

    def users_of(self, key: K) -> int:
        """The same for one key."""
        return self._semaphores.get(key, (None, 0))[1]

    @contextmanager
    def entered(self, key: K) -> Iterator[Semaphore]:
        """The semaphore of a key, which counts as used until the block ends."""
        semaphore, users = self._semaphores.get(key, (None, 0))
        if semaphore is None:
            semaphore = Semaphore(self._scheduler, self._places)
        self._semaphores[key] = semaphore, users + 1
        try:
            yield semaphore
        finally:
            semaphore, users = self._semaphores[key]
            if users > 1:
                self._semaphores[key] = semaphore, users - 1
            else:
                del self._semaphores[key]
