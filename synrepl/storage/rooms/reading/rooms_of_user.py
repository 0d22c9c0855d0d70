"""The rooms that users are in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from sys import intern
from typing import NamedTuple

from synrepl.core.tokens import Token
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


class MovingRoom(NamedTuple):
    """A room in which a membership has changed, which a process has not applied yet.

    :ivar writer: of the fact that changed it
    :ivar is_joined: whether the user is in the room then
    """

    writer: str
    token: Token
    is_joined: bool


class RoomsOfUser(NamedTuple):
    """The rooms of a user, as a process knows them; valid until another fact changes one of the memberships.

    :ivar rooms: those that the user is joined to, and those of ``moving``
    """

    rooms: frozenset[str]
    moving: Mapping[str, MovingRoom] = {}

    def joined_among(self, room_ids: frozenset[str], applied: PositionVector) -> frozenset[str]:
        """Those of ``rooms`` that the user may be in, as of what a process has applied."""
        left = {
            room_id
            for room_id, each in self.moving.items()
            if not each.is_joined and each.token <= applied[each.writer]
        }
        return room_ids - left if left else room_ids

    def is_moving(self, room_ids: frozenset[str], applied: PositionVector) -> bool:
        """Whether a membership in one of these rooms changes with a fact that is not applied yet."""
        return any(
            each.token > applied[each.writer]
            for room_id, each in self.moving.items()
            if room_id in room_ids
        )


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
    moving: dict[str, dict[str, MovingRoom]] = {user: {} for user in users}
    for user, room_id, membership, token, writer in txn.fetchall():
        is_joined = membership == "join"
        is_moving = writer is not None and int(token) > applied[str(writer)]
        if is_joined or is_moving:
            rooms[user].add(intern(str(room_id)))  # many users are in the same rooms
        if is_moving:
            moving[user][room_id] = MovingRoom(str(writer), int(token), is_joined)
    return {user: RoomsOfUser(frozenset(rooms[user]), moving[user] or _NONE) for user in users}


_NONE: Mapping[str, MovingRoom] = {}
