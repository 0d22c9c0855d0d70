"""Effects grouped by function, so that each function runs once per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from synrepl.caches.changes import BadEntity
from synrepl.caches.registry import Caches
from synrepl.core.tokens import Token
from synrepl.streams.effects import Effects, Group, Invalidates, Key


class EffectsPlan(NamedTuple):
    """The effects of one row class, or of one expansion.

    :ivar invalidates: each function that returns keys, with the caches that they belong to
    :ivar marks: each function that returns entities, with the change indexes that they belong to
    """

    invalidates: tuple[tuple[Callable[[Any], Iterable[Key | None]], tuple[str | Group, ...]], ...]
    marks: tuple[tuple[Callable[[Any], Iterable[Any]], tuple[str, ...]], ...]

    @property
    def targets(self) -> set[str | Group]:
        """The caches and groups of caches that the plan can invalidate."""
        return {target for _, targets in self.invalidates for target in targets}

    def limited_to(self, caches: Caches, stream: str) -> EffectsPlan | None:
        """The plan without caches and change indexes that this process does not have.

        None if nothing is left, as for most streams in most processes: their rows need no look-ups.

        :param stream: the stream in whose tokens change indexes count
        """
        invalidates = [
            (keys_of, tuple([each for each in targets if caches.has_opened(each)]))
            for keys_of, targets in self.invalidates
        ]
        marks = [
            (entities_of, tuple([each for each in names if (stream, each) in caches.indexes]))
            for entities_of, names in self.marks
        ]
        limited = EffectsPlan(
            tuple([each for each in invalidates if each[1]]),
            tuple([each for each in marks if each[1]]),
        )
        return limited if limited.invalidates or limited.marks else None

    def apply(self, caches: Caches, source: Any, stream: str, token: Token) -> Exception | None:
        """Apply the effects of a row, or of the keys of a row.

        :param stream: the stream in whose tokens change indexes count
        :returns: the exception of a function that failed, if any; everything it could have named
            is invalidated then
        """
        failed: Exception | None = None
        for keys_of, targets in self.invalidates:
            targeted = [cache for target in targets for cache in caches.matching(target)]
            if not targeted:
                continue
            keys: list[Key | None]
            try:
                keys = list(keys_of(source))
            except Exception as error:  # such functions may be declared by users
                keys, failed = [None], error
            for cache in targeted:
                cache.invalidate_several(keys)
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
                except BadEntity:  # the entity is unusable, but something has changed
                    index.all_changed(token)
                except Exception as error:
                    index.all_changed(token)
                    failed = error
        return failed

    def clear(self, caches: Caches) -> None:
        """Clear every cache that the plan can invalidate."""
        for target in self.targets:
            for cache in caches.matching(target):
                cache.clear()


def plan_of(effects: Effects) -> EffectsPlan:
    """Build the plan of some effects."""
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
