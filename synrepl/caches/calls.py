"""Cached calls, for coroutine functions and for plain ones.

Each maker returns the callable that replaces the function. It is a closure without
state of its own, because a cache hit has to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from synrepl.caches.arguments import Arguments
from synrepl.caches.cache import Cache
from synrepl.caches.load import Load
from synrepl.caches.runtime import CacheRuntime, is_deferred, returns_deferred
from synrepl.streams.effects import Key

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
