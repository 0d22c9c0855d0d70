"""Random samples of cache entries, read without counting as use."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from random import Random
from typing import Any, NamedTuple

from synrepl.caches.cache import Cache
from synrepl.caches.entries import Entry
from synrepl.streams.effects import Key

#: Maximum length of a part of a key in a report, in characters.
LONGEST_PART = 200


class EntryLocation(NamedTuple):
    """The cache and key of an entry, which may have been dropped."""

    cache: Cache
    key: Key

    def entry(self, now: float) -> Entry | None:
        """The entry, or None if it was dropped or has expired.

        :param now: time of the caches' clock, in seconds
        """
        entry = self.cache.entries.peek(self.key)
        return None if entry is None or entry.expires <= now else entry

    def printable_key(self) -> list[Any]:
        """The key as JSON values for a report."""
        return [_printable(part) for part in self.key]


def pick(caches: Iterable[Cache], count: int, random: Random) -> list[EntryLocation]:
    """Pick up to ``count`` entries, each with the same probability.

    Iterates over the keys of the caches, and copies only those it picks.
    """
    open_now = list(caches)
    total = sum(len(cache.entries) for cache in open_now)
    numbers = sorted(random.sample(range(total), min(count, total)), reverse=True)
    picked: list[EntryLocation] = []
    first = 0
    for cache in open_now:
        size, keys, passed = len(cache.entries), iter(cache.entries), first
        while numbers and numbers[-1] < first + size:
            number = numbers.pop()
            picked.append(EntryLocation(cache, next(islice(keys, number - passed, None))))
            passed = number + 1
        first += size
    return picked


def describe(value: object) -> str:
    """The type and length of a value, without its contents."""
    kind = "None" if value is None else type(value).__qualname__
    try:
        return f"{kind} of {len(value)}"  # type: ignore[arg-type]
    except Exception:  # it has no length, or a user's __len__ fails
        return kind


def are_equal(one: object, other: object) -> bool | None:
    """Whether two values are equal; None when they cannot be compared."""
    if one is other:
        return True
    if type(one).__eq__ is object.__eq__ and type(other).__eq__ is object.__eq__:
        return None
    try:
        return bool(one == other)
    except Exception:  # a user's __eq__ may raise, or return a value without a truth value
        return None


def _printable(part: Any) -> Any:
    """A part of a key, as a JSON value or as text."""
    if isinstance(part, str):
        text = part.encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= LONGEST_PART else text[:LONGEST_PART] + "…"
    if isinstance(part, int) and part.bit_length() > 63:
        return hex(part)[:LONGEST_PART]
    return part
