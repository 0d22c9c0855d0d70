"""Change indexes: when entities last changed, so that unchanged results need not be recomputed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum

from sortedcontainers import SortedDict

from synrepl.core.errors import InputError
from synrepl.core.tokens import Token
from synrepl.streams.effects import SCALARS

#: Something that changes, such as a room or a user: a JSON scalar. Values that are equal
#: in Python, such as ``1`` and ``true``, are one entity.
Entity = Hashable


class BadEntity(InputError):
    """change index {index!r} keeps account of strings, numbers, booleans and null, not of {given}"""


class TooFewEntries(InputError):
    """change index {index!r} needs room for at least one entity, not {given}"""


class HasChanged(Enum):
    """Whether an entity has changed."""

    YES = "yes"
    NO = "no"
    #: Unknown, because it is too long ago: treat it as changed.
    MAYBE = "maybe"


class ChangeIndex:
    """The last token at which each entity changed, for the most recently changed entities.

    All changes above the *horizon* are known, and none at or below it. The horizon
    only rises: when entities are dropped for lack of space, and when it is not known
    what changed. So the answer is never NO for an entity that did change, and above
    the horizon all answers are exact.

    Tokens of several writers arrive in any order. A change costs O(log n).

    :param name: its name in effects (:class:`~synrepl.streams.effects.Marks`)
    :param entries: maximum number of entities
    :raises TooFewEntries: it is below 1
    """

    def __init__(self, name: str, entries: int) -> None:
        if entries < 1:
            raise TooFewEntries(index=name, given=entries)
        self.name = name
        self.entries = entries
        self._begun = False
        self._floor: Token = 0
        self._last: dict[Entity, Token] = {}
        #: By token, the entities that last changed there, in order of arrival.
        self._at: SortedDict = SortedDict()

    def __len__(self) -> int:
        """Number of entities in the index."""
        return len(self._last)

    @property
    def horizon(self) -> Token | None:
        """Changes at or below it are unknown; None before :meth:`begin`, when all are unknown."""
        return self._floor if self._begun else None

    # -- recording changes -------------------------------------------------------------

    def begin(self, token: Token) -> None:
        """Declare that every change above ``token`` is recorded.

        It is called again when changes up to ``token`` may have been missed; a lower
        token than before has no effect.
        """
        self._begun = True
        self.all_changed(token)

    def changed(self, entity: Entity, token: Token) -> None:
        """Record that an entity changed at ``token``.

        :raises BadEntity: it is not a JSON scalar
        """
        self._check(entity)
        before = self._last.get(entity, self._floor)
        if token <= before:
            return
        if before > self._floor:
            self._forget(entity, before)
        self._last[entity] = token
        self._at.setdefault(token, {})[entity] = None
        while len(self._last) > self.entries:
            self._drop_lowest()

    def all_changed(self, token: Token) -> None:
        """Record that any entity may have changed at or below ``token``."""
        self._floor = max(self._floor, token)
        while self._at and self._at.peekitem(0)[0] <= self._floor:
            self._drop_lowest()

    # -- queries ----------------------------------------------------------------

    def has_changed(self, entity: Entity, since: Token) -> HasChanged:
        """Whether an entity has changed above ``since``.

        :raises BadEntity: it is not a JSON scalar
        """
        self._check(entity)
        return self._answer(self._last.get(entity, 0), since)

    def changed_among(self, entities: Iterable[Entity], since: Token) -> list[Entity]:
        """Those of ``entities`` that have, or may have, changed above ``since``, in the given order.

        :raises BadEntity: one is not a JSON scalar
        """
        return [
            entity for entity in entities if self.has_changed(entity, since) is not HasChanged.NO
        ]

    def any_since(self, since: Token) -> HasChanged:
        """Whether anything at all has changed above ``since``."""
        return self._answer(self._at.peekitem()[0] if self._at else 0, since)

    def all_since(self, since: Token) -> list[Entity] | None:
        """All entities that changed above ``since``, in order of their last change.

        :returns: None when that is unknown, because ``since`` is below the horizon
        """
        if not self._knows(since):
            return None
        tokens = self._at.irange(since, inclusive=(False, True))
        return [entity for token in tokens for entity in self._at[token]]

    def count_since(self, since: Token) -> int | None:
        """Number of tokens above ``since`` at which entities last changed; costs O(log n).

        :returns: None when ``since`` is below the horizon
        """
        return len(self._at) - self._at.bisect_right(since) if self._knows(since) else None

    # -- internals -------------------------------------------------------------------

    def _knows(self, since: Token) -> bool:
        return self._begun and since >= self._floor

    def _answer(self, last: Token, since: Token) -> HasChanged:
        if self._begun and last > since:
            return HasChanged.YES
        return HasChanged.NO if self._knows(since) else HasChanged.MAYBE

    def _forget(self, entity: Entity, token: Token) -> None:
        there = self._at[token]
        del there[entity]
        if not there:
            del self._at[token]

    def _drop_lowest(self) -> None:
        """Drop all entities of the lowest token, because the horizon cannot lie between them."""
        token, entities = self._at.popitem(0)
        self._floor = max(self._floor, token)
        for entity in entities:
            del self._last[entity]

    def _check(self, entity: Entity) -> None:
        # NaN is not JSON, and would never be found again.
        if type(entity) not in SCALARS or entity != entity:
            raise BadEntity(index=self.name, given=repr(entity)[:100])
