"""Effects, ordered so that one pass over a row does all that they say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from synrepl.caches.changes import BadEntity
from synrepl.caches.registry import Caches
from synrepl.core.tokens import Token
from synrepl.streams.effects import Effects, Group, Invalidates, Key


class EffectsPlan(NamedTuple):
    """What one class of rows does, or one expansion.

    :ivar invalidates: each function that gives keys, with the caches that it gives them for
    :ivar marks: each function that gives entities, with the change indexes
    """

    invalidates: tuple[tuple[Callable[[Any], Iterable[Key | None]], tuple[str | Group, ...]], ...]
    marks: tuple[tuple[Callable[[Any], Iterable[Any]], tuple[str, ...]], ...]

    @property
    def targets(self) -> set[str | Group]:
        """The caches and groups of caches that it makes stale."""
        return {target for _, targets in self.invalidates for target in targets}

    def apply(self, caches: Caches, source: Any, stream: str, token: Token) -> Exception | None:
        """Do it for a row, or for the keys of a row.

        :param stream: whose tokens change indexes count in
        :returns: what a function raised, if one did: whatever it could have meant is stale
        """
        failed: Exception | None = None
        for keys_of, targets in self.invalidates:
            meant = [cache for target in targets for cache in caches.matching(target)]
            if not meant:
                continue
            keys: list[Key | None]
            try:
                keys = list(keys_of(source))
            except Exception as error:  # users declare such functions, too
                keys, failed = [None], error
            for cache in meant:
                for key in keys:
                    cache.invalidate(key)
        for entities_of, names in self.marks:
            for name in names:
                index = caches.indexes.get((stream, name))
                if index is None:
                    continue
                try:
                    for entity in entities_of(source):
                        if entity is None:
                            index.all_changed(token)
                        else:
                            index.changed(entity, token)
                except BadEntity:  # of whatever it is: something has changed
                    index.all_changed(token)
                except Exception as error:
                    index.all_changed(token)
                    failed = error
        return failed

    def clear(self, caches: Caches) -> None:
        """Empty every cache that it could ever touch."""
        for target in self.targets:
            for cache in caches.matching(target):
                cache.clear()


def plan_of(effects: Effects) -> EffectsPlan:
    """The plan of some effects."""
    invalidates: dict[Any, list[str | Group]] = {}
    marks: dict[Any, list[str]] = {}
    for effect in effects:
        if isinstance(effect, Invalidates):
            invalidates.setdefault(effect.keys, []).append(effect.cache)
        else:
            marks.setdefault(effect.entities, []).append(effect.index)
    return EffectsPlan(
        tuple((keys, tuple(targets)) for keys, targets in invalidates.items()),
        tuple((entities, tuple(names)) for entities, names in marks.items()),
    )
