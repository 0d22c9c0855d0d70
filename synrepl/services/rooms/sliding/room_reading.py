"""How each room of an answer is read: whole, what changed of it, or as an invitation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.sliding.connection_state import WHOLE
from synrepl.services.rooms.sliding.room_lists import LEFT
from synrepl.services.rooms.sliding.sliding_plan import RoomToRead
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.room_entries import (
    StateChanges,
    covered_tokens,
    state_changes,
)
from synrepl.storage.rooms.timelines.user_rooms import (
    UserRoom,
    joined_once,
    memberships_at,
    rooms_with_membership,
)

_JOIN = "join"
_NO_CHANGES = StateChanges((), False)


class ReadingKind(Enum):
    """How a room is read.

    :cvar STRIPPED: as an invitation, of which there is never a part
    :cvar LABELS: nothing can have changed but what the user's account data says of it
    """

    WHOLE = auto()
    CHANGES = auto()
    STRIPPED = auto()
    LABELS = auto()


@dataclass(frozen=True, slots=True)
class ReadingOfRoom:
    """How one room is read.

    :ivar changes: what changed of its state, if it is not read whole
    :ivar is_outside: whether the user was never in the room, and only sees that it is over
    """

    asked: RoomToRead
    kind: ReadingKind
    changes: StateChanges = _NO_CHANGES
    is_outside: bool = False

    @property
    def room(self) -> UserRoom:
        """The room."""
        return self.asked.room

    @property
    def is_expanded(self) -> bool:
        """Whether more events are wanted than the client has been told."""
        record = self.asked.record
        return (
            self.kind is ReadingKind.CHANGES
            and record is not None
            and self.asked.matched.rule.timeline_limit > record.depth != WHOLE
        )

    @property
    def is_from_start(self) -> bool:
        """Whether the timeline is the newest events, told or not."""
        return self.kind is ReadingKind.WHOLE or self.is_expanded

    @property
    def since(self) -> PositionVector:
        """What the client was told of events."""
        assert self.asked.since is not None
        return self.asked.since.events

    @property
    def has_changed(self) -> bool:
        """Whether there may be new events, for a client that was told of the room."""
        room, linear = self.room, self.since.linear
        newest = max(room.newest, room.state_only) if room.membership == _JOIN else 0
        return max(newest, room.stream_id) > linear


def as_of(
    txn: Transaction, user: str, to_read: Sequence[RoomToRead], upto: PositionVector
) -> list[RoomToRead]:
    """The same rooms with the user's membership as of a vector."""
    ids = [each.room.room_id for each in to_read]
    rooms = {each.room_no: each for each in rooms_with_membership(txn, user, upto, ids)}
    return [
        each._replace(matched=each.matched._replace(room=rooms.get(each.room.room_no, each.room)))
        for each in to_read
    ]


def readings(
    txn: Transaction, to_read: Sequence[RoomToRead], upto: PositionVector
) -> list[ReadingOfRoom]:
    """Decide how rooms are read."""
    found: list[ReadingOfRoom] = []
    by_since: dict[PositionVector, list[RoomToRead]] = defaultdict(list)
    for each in to_read:
        if each.since is not None:
            by_since[each.since.events].append(each)
        elif each.room.membership in (_JOIN, *LEFT):
            found.append(ReadingOfRoom(each, ReadingKind.WHOLE))
        else:
            found.append(ReadingOfRoom(each, ReadingKind.STRIPPED))
    for since, rooms in by_since.items():
        found += _told_before(txn, rooms, since, upto)
    left = [e.room for e in found if e.room.membership in LEFT and e.kind is ReadingKind.WHOLE]
    inside = joined_once(txn, left)
    outside = {each.room_no for each in left} - inside
    return [
        ReadingOfRoom(e.asked, e.kind, e.changes, True) if e.room.room_no in outside else e
        for e in found
    ]


def _told_before(
    txn: Transaction, rooms: Sequence[RoomToRead], since: PositionVector, upto: PositionVector
) -> Iterable[ReadingOfRoom]:
    tokens = {
        token
        for each in rooms
        for token in (each.room.stream_id, each.room.state_only)
        if token > since.linear
    }
    news = tokens - covered_tokens(txn, tokens, since)
    moved = [each.room for each in rooms if each.room.stream_id in news]
    before = memberships_at(txn, moved, since)
    changed: list[ReadingOfRoom] = []
    for each in rooms:
        room = each.room
        earlier = before.get(room.room_no)
        was_in = earlier is not None and earlier.membership == _JOIN
        if room.membership not in (_JOIN, *LEFT):
            kind = ReadingKind.LABELS if earlier is None else ReadingKind.STRIPPED
            yield ReadingOfRoom(each, kind)
        elif (earlier is not None and not was_in) or (
            room.membership == _JOIN and room.state_only in news
        ):
            yield ReadingOfRoom(each, ReadingKind.WHOLE)
        else:
            changed.append(ReadingOfRoom(each, ReadingKind.CHANGES))
    with_news = [each.room for each in changed if each.has_changed]
    found = state_changes(txn, [(e.room_no, e.room_id) for e in with_news], since, upto)
    for reading in changed:
        changes = _upto_leave(found.get(reading.room.room_no, _NO_CHANGES), reading.room)
        # Another writer may have changed an entry before the one did of whose change the client knows.
        if changes.is_many or any(token <= since.highest for token, _, _ in changes.changes):
            yield ReadingOfRoom(reading.asked, ReadingKind.WHOLE)
        else:
            yield ReadingOfRoom(reading.asked, ReadingKind.CHANGES, changes)


def _upto_leave(changes: StateChanges, room: UserRoom) -> StateChanges:
    """The changes that a user sees who may have left the room."""
    if room.membership == _JOIN:
        return changes
    return changes._replace(changes=[e for e in changes.changes if e[0] <= room.stream_id])
