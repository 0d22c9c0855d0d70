"""The rooms of users in the order of their activity, kept from one request to the next.

A list is as of a vector. What changed after it is read again, and nothing else.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.news.news import ANY_NEWS, News
from synrepl.services.rooms.sliding.sliding_request import RoomFacts, SlidingRequest
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.listed_rooms import (
    encrypted_rooms,
    removed_from,
    room_names,
    room_types,
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
    :ivar numbers: of all rooms
    :ivar types: of rooms by number, as far as they were asked for
    :ivar encrypted: whether rooms are encrypted, likewise
    :ivar names: likewise
    :ivar children: rooms that spaces name, by ID of the space
    """

    upto: PositionVector
    rooms: tuple[ListedRoom, ...]
    numbers: frozenset[int]
    types: Mapping[int, str | None] = field(default_factory=dict)
    encrypted: Mapping[int, bool] = field(default_factory=dict)
    names: Mapping[int, str | None] = field(default_factory=dict)
    children: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def shown(self, known: Collection[int]) -> Iterator[ListedRoom]:
        """The rooms of a list, without the hidden ones that are not known to who asks."""
        return (each for each in self.rooms if not each.is_hidden or each.room.room_no in known)

    def has_all_for(self, request: SlidingRequest) -> bool:
        """Whether it has what the filters of a request ask for."""
        known = (
            (RoomFacts.TYPE, self.types),
            (RoomFacts.ENCRYPTION, self.encrypted),
            (RoomFacts.NAME, self.names),
        )
        return request.spaces <= self.children.keys() and all(
            fact not in request.needs or self.numbers <= facts.keys() for fact, facts in known
        )


def read_rooms(
    txn: Transaction,
    user: str,
    upto: PositionVector,
    known: UserRooms | None = None,
    news: News = ANY_NEWS,
) -> UserRooms:
    """The rooms of a user.

    :param known: an earlier list
    :param news: since then; if it does not name the rooms, all are read
    """
    changed = news.rooms
    if known is None or changed is None:
        rooms = _sorted(_listed(txn, user, rooms_with_membership(txn, user, upto)))
        return UserRooms(upto, rooms, _numbers(rooms), {} if known is None else known.types)
    if known.upto == upto:
        return known
    # Without it, the memberships in all other rooms need not be looked at.
    since = known.upto if news.membership else None
    read = _listed(txn, user, rooms_with_membership(txn, user, upto, changed, since))
    numbers = {each.room.room_no for each in read}
    ids = {each.room.room_id for each in read}
    merged = [each for each in known.rooms if each.room.room_no not in numbers]
    for each in _sorted(read):
        insort(merged, each, key=_order)
    rooms = tuple(merged)
    is_same = numbers <= known.numbers and len(rooms) == len(known.rooms)
    return UserRooms(
        upto,
        rooms,
        known.numbers if is_same else _numbers(rooms),
        known.types,
        {no: each for no, each in known.encrypted.items() if no not in numbers},
        {no: each for no, each in known.names.items() if no not in numbers},
        {space: each for space, each in known.children.items() if space not in ids},
    )


def with_all_for(txn: Transaction, rooms: UserRooms, request: SlidingRequest) -> UserRooms:
    """A list with what the filters of a request ask for."""
    needs = request.needs

    def lacking(known: Mapping[int, object]) -> list[UserRoom]:
        if rooms.numbers <= known.keys():
            return []
        return [each.room for each in rooms.rooms if each.room.room_no not in known]

    if RoomFacts.TYPE in needs and (unknown := lacking(rooms.types)):
        rooms = replace(rooms, types={**rooms.types, **room_types(txn, unknown)})
    if RoomFacts.ENCRYPTION in needs and (unknown := lacking(rooms.encrypted)):
        rooms = replace(rooms, encrypted={**rooms.encrypted, **encrypted_rooms(txn, unknown)})
    if RoomFacts.NAME in needs and (unknown := lacking(rooms.names)):
        rooms = replace(rooms, names={**rooms.names, **room_names(txn, unknown)})
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
    return tuple(sorted((each for each in rooms if not each.room.is_forgotten), key=_order))


def _order(listed: ListedRoom) -> tuple[int, str]:
    """The most recently active first."""
    return -listed.activity, listed.room.room_id


def _numbers(rooms: Iterable[ListedRoom]) -> frozenset[int]:
    return frozenset(each.room.room_no for each in rooms)


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
