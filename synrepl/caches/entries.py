"""The bounded map of a cache's entries."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from cachetools import Cache, LRUCache

from synrepl.streams.effects import Key


class Entry(NamedTuple):
    """A cached value.

    :ivar expires: time of expiry in seconds; infinite without a TTL
    :ivar moment: moment at which its load began, see :class:`~.cache.Cache`
    :ivar size: in bytes, where those are limited
    """

    value: Any
    expires: float
    moment: int
    size: int = 0


class Entries(LRUCache[Key, Entry]):
    """Entries by key, with least-recently-used eviction.

    :param max_entries: maximum number of entries
    :param max_bytes: maximum size in bytes; None for no limit
    :param evicted: called with each evicted key
    """

    def __init__(
        self, max_entries: int, max_bytes: int | None, evicted: Callable[[Key], object]
    ) -> None:
        if max_bytes is None:
            super().__init__(max_entries)
        else:
            super().__init__(max_bytes, getsizeof=attrgetter("size"))
        self._max_entries = max_entries
        self._evicted = evicted

    def store(self, key: Key, entry: Entry) -> bool:
        """Store an entry; False if it alone exceeds the limit in bytes."""
        if entry.size > self.maxsize:
            return False
        while len(self) >= self._max_entries and key not in self:
            self.popitem()
        self[key] = entry
        return True

    def peek(self, key: Key) -> Entry | None:
        """The entry, without counting as a use of it."""
        return Cache.__getitem__(self, key) if key in self else None

    def popitem(self) -> tuple[Key, Entry]:
        """Evict the least recently used entry."""
        key, entry = super().popitem()
        self._evicted(key)
        return key, entry
