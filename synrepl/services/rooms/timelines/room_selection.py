"""Which rooms of a user an update has.

A client that does not load members lazily gets no partial room: it would take the members that are known for all of them.
When the room is complete, it gets it as one that the user has just joined. Source: the proposal on faster joins.
"""

from __future__ import annotations

from collections.abc import Collection

from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.timelines.client_filter import RoomFilter
from synrepl.services.rooms.timelines.rooms_to_read import RoomsToRead
from synrepl.services.rooms.timelines.updates import RoomPage
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.room_entries import covered_tokens
from synrepl.storage.rooms.timelines.user_rooms import (
    UserRoom,
    joined_once,
    memberships_at,
    most_recent,
    partial_at,
    rooms_with_membership,
)
from synrepl.storage.rooms.timelines.whole_history import part_with_whole_history

_JOINED, _LEFT = "join", ("leave", "ban")


def rooms_at_first(
    txn: Transaction,
    user: str,
    upto: PositionVector,
    wanted: RoomFilter,
    page: RoomPage | None,
) -> RoomsToRead:
    """The rooms of an update from the start.

    :param page: only these of the joined rooms, and others only with the first page
    """
    found, upto = _rooms(txn, user, upto, wanted.rooms, None)
    rooms = [each for each in found if wanted.allows_room(each.room_id) and not each.is_forgotten]
    joined = most_recent(
        each
        for each in rooms
        if each.membership == _JOINED and (wanted.lazy_load_members or not each.is_partial)
    )
    if page is not None:
        joined = joined[page.first : page.first + page.limit]
        if page.first:
            return RoomsToRead(upto, new=joined)
    left: list[UserRoom] = []
    if wanted.include_leave:
        left = [each for each in rooms if each.membership in _LEFT and each.stream_id]
    never_joined = _never_joined(txn, user, left)
    return RoomsToRead(
        upto,
        new=joined,
        left=[each for each in left if each.has_event or each.room_no not in never_joined],
        never_joined=never_joined,
        invited=[each for each in rooms if each.membership == "invite"],
        knocked=[each for each in rooms if each.membership == "knock"],
    )


def rooms_with_news(
    txn: Transaction,
    user: str,
    since: PositionVector,
    upto: PositionVector,
    wanted: RoomFilter,
    changed_rooms: Collection[str] | None,
    *,
    full_state: bool,
) -> RoomsToRead:
    """The rooms of an update that may have news.

    :param changed_rooms: rooms that changed, besides those where the user's membership did; None: find out
    :param full_state: all joined rooms, each with its whole state
    """
    found, upto = _rooms(txn, user, upto, changed_rooms, since)
    rooms = [each for each in found if wanted.allows_room(each.room_id) and not each.is_forgotten]
    # A membership that the client does not know of yet has a stream ordering that it has not seen.
    recent = {
        token for each in rooms for token in (each.stream_id, each.purged) if token > since.linear
    }
    unknown = recent - covered_tokens(txn, recent, since)
    moved = [each for each in rooms if each.stream_id in unknown]
    purged = {each.room_no for each in rooms if each.purged in unknown}
    before = memberships_at(txn, user, moved, since)
    # Of what the user was before a purge, not everything is known. So such a room is told with its whole state and a gap,
    # from where the client is.
    was_joined = purged | {n for n, each in before.items() if each.membership == _JOINED}
    moved_numbers = {each.room_no for each in moved}
    was_hidden = set() if wanted.lazy_load_members else partial_at(txn, rooms, since)
    was_joined -= was_hidden
    joined = most_recent(
        each
        for each in rooms
        if each.membership == _JOINED and (wanted.lazy_load_members or not each.is_partial)
    )
    new = [
        each
        for each in joined
        if each.room_no in was_hidden
        or (each.room_no in moved_numbers and each.room_no not in was_joined)
    ]
    new_numbers = {each.room_no for each in new}
    stayed = [each for each in joined if each.room_no not in new_numbers]
    if not full_state:
        stayed = [e for e in stayed if max(e.newest, e.state_only) > since.linear]
    left = [each for each in moved if each.membership in _LEFT and each.stream_id]
    surely_joined = was_joined - purged
    never_joined = _never_joined(txn, user, [e for e in left if e.room_no not in surely_joined])
    # Who was never in the room, and has no membership any more, has moved nowhere.
    left = [e for e in left if e.has_event or e.room_no not in never_joined]
    return RoomsToRead(
        upto,
        changed=stayed,
        new=new,
        whole={
            e.room_no
            for e in stayed
            if full_state or e.state_only > since.linear or e.room_no in purged
        },
        left=left,
        left_since={each.room_no for each in left} & was_joined,
        never_joined=never_joined,
        purged=purged,
        invited=[each for each in moved if each.membership == "invite"],
        knocked=[each for each in moved if each.membership == "knock"],
    )


def _rooms(
    txn: Transaction,
    user: str,
    upto: PositionVector,
    room_ids: Collection[str] | None,
    since: PositionVector | None,
) -> tuple[list[UserRoom], PositionVector]:
    """Rooms of a user, as of the part of a vector of which they have the whole history."""
    while True:
        found = rooms_with_membership(txn, user, upto, room_ids, since)
        part = part_with_whole_history(txn, found, upto)
        if part == upto:
            return found, upto
        upto = part


def _never_joined(txn: Transaction, user: str, rooms: list[UserRoom]) -> set[int]:
    return {each.room_no for each in rooms} - joined_once(txn, user, rooms)
