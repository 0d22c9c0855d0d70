"""The rooms of users in the order of their activity, kept from one request to the next.

A list is as of a vector. What changed after it is read again, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.sliding.sliding_request import SlidingRequest
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.listed_rooms import (
    RoomAttributes,
    removed_from,
    room_attributes,
    space_children,
)
from synrepl.storage.rooms.timelines.user_rooms import UserRoom, rooms_with_membership

#: Maximum number of rooms in all lists that are kept; some 500 bytes each.
MAX_KEPT = 400_000

#: Maximum number of spaces whose children are kept with a list, besides those of the last request.
MAX_SPACES = 1_000

LEFT = ("leave", "ban")


class ListedRoom(NamedTuple):
    """A room of a user's list.

    :ivar activity: by which it is ordered: the stream ordering of its newest event; of a room that the user is not in,
        the stream ID of the membership
    :ivar is_hidden: whether it is only of interest to who knows it: the user left it, or was never in it
    """

    room: UserRoom
    activity: int
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class UserRooms:
    """The rooms of one user, the most recently active first.

    :ivar upto: memberships are as of this vector
    :ivar attributes: by number of the room, as far as they were asked for
    :ivar children: rooms that spaces name, by ID of the space
    """

    upto: PositionVector
    rooms: tuple[ListedRoom, ...]
    attributes: Mapping[int, RoomAttributes] = field(default_factory=dict)
    children: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def shown(self, known: Collection[int]) -> Iterator[ListedRoom]:
        """The rooms of a list, without the hidden ones that are not known to who asks."""
        return (each for each in self.rooms if not each.is_hidden or each.room.room_no in known)

    def has_all_for(self, request: SlidingRequest) -> bool:
        """Whether it has what the filters of a request ask for."""
        return (
            not request.needs_attributes
            or all(each.room.room_no in self.attributes for each in self.rooms)
        ) and request.spaces <= self.children.keys()


def read_rooms(
    txn: Transaction,
    user: str,
    upto: PositionVector,
    known: UserRooms | None = None,
    changed: Collection[str] | None = None,
) -> UserRooms:
    """The rooms of a user.

    :param known: an earlier list
    :param changed: IDs of the rooms that have changed since, besides those where the user's membership did; None: unknown
    """
    if known is None or changed is None:
        return UserRooms(upto, _sorted(_listed(txn, user, rooms_with_membership(txn, user, upto))))
    if known.upto == upto:
        return known
    read = _listed(txn, user, rooms_with_membership(txn, user, upto, changed, known.upto))
    numbers = {each.room.room_no for each in read}
    ids = {each.room.room_id for each in read}
    kept = [each for each in known.rooms if each.room.room_no not in numbers]
    return UserRooms(
        upto,
        _sorted([*kept, *read]),
        {no: each for no, each in known.attributes.items() if no not in numbers},
        {space: each for space, each in known.children.items() if space not in ids},
    )


def with_all_for(txn: Transaction, rooms: UserRooms, request: SlidingRequest) -> UserRooms:
    """A list with what the filters of a request ask for."""
    if request.needs_attributes:
        lacking = [e.room for e in rooms.rooms if e.room.room_no not in rooms.attributes]
        if lacking:
            found = room_attributes(txn, lacking)
            rooms = replace(rooms, attributes={**rooms.attributes, **found})
    unread = request.spaces - rooms.children.keys()
    if len(rooms.children) > MAX_SPACES:
        unread, rooms = request.spaces, replace(rooms, children={})
    if unread:
        spaces = {
            each.room.room_id: each.room
            for each in rooms.rooms
            if each.room.room_id in unread and each.room.membership == "join"
        }
        children = space_children(txn, spaces.values()) if spaces else {}
        none: frozenset[str] = frozenset()
        found_children = {
            space: children[spaces[space].room_no] if space in spaces else none for space in unread
        }
        rooms = replace(rooms, children={**rooms.children, **found_children})
    return rooms


def _listed(txn: Transaction, user: str, rooms: Iterable[UserRoom]) -> list[ListedRoom]:
    found = list(rooms)
    removed = removed_from(txn, user, [e for e in found if e.membership in LEFT and e.stream_id])
    return [
        ListedRoom(
            each,
            each.newest if each.membership == "join" else each.stream_id,
            each.membership in LEFT and each.room_no not in removed,
        )
        for each in found
    ]


def _sorted(rooms: Iterable[ListedRoom]) -> tuple[ListedRoom, ...]:
    wanted = (each for each in rooms if not each.room.is_forgotten)
    return tuple(sorted(wanted, key=lambda each: (-each.activity, each.room.room_id)))


class RoomListCache:
    """Lists of users, those that were used last.

    :param max_rooms: in all of them
    """

    def __init__(self, max_rooms: int = MAX_KEPT) -> None:
        self._max_rooms = max_rooms
        self._lists: OrderedDict[str, UserRooms] = OrderedDict()
        self._rooms = 0

    def __len__(self) -> int:
        """Number of rooms in all lists."""
        return self._rooms

    def find(self, user_id: str) -> UserRooms | None:
        """The list of a user; None if none is kept."""
        found = self._lists.get(user_id)
        if found is not None:
            self._lists.move_to_end(user_id)
        return found

    def keep(self, user_id: str, rooms: UserRooms) -> None:
        """Keep a list, unless there is one already that is newer."""
        before = self._lists.get(user_id)
        if before is not None and before.upto != rooms.upto and before.upto.covers(rooms.upto):
            return
        self._rooms += len(rooms.rooms) - (0 if before is None else len(before.rooms))
        self._lists[user_id] = rooms
        self._lists.move_to_end(user_id)
        while self._rooms > self._max_rooms:
            _, dropped = self._lists.popitem(last=False)
            self._rooms -= len(dropped.rooms)
