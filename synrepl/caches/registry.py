"""All caches and change indexes of one process, by name."""

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
    """The caches of one process, what else can make them stale, and its change indexes.

    A cache is used by one thread, the one of the reactor.

    :ivar moment: numbers the moments between which nothing was invalidated; counted
        up by whoever applies rows
    :ivar expansions: names in the ``caches`` stream that stand for many caches, besides
        those of the product
    :ivar effects: what rows of streams do, by stream and kind of row, besides what the
        streams themselves declare
    :ivar effects_version: counts those of expansions and of effects, for whoever plans by them
    """

    def __init__(self, runtime: CacheRuntime) -> None:
        self.runtime = runtime
        self.moment = 0
        self.expansions: dict[str, Expansion] = {}
        self.effects: dict[tuple[str, str], Effects] = {}
        self.effects_version = 0
        self.indexes: dict[tuple[str, str], ChangeIndex] = {}
        self._cached: list[Cached] = []
        self._names: set[str] = set()
        self._opened: dict[Declaration, None] = {}
        #: Caches whose objects are gone: those may be collected in any thread, at any moment.
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
        """Keep what a function returns; for plain ones, those that return Deferreds, and coroutines.

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

        Arguments are strings, numbers, booleans or None. What is returned is shared
        by all callers: do not change it. Errors are not kept.

        :param name: of the cache; the function's when None
        :param tree: entries can be made stale by the first arguments alone, at no more cost
        :param groups: by which expansions can mean this cache
        :param by_name: somebody calls ``invalidate(name, …)``
        :param immutable: what it returns never changes
        :raises BadCache: what is said makes no sense, at the latest when it is first used
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
        :param many: the parameter that takes many, in the place where ``single`` takes one;
            the function returns a mapping from each to its result
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
        """Declare what more the rows of a stream do.

        :param effects: what each row does
        :param kind: of the rows, in a stream whose rows have kinds
        :raises SynreplError: what :meth:`accept_only` was given does not accept them
        """
        self._accept_rows(stream, kind)
        self.effects[stream, kind] = (*self.effects.get((stream, kind), ()), *effects)
        self._has_effects(effects)

    def _has_effects(self, effects: Effects) -> None:
        self.effects_version += 1
        for effect in effects:
            if isinstance(effect, Invalidates):  # nobody has heeded such rows so far
                for cache in self.matching(effect.cache):
                    cache.clear()

    def index(self, stream: str, name: str, entries: int = 10_000) -> ChangeIndex:
        """The change index of that name, made when it is first asked for.

        :param stream: whose tokens it is about (of streams that are numbered together,
            the one that gives the numbers)
        :param entries: entities that it remembers at most, when it is made now
        """
        found = self.indexes.get((stream, name))
        if found is None:
            found = self.indexes[stream, name] = ChangeIndex(name, entries)
        return found

    def is_declared(self, name: str) -> bool:
        """Whether a cache of that name is declared, or has been open."""
        return name in self._names or name in self._by_name

    @property
    def declarations(self) -> Iterator[Declaration]:
        """All that was declared, or opened, once each; one name may have several.

        :raises BadCache: a declaration makes no sense
        """
        yield from dict.fromkeys(cached.declaration for cached in self._cached) | self._opened

    def accept_only(
        self,
        accept: Callable[[Declaration], object],
        accept_rows: Callable[[str, str], object] = lambda stream, kind: None,
    ) -> None:
        """Have ``accept(declaration)`` called for all declared and for each that is opened later.

        What it raises is raised here, or later where the cache is opened.

        :param accept_rows: called in the same way with the stream and the kind of rows of
            which effects are declared
        """
        for stream, kind in self.effects:
            accept_rows(stream, kind)
        for declared in self.declarations:
            accept(declared)
        self._accept, self._accept_rows = accept, accept_rows

    # -- open caches ------------------------------------------------------------------

    def open(self, declaration: Declaration, loader: Callable[[], Call | None]) -> Cache:
        """A new cache, known by its name from now on.

        :raises SynreplError: what :meth:`accept_only` was given does not accept it
        """
        self._accept(declaration)
        self._bury()
        self._opened[declaration] = None
        cache = Cache(declaration, self.runtime.seconds, lambda: self.moment, loader)
        self._by_name[cache.name] = (*self.named(cache.name), cache)
        for group in declaration.groups:
            self._by_group[group] = (*self._by_group.get(group, ()), cache)
        return cache

    def close(self, cache: Cache) -> None:
        """Forget a cache, for its object is gone; its counts stay. Any thread may call this."""
        self._closed.append(cache)

    def _bury(self) -> None:
        """Forget what was closed."""
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
        """The open caches of a name: none, one, or one per object."""
        return self._by_name.get(name, ())

    def matching(self, target: str | Group) -> tuple[Cache, ...]:
        """The open caches of a name or of a group."""
        if isinstance(target, Group):
            return self._by_group.get(target.name, ())
        return self._by_name.get(target, ())

    def __iter__(self) -> Iterator[Cache]:
        """All open caches."""
        self._bury()
        for caches in self._by_name.values():
            yield from caches

    def invalidate(self, name: str, key: Key | None) -> None:
        """Entries of the caches of a name are stale; see :meth:`.Cache.invalidate`."""
        for cache in self.named(name):
            cache.invalidate(key)

    def clear(self) -> None:
        """Everything that can change is stale."""
        for cache in self:
            if not cache.declaration.immutable:
                cache.clear()

    def stats(self) -> dict[str, dict[str, int]]:
        """What each name has counted, and its size now."""
        self._bury()
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
