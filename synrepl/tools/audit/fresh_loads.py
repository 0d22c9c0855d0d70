"""Loading values without going through their cache."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import isawaitable
from typing import Any

from synrepl.caches.cache import Cache
from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import Unavailable
from synrepl.tools.audit.sample import EntryLocation

#: Time limit of one load, in seconds.
LOAD_S = 30.0


class LoadTooLong(Unavailable):
    """loading an entry of cache {cache!r} afresh takes longer than {limit_s:g} s"""


class CacheGone(Unavailable):
    """the object whose method cache {cache!r} belongs to is gone"""


class FreshLoads:
    """Loads values as a cache would, without touching the cache: no hit, no miss, nothing stored.

    :param limit_s: time limit of a load, in seconds. While an overdue load runs, no other load of
        its cache begins here, so that they do not pile up
    """

    def __init__(self, scheduler: Scheduler, limit_s: float = LOAD_S) -> None:
        self._scheduler = scheduler
        self._limit_s = limit_s
        self._overdue: dict[Cache, int] = {}

    async def load(self, location: EntryLocation) -> Any:
        """Load the value of a key.

        :raises LoadTooLong: :raises CacheGone: and whatever the cached function raises
        """
        function = location.cache.loader()
        if function is None:
            raise CacheGone(cache=location.cache.name)
        if location.cache in self._overdue:
            raise self._too_long(location.cache)
        result = function(*location.key)
        if not isawaitable(result):
            return result
        promise: Promise[Any] = self._scheduler.promise()
        load = _Load(promise)
        timer = self._scheduler.callLater(self._limit_s, self._give_up, location.cache, load)
        self._scheduler.spawn("load afresh", self._run(location.cache, load, result))
        try:
            return await promise
        finally:
            load.has_ended = True
            if timer.active():
                timer.cancel()

    async def _run(self, cache: Cache, load: _Load, result: Awaitable[Any]) -> None:
        try:
            value = await result
        except Exception as error:
            load.end(None, error)
        else:
            load.end(value, None)
        finally:
            if load.is_overdue:
                self._overdue[cache] -= 1
                if not self._overdue[cache]:
                    del self._overdue[cache]

    def _give_up(self, cache: Cache, load: _Load) -> None:
        load.is_overdue = True
        self._overdue[cache] = self._overdue.get(cache, 0) + 1
        load.end(None, self._too_long(cache))

    def _too_long(self, cache: Cache) -> LoadTooLong:
        return LoadTooLong(cache=cache.name, limit_s=self._limit_s)


class _Load:
    """One load, waited for until it ends or its time is up."""

    def __init__(self, promise: Promise[Any]) -> None:
        self._promise = promise
        self.has_ended = False
        self.is_overdue = False

    def end(self, value: Any, error: Exception | None) -> None:
        """Deliver the result; only the first one counts."""
        if self.has_ended:
            return
        self.has_ended = True
        if error is None:
            self._promise.callback(value)
        else:
            self._promise.errback(error)
