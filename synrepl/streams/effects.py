"""Effects of rows on caches and change indexes, as data.

A row can invalidate cache entries, or mark entities of a change index as changed.
Effects are declared by row class in the stream (``Stream.effects``), or for a name in
the ``caches`` stream that stands for many caches (:class:`Expansion`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from synrepl.core.errors import InputError

#: The arguments of a cached function: JSON scalars. A prefix stands for all entries that
#: begin with it, the empty key for the whole cache.
Key = tuple[Any, ...]

#: The types in keys and of entities of change indexes: those that a row can name.
SCALARS = frozenset({str, int, float, bool, type(None)})


class BadKeys(InputError):
    """{what} needs {needed}, not {given}"""


@dataclass(frozen=True, slots=True)
class Group:
    """All caches that declare to belong to a group, whatever their names."""

    name: str


@dataclass(frozen=True, slots=True)
class Invalidates:
    """Invalidates entries of one cache.

    :ivar cache: its name, or a group of caches
    :ivar keys: the stale keys of a row; None among them means the whole cache.
        A function that several effects share is called once per row.
    """

    cache: str | Group
    keys: Callable[[Any], Iterable[Key | None]]


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks entities of one change index as changed at the row's token.

    :ivar entities: the changed entities of a row, such as a room; None among them means all
    """

    index: str
    entities: Callable[[Any], Iterable[Any]]


#: The effects of one row, or of one set of keys.
Effects = tuple[Invalidates | Marks, ...]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A name in the ``caches`` stream that stands for entries of many caches.

    :ivar effects: their functions take the keys of the row, a list of scalars
    :ivar least: minimum number of keys
    """

    name: str
    effects: Effects
    least: int = 1

    def check(self, keys: list[Any] | None) -> list[Any]:
        """Return the keys if they are valid for this name.

        :raises BadKeys: they are null, too few, or one is not a scalar
        """
        if keys is None or len(keys) < self.least or not scalar(keys):
            raise BadKeys(
                what=f"cache name {self.name!r}",
                needed=f"a list of at least {self.least} strings or numbers",
                given=repr(keys)[:100],
            )
        return keys


def scalar(keys: Collection[Any]) -> bool:
    """Whether all keys are JSON scalars, without NaN and infinities."""
    types = set(map(type, keys))
    if float in types and not all(isfinite(key) for key in keys if type(key) is float):
        return False
    return types <= SCALARS


def whole(_: object) -> tuple[None]:
    """The keys of an effect that invalidates a whole cache."""
    return (None,)


@cache  # one function for equal columns, so that it is called once per row
def columns_key(*columns: str) -> Callable[[Any], Iterable[Key]]:
    """The key made of these columns of a row, in that order; no columns mean the whole cache."""
    return lambda row: (tuple(getattr(row, column) for column in columns),)


def entity(column: str) -> Callable[[Any], Iterable[Any]]:
    """The entity of a change index in a column of a row."""
    return lambda row: (getattr(row, column),)
