"""One cache: its entries, the loads under way, and what makes both stale.

The rule that keeps a cache coherent (invariant R4 of ``docs/architecture.md``):
an invalidation takes the entry *and* the load that is under way. Whoever waits
for that load asked before the invalidation and still gets its value, but it is
never stored, and whoever asks from now on begins another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from synrepl.caches.entries import Entries, Entry
from synrepl.caches.load import Load
from synrepl.core.errors import InputError
from synrepl.streams.effects import Key, scalar


class UnusableKey(InputError):
    """cache {cache!r} cannot have the key {key}: arguments must be strings, numbers, booleans or None, which a row can name"""


class BadCache(InputError):
    """cache {cache!r} cannot be declared like this: {reason}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What is said about a cache where it is declared.

    :ivar arity: the number of arguments that make its key
    :ivar max_entries: how many entries it keeps
    :ivar max_bytes: how many bytes, as ``size_of`` gives them; None for no bound
    :ivar ttl_s: seconds after which an entry is loaded again; None for never
    :ivar tree: keep account of the entries below each part of a key; without it, a
        part of a key empties the whole cache
    :ivar groups: names of groups, by which expansions can mean it
    :ivar by_name: rows of the ``caches`` stream name it
    :ivar immutable: what it holds never changes
    """

    name: str
    arity: int
    max_entries: int
    max_bytes: int | None = None
    size_of: Callable[[Any], int] | None = None
    ttl_s: float | None = None
    tree: bool = False
    groups: frozenset[str] = frozenset()
    by_name: bool = False
    immutable: bool = False

    def __post_init__(self) -> None:
        for wrong, reason in (
            (
                not self.name or not self.name.isprintable() or " " in self.name,
                "its name has to be a word",
            ),
            (self.max_entries < 1, "max_entries has to be 1 or more"),
            (self.max_bytes is not None and self.max_bytes < 1, "max_bytes has to be 1 or more"),
            (
                (self.max_bytes is None) != (self.size_of is None),
                "max_bytes and size_of need each other: size_of(value) says how many bytes it takes",
            ),
            (self.ttl_s is not None and self.ttl_s <= 0, "ttl_s has to be above 0"),
            (self.immutable and self.by_name, "what is immutable is not invalidated by name"),
        ):
            if wrong:
                raise BadCache(cache=self.name, reason=reason)


class Cache:
    """The state of one cache.

    :param seconds: the time, for entries that expire
    :param moment: numbers the moments between which nothing was invalidated, to tell
        afterwards what an entry may have missed
    :param loader: gives the function that loads, or None once its object is gone
    """

    def __init__(
        self,
        declaration: Declaration,
        seconds: Callable[[], float],
        moment: Callable[[], int],
        loader: Callable[[], Callable[..., Any] | None],
    ) -> None:
        self.declaration = declaration
        self.loader = loader
        self.name = declaration.name
        self.entries = self._no_entries()
        self.loads: dict[Key, Load] = {}
        self._arity = declaration.arity
        self._ttl_s = declaration.ttl_s
        self._seconds = seconds
        self._moment = moment
        #: Full keys below each proper part of a key; only in a tree.
        self._below: dict[Key, set[Key]] = {}
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expirations = 0
        self.invalidations = 0

    def find(self, key: Key) -> Entry | None:
        """The entry, if there is one that may be used.

        :raises UnusableKey: no row could ever name this key
        """
        try:
            entry = self.entries[key]
        except KeyError:
            return None
        except TypeError:
            raise UnusableKey(cache=self.name, key=repr(key)[:100]) from None
        if self._ttl_s is not None and entry.expires <= self._seconds():
            self.expirations += 1
            self._drop(key)
            return None
        self.hits += 1
        return entry

    # -- loading --------------------------------------------------------------------

    def begin(self, key: Key) -> Load:
        """A key is going to be loaded.

        :raises UnusableKey: no row could ever name this key
        """
        if not scalar(key):
            raise UnusableKey(cache=self.name, key=repr(key)[:100])
        self.misses += 1
        load = self.loads[key] = Load(self._moment())
        return load

    def loaded(self, key: Key, load: Load, value: Any) -> None:
        """A load has brought a value: kept, unless it was made stale meanwhile."""
        if self.loads.get(key) is load:
            del self.loads[key]
            try:
                self._store(key, value, load.moment)
            except Exception as error:  # of the user's size_of
                load.fail(error)
        load.succeed(value)

    def failed(self, key: Key, load: Load, error: BaseException) -> None:
        """A load has failed; the next one to ask tries again."""
        if self.loads.get(key) is load:
            del self.loads[key]
        load.fail(error)

    def _store(self, key: Key, value: Any, moment: int) -> None:
        expires = inf if self._ttl_s is None else self._seconds() + self._ttl_s
        size_of = self.declaration.size_of
        size = 0 if size_of is None else size_of(value)
        if not self.entries.store(key, Entry(value, expires, moment, size)):
            if key in self.entries:
                self._drop(key)
        elif self.declaration.tree:
            for length in range(1, len(key)):
                self._below.setdefault(key[:length], set()).add(key)

    def counts(self) -> dict[str, int]:
        """What has happened so far, and the size now; ``bytes`` where they are bounded."""
        return {
            "size": len(self.entries),
            "bytes": 0 if self.declaration.max_bytes is None else int(self.entries.currsize),
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "expirations": self.expirations,
            "invalidations": self.invalidations,
        }

    # -- going stale ----------------------------------------------------------------

    def invalidate(self, key: Key | None) -> None:
        """An entry is stale: drop it, and do not store what is being loaded.

        :param key: a part of a key, from the first argument on, means all entries
            that begin so; the empty key, or None, means all. Of a key that is too
            long (a program of another version names one argument more) the part
            that is known counts. One that no entry can have means all: whoever
            wrote it knows of something that is stale.
        """
        self.invalidations += 1
        if not key or type(key) is not tuple or not scalar(key[: self._arity]):
            self.clear()
        elif len(key) >= self._arity:
            if len(key) > self._arity:
                key = key[: self._arity]
            if self.loads:
                self.loads.pop(key, None)
            if key in self.entries:
                self._drop(key)
        elif self.declaration.tree:
            for full in tuple(self._below.get(key, ())):
                self._drop(full)
            for full in [full for full in self.loads if full[: len(key)] == key]:
                del self.loads[full]
        else:
            self.clear()

    def clear(self) -> None:
        """All entries are stale; takes no longer for many than for a few."""
        self.entries = self._no_entries()
        self.loads.clear()
        self._below.clear()

    def _no_entries(self) -> Entries:
        return Entries(self.declaration.max_entries, self.declaration.max_bytes, self._evicted)

    def _drop(self, key: Key) -> None:
        del self.entries[key]
        if self._below:
            self._forget(key)

    def _evicted(self, key: Key) -> None:
        self.evictions += 1
        if self._below:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        """A key is gone; in a tree, from all its parts."""
        for length in range(1, len(key)):
            part = key[:length]
            full = self._below[part]
            full.discard(key)
            if not full:
                del self._below[part]
