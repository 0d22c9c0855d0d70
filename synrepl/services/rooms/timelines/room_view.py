"""What a user may read of one room."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.positions.vector import PositionVector
from synrepl.rooms import HistoryVisibility, RoomVersion, Viewer, room_version
from synrepl.services.rooms.timelines.updates import NotInRoom, TimelineReader
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.timelines.user_rooms import (
    UserRoom,
    joined_once,
    room_of_user,
)
from synrepl.storage.rooms.visibility.audience import visibility_set
from synrepl.storage.rooms.visibility.covered_sql import EVERYTHING
from synrepl.storage.rooms.visibility.room_viewer import RoomViewer


@dataclass(frozen=True, slots=True)
class UserRoomView:
    """A room as a user may read it.

    :ivar member: the user's membership; None for a room that the user only looks at
    :ivar user: by whom events are seen
    :ivar upto: the part of the room that may be read: for a user who left, up to the leave
    :ivar now: what is known in this process; new positions in the history are as of this
    """

    room: RoomRow
    member: UserRoom | None
    reader: TimelineReader
    user: RoomViewer
    upto: PositionVector
    now: PositionVector

    @property
    def version(self) -> RoomVersion:
        """The version of the room."""
        return room_version(self.room.version)

    @property
    def is_joined(self) -> bool:
        """Whether the user is in the room."""
        return self.member is None or self.member.membership == "join"


def room_view(
    txn: Transaction,
    reader: TimelineReader,
    room_id: str,
    now: PositionVector,
    *,
    with_history: bool,
) -> UserRoomView:
    """What a user may read of a room.

    The user's membership is what it is in the database. A client may know of it from another process, and ask this
    one before it has heard of it.

    :param now: what is known in this process
    :param with_history: whether its history will be read, so that what that needs is read at once
    :raises UnknownRoom: it is not in the store
    :raises NotInRoom: the user was never in it, and not everybody may read it
    """
    room, member, slots, has_branches, newest = room_of_user(
        txn, room_id, reader.user_id, with_history=with_history
    )
    viewer = Viewer(reader.user_id, ignored=reader.ignored)
    user = RoomViewer(txn, room, viewer, slots, may_have_branches=has_branches, newest=newest)
    if member is not None and member.is_forgotten:
        member = None
    if member is not None and member.membership == "join":
        return UserRoomView(room, member, reader, user, EVERYTHING, now)
    if member is not None and joined_once(txn, reader.user_id, [member]):
        upto = EVERYTHING.lowered(member.stream_id)
        return UserRoomView(room, member, reader, user, upto, now.lowered(member.stream_id))
    if _is_world_readable(txn, room.room_no):
        peeking = RoomViewer(
            txn,
            room,
            viewer._replace(is_peeking=True),
            slots,
            may_have_branches=has_branches,
            newest=newest,
        )
        return UserRoomView(room, None, reader, peeking, EVERYTHING, now)
    raise NotInRoom(user=reader.user_id, room_id=room_id)


def _is_world_readable(txn: Transaction, room_no: int) -> bool:
    txn.execute(
        "SELECT e.audience FROM synrepl._room_keys k JOIN synrepl._current_state c USING (room_no, slot)"
        " JOIN synrepl._room_events e USING (event_no) WHERE k.room_no = %s"
        " AND k.type = 'm.room.history_visibility' AND k.state_key = ''",
        (room_no,),
    )
    found = txn.fetchone_or_none()
    return (
        found is not None
        and found[0] is not None
        and visibility_set(found[0]) is HistoryVisibility.WORLD_READABLE
    )
