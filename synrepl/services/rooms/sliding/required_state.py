"""Which state of a room a client wants: patterns of event types and state keys.

Source: MSC4186, ``RequiredStateRequest``, and its older form of pairs with ``*``, ``$ME`` and ``$LAZY``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from synrepl.core import jsons
from synrepl.rooms import Certainty, StateKey, certainty_of
from synrepl.storage.rooms.timelines.room_entries import MEMBER

#: An event type and a state key; None stands for any.
StatePattern = tuple[str | None, str | None]

#: In the older form: any type or state key, the user who asks, and the members that are needed to show the timeline.
ANY, ME, LAZY = "*", "$ME", "$LAZY"


class MaskedState(NamedTuple):
    """Entries that match one of ``include`` and none of ``exclude``."""

    include: frozenset[StatePattern]
    exclude: frozenset[StatePattern]

    def matches(self, key: StatePattern) -> bool:
        """Whether an entry is among them."""
        return _matches(self.include, key) and not _matches(self.exclude, key)

    def hides_members(self, pattern: StatePattern) -> bool:
        """Whether none of the memberships that match a pattern is among them."""
        return _matches(self.exclude, (MEMBER, pattern[1]))


@dataclass(frozen=True, slots=True)
class RequiredState:
    """Which entries of a state are wanted.

    :ivar plain: what matches any of these
    :ivar masked: what matches any of these, too
    :ivar lazy_members: whether the memberships of those are wanted who are in the events shown
    """

    plain: frozenset[StatePattern] = frozenset()
    masked: frozenset[MaskedState] = frozenset()
    lazy_members: bool = False

    @classmethod
    def of_pairs(cls, pairs: Iterable[Sequence[str]], user_id: str) -> RequiredState:
        """Read the older form.

        With ``["*", "*"]`` everything is wanted, but of types that other pairs name only the entries that these name.
        """
        exact = {(kind, user_id if key == ME else key) for kind, key in pairs}
        lazy = (MEMBER, LAZY) in exact
        if (ANY, ANY) not in exact:
            exact.discard((MEMBER, LAZY))
            return cls(
                frozenset((_pattern(kind), _pattern(key)) for kind, key in exact),
                lazy_members=lazy,
            )
        named = {(kind, key) for kind, key in exact if ANY not in (kind, key)}
        masked = {
            MaskedState(frozenset({(None, None)}), frozenset((kind, None) for kind, _ in named))
        }
        plain: frozenset[StatePattern] = frozenset(named - {(MEMBER, LAZY)})
        if not named:
            return cls(frozenset({(None, None)}))
        return cls(plain, frozenset(masked), lazy)

    @classmethod
    def of_patterns(
        cls, include: Collection[StatePattern], exclude: Collection[StatePattern], lazy: bool
    ) -> RequiredState:
        """Read the newer form.

        With lazy members, patterns that do not name a type match no memberships.
        """
        masks = frozenset(exclude)
        wide = frozenset(each for each in include if each[0] is None) if lazy else frozenset()
        narrow = frozenset(include) - wide
        masked = set()
        if wide:
            masked.add(MaskedState(wide, masks | {(MEMBER, None)}))
        if masks and narrow:
            masked.add(MaskedState(narrow, masks))
            narrow = frozenset()
        return cls(narrow, frozenset(masked), lazy)

    def __or__(self, other: RequiredState) -> RequiredState:
        return RequiredState(
            self.plain | other.plain,
            self.masked | other.masked,
            self.lazy_members or other.lazy_members,
        )

    def matches(self, key: StateKey) -> bool:
        """Whether an entry is wanted, besides lazy members."""
        return _matches(self.plain, key) or any(each.matches(key) for each in self.masked)

    def covers(self, other: RequiredState) -> bool:
        """Whether it surely has every entry that another one has, besides lazy members."""
        return (None, None) in self.plain or (
            all(_matches(self.plain, each) for each in other.plain) and other.masked <= self.masked
        )

    def awaits_members(self, server: str) -> bool:
        """Whether it has memberships that are not known while a room is partial, besides lazy members.

        :param server: this server
        """
        return any(
            _awaits_members(pattern, server)
            for pattern in (
                *self.plain,
                *(p for each in self.masked for p in each.include if not each.hides_members(p)),
            )
        )

    @property
    def patterns(self) -> frozenset[StatePattern]:
        """Patterns of which each wanted entry matches one."""
        return self.plain.union(*(each.include for each in self.masked))

    @property
    def digest(self) -> bytes:
        """What stands for it where it is too long."""
        return blake2b(jsons.encode(self.to_json()), digest_size=12).digest()

    def to_json(self) -> list[Any]:
        """The same for the same entries."""
        masked = [[_sorted(each.include), _sorted(each.exclude)] for each in self.masked]
        return [_sorted(self.plain), sorted(masked, key=repr), self.lazy_members]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> RequiredState:
        """Read the output of :meth:`to_json`."""
        plain, masked, lazy = value
        return cls(
            _patterns(plain),
            frozenset(MaskedState(_patterns(each), _patterns(other)) for each, other in masked),
            lazy,
        )


def _matches(patterns: frozenset[StatePattern], key: StatePattern) -> bool:
    kind, state_key = key
    return (
        key in patterns
        or (kind, None) in patterns
        or (None, state_key) in patterns
        or (None, None) in patterns
    )


def _awaits_members(pattern: StatePattern, server: str) -> bool:
    kind, key = pattern
    if kind not in (None, MEMBER) or key == "":
        return False
    return key is None or certainty_of((MEMBER, key), server) is Certainty.UNKNOWN


def _order(pattern: list[str | None]) -> tuple[str, str]:
    """None before any text."""
    kind, key = pattern
    return "" if kind is None else f"={kind}", "" if key is None else f"={key}"


def _pattern(text: str) -> str | None:
    return None if text == ANY else text


def _sorted(patterns: Iterable[StatePattern]) -> list[list[str | None]]:
    return sorted(map(list, patterns), key=_order)


def _patterns(value: Iterable[Sequence[str | None]]) -> frozenset[StatePattern]:
    return frozenset((kind, key) for kind, key in value)
