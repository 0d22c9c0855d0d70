"""``@cached``: functions and methods whose results are cached."""

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
    """Opens and registers caches; see :class:`~.registry.Caches`."""

    runtime: CacheRuntime

    def open(self, declaration: Declaration, loader: Callable[[], Call | None]) -> Cache:
        """Open a new cache, and register it by its name."""

    def close(self, cache: Cache) -> None:
        """Remove a cache, from the thread in which its object was collected."""


class Cached(PerObject):
    """The object that ``@cached`` puts in place of a function.

    A method has one cache per object, all of the same name. The cache of an object with
    an attribute ``caches`` is registered there, others in the decorator's registry.

    :param options: arguments of :class:`~.cache.Declaration`, besides name and arity
    """

    def __init__(self, function: Call, name: str, options: dict[str, Any], opener: Opener) -> None:
        super().__init__(function, name)
        self._options = options
        self._opener = opener

    @cached_property
    def arguments(self) -> Arguments:
        """The parameters that form the key."""
        return Arguments(self.name, self.function, self.is_method)

    @cached_property
    def declaration(self) -> Declaration:
        """The declaration of the cache.

        :raises BadCache: its options are not valid
        """
        return Declaration(name=self.name, arity=self.arguments.arity, **self._options)

    def cache_of(self, instance: object | None) -> tuple[Cache, CacheRuntime]:
        """The cache of an object, or of the function, and its runtime."""
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
        """A function that returns the bound function while its object lives, then None."""
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
