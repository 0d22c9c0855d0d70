"""Which rooms a list has.

Source: MSC4186, ``SlidingRoomFilter``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from synrepl.services.rooms.sliding.room_labels import RoomLabels
from synrepl.services.rooms.sliding.room_lists import ListedRoom, UserRooms
from synrepl.services.rooms.sliding.sliding_request import ListFilter
from synrepl.storage.rooms.timelines.user_rooms import UserRoom

_NO_TAGS: frozenset[str] = frozenset()

_Test = Callable[[UserRoom], bool]


def filtered(
    rooms: Iterable[ListedRoom], wanted: ListFilter, listed: UserRooms, labels: RoomLabels
) -> list[ListedRoom]:
    """The rooms that pass a filter, in their order.

    :param listed: has what the filter asks for
    """
    found = list(rooms)
    for test in _tests(wanted, listed, labels):
        found = [each for each in found if test(each.room)]
    return found


def _tests(wanted: ListFilter, listed: UserRooms, labels: RoomLabels) -> Iterator[_Test]:
    """One for each thing that the filter asks for."""
    if wanted.spaces is not None:
        children = frozenset().union(*(listed.children.get(each, ()) for each in wanted.spaces))
        yield lambda room: room.room_id in children
    if wanted.is_invited is not None:
        yield lambda room: (room.membership == "invite") == wanted.is_invited
    if wanted.is_dm is not None:
        yield lambda room: (room.room_id in labels.direct) == wanted.is_dm
    tags = labels.tags
    if wanted.tags is not None:
        tagged = wanted.tags
        yield lambda room: not tagged.isdisjoint(tags.get(room.room_id, _NO_TAGS))
    if wanted.not_tags:
        yield lambda room: wanted.not_tags.isdisjoint(tags.get(room.room_id, _NO_TAGS))
    if wanted.is_encrypted is not None:
        yield lambda room: listed.encrypted[room.room_no] == wanted.is_encrypted
    if wanted.room_types is not None:
        types = wanted.room_types
        yield lambda room: listed.types[room.room_no] in types
    if not wanted.not_room_types.isdisjoint(listed.types.values()):
        yield lambda room: listed.types[room.room_no] not in wanted.not_room_types
    if wanted.name_like is not None:
        part = wanted.name_like.lower()
        yield lambda room: part in (listed.names[room.room_no] or "").lower()
