"""The definition of a stream, as data.

The table, typed rows, wire shapes, publisher, follower, status and metrics of a
stream all derive from its :class:`Stream`. Synapse's streams and those that users
declare are made in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from synrepl.core.tokens import Token
from synrepl.streams.effects import Effects
from synrepl.streams.row import Row


class Generation(StrEnum):
    """A generation of Synapse releases, by the row shapes that they use; the oldest first."""

    OLDEST = "oldest"  # Synapse up to 1.8, seen in 1.0
    LEGACY = "legacy"  # 1.9 to 1.12, seen in 1.11
    TRANSITIONAL = "transitional"  # 1.13 to 1.21, seen in 1.20
    MODERN = "modern"  # 1.22 to 1.6x over TCP, seen in 1.43
    CURRENT = "current"  # today's, over Redis

    @classmethod
    def since(cls, first: Generation) -> frozenset[Generation]:
        """``first`` and all later generations."""
        every = list(cls)
        return frozenset(every[every.index(first) :])

    @classmethod
    def until(cls, last: Generation) -> frozenset[Generation]:
        """``last`` and all earlier generations."""
        every = list(cls)
        return frozenset(every[: every.index(last) + 1])


#: The key of ``Stream.kinds`` for a stream whose rows carry no kind on the wire.
UNTAGGED = ""

ALL_GENERATIONS = frozenset(Generation)


@dataclass(frozen=True, slots=True)
class Stream:
    """The definition of one stream.

    :ivar name: its name on the wire, and of its table
    :ivar kinds: row class by kind: one entry under :data:`UNTAGGED`, or several
        that are sent as ``[kind, [cells…]]``
    :ivar shapes: by generation and kind, the columns on the wire, in order;
        a missing generation has every column in the order of the class
    :ivar generations: the generations whose peers know the stream
    :ivar counts_down: stream IDs are −1, −2, … (the token is the ID negated)
    :ivar in_memory: kept only by the process of its one writer, and lost with it
    :ivar unordered: rows commute, and real servers repeat and reorder them, so a
        follower applies every row, whatever its token
    :ivar numbered_with: another stream whose sequence also gives this one its IDs:
        real servers number the two together, and their workers keep one position
        for both
    :ivar ephemeral: facts are trimmed once every follower has processed them
    :ivar effects: by row class, the effects of a row on caches and change indexes
    """

    name: str
    kinds: Mapping[str, type[Row]]
    shapes: Mapping[Generation, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    generations: frozenset[Generation] = ALL_GENERATIONS
    counts_down: bool = False
    in_memory: bool = False
    unordered: bool = False
    numbered_with: str | None = None
    ephemeral: bool = False
    effects: Mapping[type[Row], Effects] = field(default_factory=dict)

    @property
    def tagged(self) -> bool:
        """Whether rows carry their kind on the wire."""
        return UNTAGGED not in self.kinds

    def stream_id(self, token: Token) -> int:
        """The ID in the table of the fact at ``token`` (the rule is its own inverse)."""
        return -token if self.counts_down else token

    def shape(self, generation: Generation, kind: str) -> tuple[str, ...]:
        """The columns of a row of ``kind`` on the wire of ``generation``, in order."""
        by_kind = self.shapes.get(generation)
        if by_kind is None or kind not in by_kind:
            return self.kinds[kind].__struct_fields__
        return by_kind[kind]


def numbered_together(streams: Iterable[Stream]) -> dict[str, frozenset[str]]:
    """By stream, the group of streams that share its sequence; streams of their own are left out."""
    owners = {stream.name: stream.numbered_with or stream.name for stream in streams}
    groups: dict[str, set[str]] = {}
    for name, owner in owners.items():
        groups.setdefault(owner, {owner}).add(name)
    return {
        name: frozenset(group)
        for group in groups.values()
        if len(group) > 1
        for name in group
        if name in owners
    }


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One fact: its token, the name of its writer, and any number of rows."""

    token: Token
    writer: str
    rows: tuple[Row, ...]
