"""The registry of the caches and change indexes of a process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from synrepl.caches.cache import BadCache, Cache, Declaration
from synrepl.caches.cached import Cached
from synrepl.caches.changes import ChangeIndex
from synrepl.caches.many import CachedList
from synrepl.caches.per_object import Call
from synrepl.caches.runtime import CacheRuntime
from synrepl.streams.effects import Effects, Expansion, Group, Invalidates, Key, Marks

F = TypeVar("F", bound=Callable[..., Any])


class Caches:
    """The caches of one process, the rows that invalidate them, and its change indexes.

    A cache is used only from the reactor thread.

    :ivar moment: number of the current moment; the code that applies rows increases it
        with each invalidation
    :ivar expansions: names in the ``caches`` stream that stand for many caches, in addition
        to the built-in ones
    :ivar effects: effects of rows, by stream and kind of row, in addition to those that
        the streams declare
    :ivar effects_version: increases with each declared expansion or effect, so that plans
        derived from them can be renewed
    :ivar targets_version: increases when the first cache of a name or group is opened, or an
        index is made: rows that had nothing to invalidate may have something now
    """

    def __init__(self, runtime: CacheRuntime) -> None:
        self.runtime = runtime
        self.moment = 0
        self.expansions: dict[str, Expansion] = {}
        self.effects: dict[tuple[str, str], Effects] = {}
        self.effects_version = 0
        self.targets_version = 0
        self.indexes: dict[tuple[str, str], ChangeIndex] = {}
        self._cached: list[Cached] = []
        self._names: set[str] = set()
        self._opened: dict[Declaration, None] = {}
        #: Caches whose objects were collected, which may happen in any thread at any time.
        self._closed: deque[Cache] = deque()
        self._by_name: dict[str, tuple[Cache, ...]] = {}
        self._by_group: dict[str, tuple[Cache, ...]] = {}
        self._gone: dict[str, dict[str, int]] = {}
        self._accept: Callable[[Declaration], object] = lambda declared: None
        self._accept_rows: Callable[[str, str], object] = lambda stream, kind: None

    # -- declaring ------------------------------------------------------------------

    def cached(
        self,
        *,
        max_entries: int = 10_000,
        max_bytes: int | None = None,
        size_of: Callable[[Any], int] | None = None,
        ttl_s: float | None = None,
        name: str | None = None,
        tree: bool = False,
        groups: tuple[str, ...] = (),
        by_name: bool = False,
        immutable: bool = False,
    ) -> Callable[[F], F]:
        """Cache the results of a function: a plain one, one that returns Deferreds, or a coroutine.

        >>> from synrepl import cached
        >>> @cached(max_entries=1_000, immutable=True)
        ... def squared(number: int) -> int:
        ...     print("computing")
        ...     return number * number
        >>> squared(7)
        computing
        49
        >>> squared(7)
        49

        Arguments are strings, numbers, booleans or None. All callers share the returned
        value, so do not change it. Errors are not cached.

        :param max_entries: maximum number of entries
        :param max_bytes: maximum size in bytes, as measured by ``size_of``; None for no limit
        :param size_of: size of a value in bytes
        :param ttl_s: seconds after which an entry is loaded again; None for never
        :param name: name of the cache; by default that of the function
        :param tree: whether entries can be invalidated by their first arguments alone,
            without emptying the cache
        :param groups: groups through which expansions can invalidate this cache
        :param by_name: whether ``invalidate(name, …)`` is used with this name
        :param immutable: whether the results never change
        :raises BadCache: the declaration is not valid; raised on first use at the latest
        """
        if isinstance(groups, str):
            raise BadCache(cache=name or "?", reason=f"write groups=({groups!r},)")
        options = {
            "max_entries": max_entries,
            "max_bytes": max_bytes,
            "size_of": size_of,
            "ttl_s": ttl_s,
            "tree": tree,
            "groups": frozenset(groups),
            "by_name": by_name,
            "immutable": immutable,
        }

        def decorate(function: F) -> F:
            made = Cached(function, name or function.__name__, options, self)
            self._cached.append(made)
            self._names.add(made.name)
            stands_in: Any = made
            result: F = stands_in
            return result

        return decorate

    def cached_list(self, single: Callable[..., Any], *, many: str) -> Callable[[F], F]:
        """Look up many keys of a cached function at once.

        :param single: the cached function
        :param many: the parameter that takes a list where ``single`` takes one item;
            the function returns a mapping from each item to its result
        :raises BadCache: ``single`` is not cached
        """
        of: Any = single
        if not isinstance(of, Cached):
            raise BadCache(cache=getattr(single, "__name__", "?"), reason="it is not @cached")

        def decorate(function: F) -> F:
            stands_in: Any = CachedList(function, of, many)
            result: F = stands_in
            return result

        return decorate

    def expand(self, expansion: Expansion) -> None:
        """Declare a name in the ``caches`` stream that stands for entries of many caches.

        :raises BadCache: the name is declared already
        """
        if expansion.name in self.expansions:
            raise BadCache(cache=expansion.name, reason="this name is expanded already")
        self.expansions[expansion.name] = expansion
        self._has_effects(expansion.effects)

    def on_rows(self, stream: str, *effects: Invalidates | Marks, kind: str = "") -> None:
        """Declare additional effects of the rows of a stream.

        :param effects: effects of each row
        :param kind: kind of the rows, in a stream whose rows have kinds
        :raises SynreplError: the check set by :meth:`accept_only` refuses them
        """
        self._accept_rows(stream, kind)
        self.effects[stream, kind] = (*self.effects.get((stream, kind), ()), *effects)
        self._has_effects(effects)

    def _has_effects(self, effects: Effects) -> None:
        self.effects_version += 1
        for effect in effects:
            if isinstance(effect, Invalidates):  # such rows had no effect until now
                for cache in self.matching(effect.cache):
                    cache.clear()

    def index(self, stream: str, name: str, entries: int = 10_000) -> ChangeIndex:
        """The change index of that name, made on first use.

        :param stream: the stream of its tokens; of streams that share a sequence, the
            owner of the sequence
        :param entries: maximum number of entities, if it is made now
        """
        found = self.indexes.get((stream, name))
        if found is None:
            found = self.indexes[stream, name] = ChangeIndex(name, entries)
            self.targets_version += 1
        return found

    def is_declared(self, name: str) -> bool:
        """Whether a cache of that name is declared, or has been opened."""
        return name in self._names or name in self._by_name

    @property
    def declarations(self) -> Iterator[Declaration]:
        """All declarations, including those of opened caches; a name may have several.

        :raises BadCache: a declaration is not valid
        """
        yield from dict.fromkeys(cached.declaration for cached in self._cached) | self._opened

    def accept_only(
        self,
        accept: Callable[[Declaration], object],
        accept_rows: Callable[[str, str], object] = lambda stream, kind: None,
    ) -> None:
        """Check all declarations with ``accept(declaration)``, now and when caches are opened later.

        Its errors are raised here, or where the cache is opened.

        :param accept_rows: called in the same way with the stream and the row kind of
            declared effects
        """
        for stream, kind in self.effects:
            accept_rows(stream, kind)
        for declared in self.declarations:
            accept(declared)
        self._accept, self._accept_rows = accept, accept_rows

    # -- open caches ------------------------------------------------------------------

    def open(self, declaration: Declaration, loader: Callable[[], Call | None]) -> Cache:
        """Open a new cache, and register it by its name.

        :raises SynreplError: the check set by :meth:`accept_only` refuses it
        """
        self._accept(declaration)
        self._remove_closed()
        self._opened[declaration] = None
        cache = Cache(declaration, self.runtime.seconds, lambda: self.moment, loader)
        if cache.name not in self._by_name or not declaration.groups <= self._by_group.keys():
            self.targets_version += 1
        self._by_name[cache.name] = (*self.named(cache.name), cache)
        for group in declaration.groups:
            self._by_group[group] = (*self._by_group.get(group, ()), cache)
        return cache

    def close(self, cache: Cache) -> None:
        """Remove the cache of a collected object; its counters stay. It may be called in any thread."""
        self._closed.append(cache)

    def _remove_closed(self) -> None:
        """Remove the closed caches."""
        while self._closed:
            cache = self._closed.popleft()
            counts = cache.counts() | {"size": 0, "bytes": 0}
            self._gone[cache.name] = _sum(self._gone.get(cache.name), counts)
            for known, name in (
                (self._by_name, cache.name),
                *((self._by_group, g) for g in cache.declaration.groups),
            ):
                known[name] = tuple(other for other in known[name] if other is not cache)

    def named(self, name: str) -> tuple[Cache, ...]:
        """The open caches of a name: one per object, or one for a function."""
        return self._by_name.get(name, ())

    def matching(self, target: str | Group) -> tuple[Cache, ...]:
        """The open caches of a name or of a group."""
        if isinstance(target, Group):
            return self._by_group.get(target.name, ())
        return self._by_name.get(target, ())

    def has_opened(self, target: str | Group) -> bool:
        """Whether a cache of a name or of a group was ever opened."""
        if isinstance(target, Group):
            return target.name in self._by_group
        return target in self._by_name

    def __iter__(self) -> Iterator[Cache]:
        """All open caches."""
        self._remove_closed()
        for caches in self._by_name.values():
            yield from caches

    def invalidate(self, name: str, key: Key | None) -> None:
        """Invalidate entries of the caches of a name; see :meth:`.Cache.invalidate`."""
        for cache in self.named(name):
            cache.invalidate(key)

    def clear(self) -> None:
        """Empty all caches, except immutable ones."""
        for cache in self:
            if not cache.declaration.immutable:
                cache.clear()

    def stats(self) -> dict[str, dict[str, int]]:
        """Counters and current sizes, by name."""
        self._remove_closed()
        return {
            name: _sum(self._gone.get(name), *(cache.counts() for cache in caches))
            for name, caches in sorted(self._by_name.items())
        }


def _sum(*counts: dict[str, int] | None) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, value in (count or {}).items():
            total[name] = total.get(name, 0) + value
    return total
