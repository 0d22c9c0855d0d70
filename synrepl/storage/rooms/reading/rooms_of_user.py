"""The rooms that users are in."""

from __future__ import annotations

from collections.abc import Collection
from sys import intern
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Memberships above the linear position come with their writer.
_ROOMS = Script(
    [
        PlannedOnce(
            "SELECT m.user_id, r.room_id, m.membership, m.stream_id, CASE WHEN m.stream_id > %s THEN"
            " (SELECT e.writer FROM synrepl.events e WHERE e.stream_id = m.stream_id LIMIT 1) END"
            " FROM synrepl._memberships m JOIN synrepl._rooms r USING (room_no)"
            " WHERE m.user_id = ANY (%s::text[]) AND (m.membership = 'join' OR m.stream_id > %s)"
        )
    ]
)


class RoomsOfUser(NamedTuple):
    """The rooms of a user, as of what a process has applied.

    :ivar rooms: those that the user is joined to, and the following
    :ivar moving: those where the membership has changed, which the process has not applied yet
    """

    rooms: frozenset[str]
    moving: frozenset[str] = frozenset()


def rooms_of_users(
    txn: Transaction, users: Collection[str], applied: PositionVector
) -> dict[str, RoomsOfUser]:
    """The rooms that users are joined to, and those where the membership changed above ``applied``.

    A user who has just left a room is still told of its events by a process that has not applied the
    leave, so the room is among them until then.

    :param applied: the positions of the process in ``events``
    """
    txn.execute(_ROOMS, (applied.linear, array_text(users), applied.linear))
    rooms: dict[str, set[str]] = {user: set() for user in users}
    moving: dict[str, set[str]] = {user: set() for user in users}
    for user, room_id, membership, token, writer in txn.fetchall():
        is_moving = writer is not None and int(token) > applied[str(writer)]
        if membership == "join" or is_moving:
            rooms[user].add(intern(str(room_id)))  # many users are in the same rooms
        if is_moving:
            moving[user].add(str(room_id))
    return {
        user: RoomsOfUser(frozenset(rooms[user]), frozenset(moving[user]) or _NONE)
        for user in users
    }


_NONE: frozenset[str] = frozenset()
