"""``@cached``: a function or method that keeps what it has found."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from synrepl.caches.arguments import Arguments
from synrepl.caches.cache import BadCache, Cache, Declaration
from synrepl.caches.calls import coroutine_call, plain_call
from synrepl.caches.per_object import Call, PerObject
from synrepl.caches.runtime import CacheRuntime


@runtime_checkable
class Opener(Protocol):
    """Where caches are registered; see :class:`~.registry.Caches`."""

    runtime: CacheRuntime

    def open(self, declaration: Declaration, loader: Callable[[], Call | None]) -> Cache:
        """A new cache, known by its name from now on."""

    def close(self, cache: Cache) -> None:
        """Forget a cache; in whatever thread its object was collected."""


class Cached(PerObject):
    """What ``@cached`` makes of a function.

    A method has one cache per object, all of one name. An object that has an
    attribute ``caches`` registers its own there, others where the decorator
    comes from.

    :param options: what :class:`~.cache.Declaration` is made of, besides the arity
    """

    def __init__(self, function: Call, name: str, options: dict[str, Any], opener: Opener) -> None:
        super().__init__(function, name)
        self._options = options
        self._opener = opener

    @cached_property
    def arguments(self) -> Arguments:
        """The parameters that make the key."""
        return Arguments(self.name, self.function, self.is_method)

    @cached_property
    def declaration(self) -> Declaration:
        """What was said about the cache.

        :raises BadCache: it makes no sense
        """
        return Declaration(name=self.name, arity=self.arguments.arity, **self._options)

    def cache_of(self, instance: object | None) -> tuple[Cache, CacheRuntime]:
        """The cache of an object, or of the function, and how its callers wait."""
        call: Any = self.of(instance)
        found: tuple[Cache, CacheRuntime] = call.cache
        return found

    def _make(self, instance: object | None) -> Call:
        own = getattr(instance, "caches", None)
        opener = own if isinstance(own, Opener) else self._opener
        cache = opener.open(self.declaration, self._loader(instance))
        if instance is not None:
            weakref.finalize(instance, opener.close, cache)
        function = self._function_of(instance)
        make: Any = coroutine_call if inspect.iscoroutinefunction(self.function) else plain_call
        call: Any = make(cache, function, self.arguments, opener.runtime)
        call.cache = (cache, opener.runtime)
        made: Call = call
        return made

    def _loader(self, instance: object | None) -> Callable[[], Call | None]:
        """Gives the function, for as long as its object lives."""
        if instance is None:
            return lambda: self.function
        try:
            alive = weakref.ref(instance)
        except TypeError:
            raise BadCache(
                cache=self.name,
                reason=f"objects of {type(instance).__name__} have no __weakref__",
            ) from None

        def loader() -> Call | None:
            found = alive()
            return None if found is None else self._function_of(found)

        return loader
