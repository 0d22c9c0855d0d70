"""The bounded map below a cache."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from cachetools import Cache, LRUCache

from synrepl.streams.effects import Key


class Entry(NamedTuple):
    """What a cache keeps for a key.

    :ivar expires: when it is too old to be used, in seconds; infinite without a TTL
    :ivar moment: which moment it was when its load began, see :class:`~.cache.Cache`
    :ivar size: in bytes, where those are bounded
    """

    value: Any
    expires: float
    moment: int
    size: int = 0


class Entries(LRUCache[Key, Entry]):
    """Entries by key, the least recently used going first.

    :param most: entries at most
    :param most_bytes: bytes at most; None for no bound
    :param evicted: told of each key that had to go to make room
    """

    def __init__(self, most: int, most_bytes: int | None, evicted: Callable[[Key], object]) -> None:
        if most_bytes is None:
            super().__init__(most)
        else:
            super().__init__(most_bytes, getsizeof=attrgetter("size"))
        self._most = most
        self._evicted = evicted

    def store(self, key: Key, entry: Entry) -> bool:
        """Keep an entry; False when it alone is larger than all of them may be."""
        if entry.size > self.maxsize:
            return False
        while len(self) >= self._most and key not in self:
            self.popitem()
        self[key] = entry
        return True

    def peek(self, key: Key) -> Entry | None:
        """The entry, which does not count as a use of it."""
        return Cache.__getitem__(self, key) if key in self else None

    def popitem(self) -> tuple[Key, Entry]:
        """Make room."""
        key, entry = super().popitem()
        self._evicted(key)
        return key, entry
