"""When entities last changed: so that what is unchanged need not be computed again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import Enum

from sortedcontainers import SortedDict

from synrepl.core.errors import InputError
from synrepl.core.tokens import Token
from synrepl.streams.effects import SCALARS

#: What changes, such as a room or a user: a JSON scalar. Values that Python takes for
#: equal, such as ``1`` and ``true``, are one entity.
Entity = Hashable


class BadEntity(InputError):
    """change index {index!r} keeps account of strings, numbers, booleans and null, not of {given}"""


class TooFewEntries(InputError):
    """change index {index!r} needs room for at least one entity, not {given}"""


class HasChanged(Enum):
    """Whether something has changed."""

    YES = "yes"
    NO = "no"
    #: It is too long ago to know: take it for changed.
    MAYBE = "maybe"


class ChangeIndex:
    """The last token at which each entity changed, for the entities that changed last.

    Everything above the *horizon* is known, and nothing at or below it. The
    horizon only rises: with what is dropped for want of room, and when it is
    not known what has changed. So an answer is never NO for something that did
    change, and above the horizon all answers are exact.

    Tokens of several writers come in any order. A change costs O(log n).

    :param name: as effects call it (:class:`~synrepl.streams.effects.Marks`)
    :param entries: how many entities are remembered at most
    :raises TooFewEntries: none could be
    """

    def __init__(self, name: str, entries: int) -> None:
        if entries < 1:
            raise TooFewEntries(index=name, given=entries)
        self.name = name
        self.entries = entries
        self._begun = False
        self._floor: Token = 0
        self._last: dict[Entity, Token] = {}
        #: The entities whose last change was at a token, in the order in which they came.
        self._at: SortedDict = SortedDict()

    def __len__(self) -> int:
        """How many entities are remembered."""
        return len(self._last)

    @property
    def horizon(self) -> Token | None:
        """Nothing is known at or below it; None before :meth:`begin`: nothing is known at all."""
        return self._floor if self._begun else None

    # -- what changes -------------------------------------------------------------

    def begin(self, token: Token) -> None:
        """From now on every change above ``token`` is told, or has been already.

        Called again when changes may have been missed up to ``token``; a lower
        one than before changes nothing.
        """
        self._begun = True
        self.all_changed(token)

    def changed(self, entity: Entity, token: Token) -> None:
        """An entity changed at ``token``.

        :raises BadEntity: it is no JSON scalar
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
        """Everything, or nobody knows what, changed at or below ``token``."""
        self._floor = max(self._floor, token)
        while self._at and self._at.peekitem(0)[0] <= self._floor:
            self._drop_lowest()

    # -- questions ----------------------------------------------------------------

    def has_changed(self, entity: Entity, since: Token) -> HasChanged:
        """Whether an entity has changed above ``since``.

        :raises BadEntity: it is no JSON scalar
        """
        self._check(entity)
        return self._answer(self._last.get(entity, 0), since)

    def changed_among(self, entities: Iterable[Entity], since: Token) -> list[Entity]:
        """Those of ``entities`` that have, or may have, changed above ``since``, as they were given.

        :raises BadEntity: one is no JSON scalar
        """
        return [each for each in entities if self.has_changed(each, since) is not HasChanged.NO]

    def any_since(self, since: Token) -> HasChanged:
        """Whether anything at all has changed above ``since``."""
        return self._answer(self._at.peekitem()[0] if self._at else 0, since)

    def all_since(self, since: Token) -> list[Entity] | None:
        """All that has changed above ``since``, by the token of its last change, ascending.

        :returns: None when that is not known: ``since`` lies below the horizon
        """
        if not self._knows(since):
            return None
        tokens = self._at.irange(since, inclusive=(False, True))
        return [entity for token in tokens for entity in self._at[token]]

    # -- inside -------------------------------------------------------------------

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
        """Drop all entities of the lowest token: the horizon cannot pass between them."""
        token, entities = self._at.popitem(0)
        self._floor = max(self._floor, token)
        for entity in entities:
            del self._last[entity]

    def _check(self, entity: Entity) -> None:
        # NaN is no JSON, and would never be found again.
        if type(entity) not in SCALARS or entity != entity:
            raise BadEntity(index=self.name, given=repr(entity)[:100])
