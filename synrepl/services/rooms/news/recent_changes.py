"""What has changed lately, by the positions of each writer."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from synrepl.caches.changes import ChangeIndex, HasChanged
from synrepl.core.tokens import Token
from synrepl.positions.vector import PositionVector

#: Entities that are remembered for each kind and writer.
MAX_ENTITIES = 100_000


class ChangeKind(Enum):
    """What changes, with the stream that tells it.

    Rooms are named in the first three, users in the others.
    """

    #: New events of a room, or of its current state.
    ROOM = ("room", "events")
    #: Receipts that everybody in the room is told of.
    RECEIPTS = ("receipts", "receipts")
    TYPING = ("typing", "typing")
    #: The membership of a user in any room.
    MEMBERSHIP = ("membership", "events")
    ACCOUNT_DATA = ("account_data", "account_data")
    PRESENCE = ("presence", "presence")
    TO_DEVICE = ("to_device", "to_device")
    #: Receipts that only their user is told of.
    PRIVATE_RECEIPTS = ("private_receipts", "receipts")

    def __init__(self, label: str, stream: str) -> None:
        self.label = label
        self.stream = stream


#: Changes that are named by rooms.
ROOM_KINDS = frozenset({ChangeKind.ROOM, ChangeKind.RECEIPTS, ChangeKind.TYPING})


class RecentChanges:
    """The last change of each entity, for questions that are position vectors.

    Tokens of several writers arrive in any order, and a vector may cover the higher of two. So there is a
    :class:`.ChangeIndex` for each writer, and each is exact above its horizon.

    :param entities: maximum number of entities of a kind and writer
    """

    def __init__(self, entities: int = MAX_ENTITIES) -> None:
        self._entities = entities
        self._indexes: dict[ChangeKind, dict[str, ChangeIndex]] = {kind: {} for kind in ChangeKind}

    def __len__(self) -> int:
        """Number of remembered changes."""
        return sum(len(index) for by in self._indexes.values() for index in by.values())

    # -- recording --------------------------------------------------------------------

    def begin(self, stream: str, writer: str, token: Token) -> None:
        """Record that facts of a writer at or below ``token`` may be unknown."""
        for kind in ChangeKind:
            if kind.stream == stream:
                self._index(kind, writer).begin(token)

    def changed(self, kind: ChangeKind, writer: str, token: Token, entity: str | None) -> None:
        """Record a change of an entity, or of all."""
        index = self._index(kind, writer)
        if entity is None:
            index.all_changed(token)
        else:
            index.changed(entity, token)

    def _index(self, kind: ChangeKind, writer: str) -> ChangeIndex:
        found = self._indexes[kind].get(writer)
        if found is None:
            found = self._indexes[kind][writer] = ChangeIndex(kind.label, self._entities)
        return found

    # -- queries ----------------------------------------------------------------------

    def any_since(self, kind: ChangeKind, since: PositionVector) -> bool:
        """Whether anything may have changed that ``since`` does not cover."""
        for writer, index in self._indexes[kind].items():
            if index.any_since(since[writer]) is not HasChanged.NO:
                return True
        return False

    def may_have_changed(self, kind: ChangeKind, entity: str, since: PositionVector) -> bool:
        """Whether an entity has changed, or may have."""
        for writer, index in self._indexes[kind].items():
            if index.has_changed(entity, since[writer]) is not HasChanged.NO:
                return True
        return False

    def all_since(self, kind: ChangeKind, since: PositionVector, most: int) -> set[str] | None:
        """The entities that have changed; None if that is unknown, or if they may be more than ``most``."""
        found: set[str] = set()
        for writer, index in self._indexes[kind].items():
            count = index.count_since(since[writer])
            if count is None or len(found) + count > most:
                return None
            if count:
                found.update(map(str, index.all_since(since[writer]) or ()))
        return found

    def changed_among(
        self, kind: ChangeKind, entities: Collection[str], since: PositionVector
    ) -> frozenset[str] | None:
        """Those of ``entities`` that have changed; None if that is unknown.

        It goes through the changes or through the entities, whichever are fewer.
        """
        found: set[str] = set()
        for writer, index in self._indexes[kind].items():
            token = since[writer]
            count = index.count_since(token)
            if count is None:
                return None
            if not count:
                continue
            if count <= len(entities):
                # Changes of one token are few, so their number is about that of the entities.
                found.update(str(e) for e in index.all_since(token) or () if e in entities)
            else:
                found.update(map(str, index.changed_among(entities, token)))
        return frozenset(found)
