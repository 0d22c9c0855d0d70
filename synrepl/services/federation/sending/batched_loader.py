"""Loads values by key, those that are asked for at about the same time in one query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from typing import Generic, TypeVar

from synrepl.core.clock import Promise, Scheduler

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

#: Keys of one query.
MAX_KEYS = 500


class BatchedLoader(Generic[K, V]):
    """Gathers the keys that are asked for in a turn of the reactor, and while a query runs, for the next query.

    :param name: what is loaded, for logs
    :param load: loads the values of some keys; those without a value are left out
    """

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        load: Callable[[Collection[K]], Awaitable[Mapping[K, V]]],
    ) -> None:
        self._scheduler = scheduler
        self._name = name
        self._load = load
        self._waiting: dict[K, list[Promise[V | None]]] = {}
        self._is_running = False

    async def get(self, key: K) -> V | None:
        """The value of a key; None if it has none.

        :raises Exception: that of the query
        """
        promise: Promise[V | None] = self._scheduler.promise()
        self._waiting.setdefault(key, []).append(promise)
        if not self._is_running:
            self._is_running = True
            self._scheduler.spawn(self._name, self._run())
        return await promise

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._scheduler.sleep(0)
                keys = list(self._waiting)[:MAX_KEYS]
                waiting = {key: self._waiting.pop(key) for key in keys}
                try:
                    found = await self._load(keys)
                except Exception as error:
                    for promises in waiting.values():
                        for promise in promises:
                            promise.errback(error)
                    continue
                for key, promises in waiting.items():
                    for promise in promises:
                        promise.callback(found.get(key))
        finally:
            self._is_running = False
