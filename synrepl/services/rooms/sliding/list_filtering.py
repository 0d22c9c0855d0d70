"""Which rooms a list has.

Source: MSC4186, ``SlidingRoomFilter``.
"""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.services.rooms.sliding.room_labels import RoomLabels
from synrepl.services.rooms.sliding.room_lists import ListedRoom, UserRooms
from synrepl.services.rooms.sliding.sliding_request import ListFilter
from synrepl.storage.rooms.timelines.listed_rooms import RoomAttributes

_NO_ATTRIBUTES = RoomAttributes()
_NO_TAGS: frozenset[str] = frozenset()


def filtered(
    rooms: Iterable[ListedRoom], wanted: ListFilter, listed: UserRooms, labels: RoomLabels
) -> list[ListedRoom]:
    """The rooms that pass a filter, in their order.

    :param listed: has the attributes that the filter asks for
    """
    if wanted == _EVERYTHING:
        return list(rooms)
    children = None
    if wanted.spaces is not None:
        children = frozenset().union(*(listed.children.get(each, ()) for each in wanted.spaces))
    return [
        each
        for each in rooms
        if (children is None or each.room.room_id in children)
        and (wanted.is_invited is None or wanted.is_invited == (each.room.membership == "invite"))
        and _has_labels(each.room.room_id, wanted, labels)
        and (
            not wanted.needs_attributes
            or _has_attributes(listed.attributes.get(each.room.room_no, _NO_ATTRIBUTES), wanted)
        )
    ]


_EVERYTHING = ListFilter()


def _has_labels(room_id: str, wanted: ListFilter, labels: RoomLabels) -> bool:
    if wanted.is_dm is not None and wanted.is_dm != (room_id in labels.direct):
        return False
    if wanted.tags is None and not wanted.not_tags:
        return True
    tags = labels.tags.get(room_id, _NO_TAGS)
    return tags.isdisjoint(wanted.not_tags) and (
        wanted.tags is None or not tags.isdisjoint(wanted.tags)
    )


def _has_attributes(found: RoomAttributes, wanted: ListFilter) -> bool:
    if wanted.is_encrypted is not None and wanted.is_encrypted != found.is_encrypted:
        return False
    if found.room_type in wanted.not_room_types:
        return False
    if wanted.room_types is not None and found.room_type not in wanted.room_types:
        return False
    return wanted.name_like is None or wanted.name_like.lower() in (found.name or "").lower()
