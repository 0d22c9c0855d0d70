"""Cached functions of every form, and the source that they load from."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

from twisted.internet.defer import Deferred, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.task import Clock

from synrepl.caches.registry import Caches
from synrepl.caches.runtime import CacheRuntime
from synrepl.core.clock import Promise


def caches_under(clock: Clock) -> Caches:
    """A registry whose entries expire by a test's clock."""
    return Caches(CacheRuntime(cast(Callable[[], Promise[Any]], Deferred), start, clock.seconds))


def start(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """As the product does."""
    return Deferred.fromCoroutine(coroutine)


class Source:
    """The source of cached functions.

    :ivar asked: the requested keys, or lists of items, in order
    :ivar version: part of every value; a test increases it to change all values
    :ivar later: whether results wait for :meth:`answer`
    :ivar error: raised instead of a result
    """

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.version = 1
        self.later = False
        self.error: Exception | None = None
        self._pending: list[tuple[Any, Deferred[Any]]] = []

    def value(self, *key: Any) -> Any:
        """What is true now."""
        if self.error is not None:
            raise self.error
        return ("value", self.version, *key)

    def one(self, *key: Any) -> Any:
        """Ask for one key."""
        self.asked.append(key)
        return self.value(*key)

    def many(self, a: Any, bs: Iterable[Any]) -> dict[Any, Any]:
        """Ask for many; of those that begin with "no" there is nothing."""
        self.asked.append((a, list(bs)))
        return {b: self.value(a, b) for b in bs if not str(b).startswith("no")}

    def soon(self, ask: Callable[..., Any], *args: Any) -> Deferred[Any]:
        """Ask as of now, and have the answer when a test says so."""
        found = maybeDeferred(ask, *args)
        if not self.later:
            return found
        waiting: Deferred[Any] = Deferred()
        self._pending.append((found, waiting))
        return waiting

    def answer(self) -> None:
        """Give the oldest answer that somebody waits for."""
        found, waiting = self._pending.pop(0)
        found.chainDeferred(waiting)

    def answer_newest(self) -> None:
        """Give the newest answer that somebody waits for."""
        found, waiting = self._pending.pop()
        found.chainDeferred(waiting)

    def answer_all(self) -> None:
        """Give every answer that somebody waits for."""
        while self._pending:
            self.answer()


Get = Callable[..., Any]

#: Makes a cached function, and the one that looks up many.
Form = Callable[[Source, Caches, dict[str, Any]], tuple[Get, Get]]


def plain_function(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    @caches.cached(**options)
    def get(a: Any, b: Any = "b") -> Any:
        return source.one(a, b)

    @caches.cached_list(get, many="bs")
    def get_many(a: Any, bs: Any) -> Any:
        return source.many(a, bs)

    return get, get_many


def plain_method(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    class Holder:
        @caches.cached(**options)
        def get(self, a: Any, b: Any = "b") -> Any:
            return source.one(a, b)

        @caches.cached_list(get, many="bs")
        def get_many(self, a: Any, bs: Any) -> Any:
            return source.many(a, bs)

    holder = Holder()
    return holder.get, holder.get_many


def deferred_function(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    @caches.cached(**options)
    def get(a: Any, b: Any = "b") -> Any:
        return source.soon(source.one, a, b)

    @caches.cached_list(get, many="bs")
    def get_many(a: Any, bs: Any) -> Any:
        return source.soon(source.many, a, bs)

    return get, get_many


def deferred_method(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    class Holder:
        @caches.cached(**options)
        def get(self, a: Any, b: Any = "b") -> Deferred[Any]:
            return source.soon(source.one, a, b)

        @caches.cached_list(get, many="bs")
        def get_many(self, a: Any, bs: Any) -> Deferred[Any]:
            return source.soon(source.many, a, bs)

    holder = Holder()
    return holder.get, holder.get_many


def inline_method(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    class Holder:
        @caches.cached(**options)
        @inlineCallbacks
        def get(self, a: Any, b: Any = "b") -> Any:
            found = yield source.soon(source.one, a, b)
            return found

        @caches.cached_list(get, many="bs")
        @inlineCallbacks
        def get_many(self, a: Any, bs: Any) -> Any:
            found = yield source.soon(source.many, a, bs)
            return found

    holder = Holder()
    return holder.get, holder.get_many


def coroutine_function(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    @caches.cached(**options)
    async def get(a: Any, b: Any = "b") -> Any:
        return await source.soon(source.one, a, b)

    @caches.cached_list(get, many="bs")
    async def get_many(a: Any, bs: Any) -> Any:
        return await source.soon(source.many, a, bs)

    return get, get_many


def coroutine_method(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    class Holder:
        @caches.cached(**options)
        async def get(self, a: Any, b: Any = "b") -> Any:
            return await source.soon(source.one, a, b)

        @caches.cached_list(get, many="bs")
        async def get_many(self, a: Any, bs: Any) -> Any:
            return await source.soon(source.many, a, bs)

    holder = Holder()
    return holder.get, holder.get_many


def returned_coroutine(source: Source, caches: Caches, options: dict[str, Any]) -> tuple[Get, Get]:
    """Plain functions that return coroutines, as those below many a decorator do."""

    async def one(a: Any, b: Any) -> Any:
        return await source.soon(source.one, a, b)

    async def many(a: Any, bs: Any) -> Any:
        return await source.soon(source.many, a, bs)

    @caches.cached(**options)
    def get(a: Any, b: Any = "b") -> Any:
        return one(a, b)

    @caches.cached_list(get, many="bs")
    def get_many(a: Any, bs: Any) -> Any:
        return many(a, bs)

    return get, get_many


def as_deferred(answer: Any) -> Deferred[Any]:
    """Whatever a form answers with, as one thing."""
    if isinstance(answer, Coroutine):
        return Deferred.fromCoroutine(answer)
    return answer if isinstance(answer, Deferred) else succeed(answer)
