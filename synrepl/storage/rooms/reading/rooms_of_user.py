"""The rooms that users are in."""

from __future__ import annotations

from collections.abc import Collection
from sys import intern

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


def rooms_of_users(
    txn: Transaction, users: Collection[str], applied: PositionVector
) -> dict[str, frozenset[str]]:
    """The rooms that each of some users is joined to, and those where the membership changed above ``applied``.

    A user who has just left a room is still told of its events by a process that has not applied the
    leave, so the room is among them until then.

    :param applied: the positions of the process in ``events``
    """
    txn.execute(_ROOMS, (applied.linear, array_text(users), applied.linear))
    found: dict[str, set[str]] = {user_id: set() for user_id in users}
    for user_id, room_id, membership, token, writer in txn.fetchall():
        if membership == "join" or (writer is not None and int(token) > applied[str(writer)]):
            found[user_id].add(intern(str(room_id)))  # many users are in the same rooms
    return {user_id: frozenset(rooms) for user_id, rooms in found.items()}
