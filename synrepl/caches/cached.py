"""``@cached``: functions and methods whose results are cached.

Each call is a closure without state of its own, because a cache hit has to be fast.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from synrepl.caches.cache import BadCache, Cache, Declaration
from synrepl.caches.load import Load
from synrepl.caches.per_object import Call, PerObject
from synrepl.caches.runtime import CacheRuntime, is_deferred, returns_deferred
from synrepl.streams.effects import Key

_NOT_BY_POSITION = (
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


class Arguments:
    """The parameters of a cached function.

    :param method: whether the first parameter is the object, which is not part of the key
    :raises BadCache: a parameter is variadic or keyword-only
    """

    def __init__(self, name: str, function: Callable[..., Any], method: bool) -> None:
        parameters = list(inspect.signature(function).parameters.values())[int(method) :]
        for parameter in parameters:
            if parameter.kind in _NOT_BY_POSITION:
                raise BadCache(
                    cache=name,
                    reason=f"parameter {str(parameter)!r} cannot be given by position alone, "
                    "as a key needs it",
                )
        self._signature = inspect.Signature(parameters)
        self.names = tuple(self._signature.parameters)
        self.arity = len(self.names)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call, with defaults filled in.

        :raises TypeError: the arguments do not match the signature
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args


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


Function = Callable[..., Any]


def coroutine_call(
    cache: Cache, function: Function, arguments: Arguments, runtime: CacheRuntime
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Cache a function made with ``async def``.

    The load runs in its own task, so a cancelled caller does not affect others.
    """
    find, loads, arity, key_of = cache.find, cache.loads, arguments.arity, arguments.key

    async def run(key: Key, load: Load) -> None:
        try:
            value = await function(*key)
        except BaseException as error:
            cache.failed(key, load, error)
            if not isinstance(error, Exception):
                raise
        else:
            cache.loaded(key, load, value)

    async def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != arity:
            args = key_of(args, kwargs)
        entry = find(args)
        if entry is not None:
            return entry[0]
        load = loads.get(args)
        if load is None:
            load = cache.begin(args)
            runtime.start(run(args, load))
        return await load.join(runtime.promise())

    return call


def plain_call(
    cache: Cache, function: Function, arguments: Arguments, runtime: CacheRuntime
) -> Callable[..., Any]:
    """Cache a function made with ``def``, which returns its result or a ``Deferred`` of it.

    Callers always get the same kind of result. An entry may exist before the first
    call, from a ``@cached_list``; unless the function declares which kind it returns,
    it is then called all the same.
    """
    find, loads, arity, key_of = cache.find, cache.loads, arguments.arity, arguments.key
    deferred = returns_deferred(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != arity:
            args = key_of(args, kwargs)
        entry = find(args)
        if entry is None or deferred is None:
            return miss(args)
        return already(entry[0]) if deferred else entry[0]

    def already(value: Any) -> Any:
        promise = runtime.promise()
        promise.callback(value)
        return promise

    def miss(key: Key) -> Any:
        nonlocal deferred
        load = loads.get(key)
        if load is not None and load.is_joinable and deferred:
            return load.join(runtime.promise())
        load = cache.begin(key)
        load.is_joinable = False
        try:
            result = runtime.to_promise(function(*key))
        except BaseException as error:
            cache.failed(key, load, error)
            raise
        if not is_deferred(result):
            deferred = bool(deferred)
            cache.loaded(key, load, result)
            return load.result()
        deferred = load.is_joinable = True
        promise = load.join(runtime.promise())
        result.addCallbacks(
            lambda value: cache.loaded(key, load, value),
            lambda failure: cache.failed(key, load, failure),
        )
        return promise

    return call
