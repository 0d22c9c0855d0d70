"""``@cached_list``: looks up many keys of a cached function at once."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from synrepl.caches.cache import BadCache, Cache, UnusableKey
from synrepl.caches.cached import Arguments, Cached
from synrepl.caches.load import Load
from synrepl.caches.per_object import Call, PerObject
from synrepl.caches.runtime import CacheRuntime, is_deferred, returns_deferred
from synrepl.core.errors import InputError
from synrepl.streams.effects import Key, scalar


class NotAMapping(InputError):
    """the function behind cache {cache!r} has to return a mapping from each item to its result, not a {given}"""


class NotMany(InputError):
    """{parameter!r} of the list for cache {cache!r} takes any number of items in a list, not {given}"""


#: Loads in progress, by item.
_Loads = Mapping[Any, Load]


class CachedList(PerObject):
    """The object that ``@cached_list`` puts in place of a function.

    The function has the parameters of the cached function, but takes a list for one of
    them, and returns a mapping from each item to its result. It is called with the items
    that are neither cached nor being loaded. An item missing from its mapping gets None.

    :param single: the cached function
    :param many: the name of the parameter that takes many
    """

    def __init__(self, function: Call, single: Cached, many: str) -> None:
        super().__init__(function, single.name)
        self._single = single
        self._many = many

    def _make(self, instance: object | None) -> Call:
        cache, runtime = self._single.cache_of(instance)
        arguments = Arguments(self.name, self.function, self.is_method)
        others = [name for name in arguments.names if name != self._many]
        alike = zip(arguments.names, self._single.arguments.names, strict=False)
        if (
            self._many not in arguments.names
            or arguments.arity != cache.declaration.arity
            or others != [other for own, other in alike if own != self._many]
        ):
            raise BadCache(
                cache=self.name,
                reason=f"{self.function.__qualname__} needs the parameters of the cached function, "
                f"{self._many!r} in the place of one of them",
            )
        place = arguments.names.index(self._many)
        function = self._function_of(instance)
        if inspect.iscoroutinefunction(self.function):
            return _ManyCoroutine(cache, runtime, arguments, place, function).call
        return _ManyPlain(cache, runtime, arguments, place, function).call


class _ManyCall:
    """The parts that coroutine and plain calls share."""

    def __init__(
        self, cache: Cache, runtime: CacheRuntime, arguments: Arguments, place: int, function: Call
    ) -> None:
        self._cache = cache
        self._runtime = runtime
        self._arguments = arguments
        self._place = place
        self._function = function

    def _keys(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Any, Key]:
        """The key of each requested item, in order.

        :raises NotMany: the argument is not a list
        :raises UnusableKey: no row could ever name one of these keys
        """
        key, place = self._arguments.key(args, kwargs), self._place
        many = key[place]
        if isinstance(many, (str, bytes)) or not isinstance(many, Iterable):
            name = self._arguments.names[place]
            raise NotMany(parameter=name, cache=self._cache.name, given=repr(many)[:100])
        keys: dict[Any, Key] = {}
        for item in many:
            of_item = (*key[:place], item, *key[place + 1 :])
            if not scalar(of_item):  # before any load begins
                raise UnusableKey(cache=self._cache.name, key=repr(of_item)[:100])
            keys[item] = of_item
        return keys

    def _look(self, keys: Mapping[Any, Key]) -> tuple[dict[Any, Any], dict[Any, Load], list[Any]]:
        """Cached values, loads in progress, and missing items."""
        found: dict[Any, Any] = {}
        under: dict[Any, Load] = {}
        missing: list[Any] = []
        for item, key in keys.items():
            entry = self._cache.find(key)
            load = self._cache.loads.get(key)
            if entry is not None:
                found[item] = entry.value
            elif load is not None and load.is_joinable:
                under[item] = load
            else:
                missing.append(item)
        return found, under, missing

    def _begin(self, keys: Mapping[Any, Key], missing: Sequence[Any]) -> dict[Any, Load]:
        return {item: self._cache.begin(keys[item]) for item in missing}

    def _call(self, key: Key, missing: Sequence[Any]) -> Any:
        return self._function(*key[: self._place], missing, *key[self._place + 1 :])

    def _loaded(self, keys: Mapping[Any, Key], begun: _Loads, result: Mapping[Any, Any]) -> None:
        """Finish the loads with what the function returned.

        :raises NotAMapping: it is not a mapping; all loads fail, as with any error
        """
        try:
            if not isinstance(result, Mapping):
                raise NotAMapping(cache=self._cache.name, given=type(result).__name__)
            for item, load in begun.items():
                self._cache.loaded(keys[item], load, result.get(item))
        except Exception as error:
            self._failed(keys, begun, error)
            raise

    def _failed(self, keys: Mapping[Any, Key], begun: _Loads, error: Any) -> None:
        for item, load in begun.items():
            self._cache.failed(keys[item], load, error)

    async def _gather(
        self, keys: Iterable[Any], found: Mapping[Any, Any], under: _Loads
    ) -> dict[Any, Any]:
        return {
            item: found[item] if item in found else await under[item].join(self._runtime.promise())
            for item in keys
        }


class _ManyCoroutine(_ManyCall):
    async def call(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        keys = self._keys(args, kwargs)
        found, under, missing = self._look(keys)
        if missing:
            begun = self._begin(keys, missing)
            under |= begun
            self._runtime.start(self._run(keys, missing, begun))
        return await self._gather(keys, found, under)

    async def _run(self, keys: Mapping[Any, Key], missing: Sequence[Any], begun: _Loads) -> None:
        try:
            result = await self._call(keys[missing[0]], missing)
            self._loaded(keys, begun, result)
        except BaseException as error:
            self._failed(keys, begun, error)
            if not isinstance(error, Exception):
                raise


class _ManyPlain(_ManyCall):
    def __init__(
        self, cache: Cache, runtime: CacheRuntime, arguments: Arguments, place: int, function: Call
    ) -> None:
        super().__init__(cache, runtime, arguments, place, function)
        #: Whether it returns a Deferred; None while that is not known.
        self._deferred = returns_deferred(function)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        keys = self._keys(args, kwargs)
        found, under, missing = self._look(keys)
        if not self._deferred:  # the caller of a synchronous function cannot wait
            under, missing = {}, [item for item in keys if item not in found]
            if self._deferred is None and not missing:  # only a call shows which kind it is
                found, missing = {}, list(keys)
        if missing:
            begun = self._begin(keys, missing)
            result = self._invoke(keys, missing, begun)
            if is_deferred(result):
                self._deferred = True
                under |= begun
                result.addCallbacks(
                    lambda result: self._take(keys, begun, result),
                    lambda failure: self._failed(keys, begun, failure),
                )
            else:
                self._deferred = bool(self._deferred)
                self._loaded(keys, begun, result)
                found |= {item: load.result() for item, load in begun.items()}
        if self._deferred:
            return self._runtime.start(self._gather(keys, found, under))
        return {item: found[item] for item in keys}

    def _invoke(self, keys: Mapping[Any, Key], missing: Sequence[Any], begun: _Loads) -> Any:
        """Call the function; nobody can wait for its loads while it runs."""
        for load in begun.values():
            load.is_joinable = False
        try:
            return self._runtime.to_promise(self._call(keys[missing[0]], missing))
        except BaseException as error:
            self._failed(keys, begun, error)
            raise
        finally:
            for load in begun.values():
                load.is_joinable = True

    def _take(self, keys: Mapping[Any, Key], begun: _Loads, result: Any) -> None:
        with suppress(Exception):  # waiting callers get the error
            self._loaded(keys, begun, result)
