"""One cache: its entries, the loads in progress, and their invalidation.

The rule that keeps a cache coherent (invariant R4 of ``docs/architecture.md``):
an invalidation removes the entry *and* the load in progress. Callers that wait for
that load made their call before the invalidation and still get its value, but the
value is never stored, and later calls begin another load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any, NoReturn

from synrepl.caches.entries import Entries, Entry
from synrepl.caches.load import Load
from synrepl.core.errors import InputError
from synrepl.streams.effects import SCALARS, Key, scalar

#: From this number of keys on, it is worth a look whether they are more than the entries.
MANY_KEYS = 20

#: Types whose values can all be in keys.
_ALWAYS_USABLE = SCALARS - {float}


class UnusableKey(InputError):
    """cache {cache!r} cannot have the key {key}: arguments must be strings, numbers, booleans or None, which a row can name"""


class BadCache(InputError):
    """cache {cache!r} cannot be declared like this: {reason}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declaration of a cache.

    :ivar arity: number of arguments that form its key
    :ivar max_entries: maximum number of entries
    :ivar max_bytes: maximum size in bytes, as measured by ``size_of``; None for no limit
    :ivar ttl_s: seconds after which an entry is loaded again; None for never
    :ivar tree: whether entries are indexed by key prefix; without the index,
        invalidating a prefix empties the whole cache
    :ivar groups: names of the groups through which expansions can invalidate it
    :ivar by_name: whether rows of the ``caches`` stream name it
    :ivar immutable: whether its values never change
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
        if not self.name or not self.name.isprintable() or " " in self.name:
            self._refuse("its name has to be a word")
        if self.max_entries < 1:
            self._refuse("max_entries has to be 1 or more")
        if self.max_bytes is not None and self.max_bytes < 1:
            self._refuse("max_bytes has to be 1 or more")
        if (self.max_bytes is None) != (self.size_of is None):
            self._refuse(
                "max_bytes and size_of need each other: size_of(value) says how many bytes it takes"
            )
        if self.ttl_s is not None and self.ttl_s <= 0:
            self._refuse("ttl_s has to be above 0")
        if self.immutable and self.by_name:
            self._refuse("what is immutable is not invalidated by name")

    def _refuse(self, reason: str) -> NoReturn:
        raise BadCache(cache=self.name, reason=reason)


class Cache:
    """The state of one cache.

    :param seconds: the clock, for entries that expire
    :param moment: the number of the current moment; it is increased by invalidations, so
        that an audit can tell which ones an entry may have missed
    :param loader: returns the loading function, or None once its object is gone
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
        #: Full keys by proper prefix; only in a tree.
        self._below: dict[Key, set[Key]] = {}
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expirations = 0
        self.invalidations = 0

    def find(self, key: Key) -> Entry | None:
        """The entry of a key, if there is one and it has not expired.

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
        """Begin to load a key.

        :raises UnusableKey: no row could ever name this key
        """
        if not scalar(key):
            raise UnusableKey(cache=self.name, key=repr(key)[:100])
        self.misses += 1
        load = self.loads[key] = Load(self._moment())
        return load

    def loaded(self, key: Key, load: Load, value: Any) -> None:
        """Finish a load with a value, which is stored unless the key was invalidated meanwhile."""
        if self.loads.get(key) is load:
            del self.loads[key]
            try:
                self._store(key, value, load.moment)
            except Exception as error:  # in the user's size_of
                load.fail(error)
        load.succeed(value)

    def failed(self, key: Key, load: Load, error: BaseException) -> None:
        """Finish a load with an error. The next call loads again."""
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

    @property
    def prefixes(self) -> int:
        """Number of key prefixes in the index of a tree, which takes memory beside the entries."""
        return len(self._below)

    def counts(self) -> dict[str, int]:
        """The counters and the current size; ``bytes`` is 0 where they are not limited."""
        return {
            "size": len(self.entries),
            "bytes": 0 if self.declaration.max_bytes is None else int(self.entries.currsize),
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "expirations": self.expirations,
            "invalidations": self.invalidations,
        }

    # -- invalidation ----------------------------------------------------------------

    def invalidate(self, key: Key | None) -> None:
        """Drop an entry, and do not store the load in progress.

        :param key: the key of an entry. A prefix invalidates all entries that begin
            with it; the empty key, or None, invalidates all. A key that is too long
            (another version of a program has one argument more) is cut to the known
            arguments. A key that no entry can have invalidates all, because its
            writer knows of something that is stale.
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

    def invalidate_several(self, keys: Sequence[Key | None]) -> None:
        """Invalidate each of some keys. Where they are more than the entries, as when a large room is joined, it looks
        at the entries rather than at the keys."""
        held = len(self.entries) + len(self.loads)
        if len(keys) < MANY_KEYS or len(keys) < held or not self._are_full(keys):
            for key in keys:
                self.invalidate(key)
            return
        self.invalidations += len(keys)
        if not held:
            return
        stale = set(keys)
        for full in [full for full in self.loads if full in stale]:
            del self.loads[full]
        for full in [full for full in self.entries if full in stale]:
            self._drop(full)

    def _are_full(self, keys: Sequence[Key | None]) -> bool:
        """Whether each key can be that of one entry."""
        if set(map(type, keys)) != {tuple}:
            return False
        full = [key for key in keys if key is not None]
        parts = chain.from_iterable(full)
        return set(map(len, full)) == {self._arity} and set(map(type, parts)) <= _ALWAYS_USABLE

    def clear(self) -> None:
        """Drop all entries, in constant time."""
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
        """Remove a dropped key from the index of prefixes."""
        for length in range(1, len(key)):
            part = key[:length]
            full = self._below[part]
            full.discard(key)
            if not full:
                del self._below[part]
