"""What rows do to caches, as data.

A row of a stream may say that entries of caches are stale, or that something
has changed that a change index keeps account of. Both are declared: beside the
stream, by the class of the row (``Stream.effects``), or for a name in the
``caches`` stream that stands for many caches (:class:`Expansion`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from synrepl.core.errors import InputError

#: The arguments of a cached function: JSON scalars. Part of them, from the first on,
#: stands for all entries that begin so, the empty key for the whole cache.
Key = tuple[Any, ...]

#: What a key, or an entity of a change index, consists of: what a row can name.
SCALARS = frozenset({str, int, float, bool, type(None)})


class BadKeys(InputError):
    """{what} needs {needed}, not {given}"""


@dataclass(frozen=True, slots=True)
class Group:
    """All caches that say they belong to a group, whatever their names."""

    name: str


@dataclass(frozen=True, slots=True)
class Invalidates:
    """Entries of one cache become stale.

    :ivar cache: its name, or a group of caches
    :ivar keys: the keys that a row names; None among them is the whole cache.
        Effects that share one function have it called once per row.
    """

    cache: str | Group
    keys: Callable[[Any], Iterable[Key | None]]


@dataclass(frozen=True, slots=True)
class Marks:
    """Entities of one change index have changed at the row's token.

    :ivar entities: what has changed, such as a room; None among them is everything
    """

    index: str
    entities: Callable[[Any], Iterable[Any]]


#: What one row does, or one set of keys.
Effects = tuple[Invalidates | Marks, ...]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A name in the ``caches`` stream that stands for entries of many caches.

    :ivar effects: their functions are given the keys of the row, a list of scalars
    :ivar least: how many keys there must be
    """

    name: str
    effects: Effects
    least: int = 1

    def check(self, keys: list[Any] | None) -> list[Any]:
        """The keys, when they are what the name needs.

        :raises BadKeys: there are none (null), too few, or one is no scalar
        """
        if keys is None or len(keys) < self.least or not scalar(keys):
            raise BadKeys(
                what=f"cache name {self.name!r}",
                needed=f"a list of at least {self.least} strings or numbers",
                given=repr(keys)[:100],
            )
        return keys


def scalar(keys: Collection[Any]) -> bool:
    """Whether all keys are JSON scalars; JSON has no NaN and no infinity."""
    types = set(map(type, keys))
    if float in types and not all(isfinite(key) for key in keys if type(key) is float):
        return False
    return types <= SCALARS


def whole(_: object) -> tuple[None]:
    """The keys of an effect on a whole cache."""
    return (None,)


@cache  # effects that share a function have it called once per row
def columns_key(*columns: str) -> Callable[[Any], Iterable[Key]]:
    """The key that some columns of a row make, in that order; no columns are the whole cache."""
    return lambda row: (tuple(getattr(row, column) for column in columns),)


def entity(column: str) -> Callable[[Any], Iterable[Any]]:
    """The entity of a change index that a column of a row names."""
    return lambda row: (getattr(row, column),)
