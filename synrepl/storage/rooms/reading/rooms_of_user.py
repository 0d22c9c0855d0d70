"""The rooms that a user is in."""

from __future__ import annotations

from sys import intern
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.storage.database import PlannedOnce, Script, Transaction

#: Memberships above the linear position come with their writer.
_ROOMS = Script(
    [
        PlannedOnce(
            "SELECT r.room_id, m.membership, m.stream_id, CASE WHEN m.stream_id > %s THEN"
            " (SELECT e.writer FROM synrepl.events e WHERE e.stream_id = m.stream_id LIMIT 1) END"
            " FROM synrepl._memberships m JOIN synrepl._rooms r USING (room_no)"
            " WHERE m.user_id = %s AND (m.membership = 'join' OR m.stream_id > %s)"
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


def rooms_of_user(txn: Transaction, user_id: str, applied: PositionVector) -> RoomsOfUser:
    """The rooms that a user is joined to, and those where the membership changed above ``applied``.

    A user who has just left a room is still told of its events by a process that has not applied the
    leave, so the room is among them until then.

    :param applied: the positions of the process in ``events``
    """
    txn.execute(_ROOMS, (applied.linear, user_id, applied.linear))
    rooms: set[str] = set()
    moving: set[str] = set()
    for room_id, membership, token, writer in txn.fetchall():
        is_moving = writer is not None and int(token) > applied[str(writer)]
        if membership == "join" or is_moving:
            rooms.add(intern(str(room_id)))  # many users are in the same rooms
        if is_moving:
            moving.add(str(room_id))
    return RoomsOfUser(frozenset(rooms), frozenset(moving))
