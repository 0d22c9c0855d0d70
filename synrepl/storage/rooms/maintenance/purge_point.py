"""The point before which a room's history is purged."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import events_by_id
from synrepl.storage.rooms.tables.numbers import RoomRow


class NoPurgePoint(InputError):
    """history of room {room_id} cannot be purged up to event {event_id}: {reason}"""


class PurgePoint(NamedTuple):
    """Events before it go. Forward extremities stay, wherever they are.

    :ivar column: ``topological`` or ``stream_id``
    :ivar bound: the first position that stays
    """

    column: str
    bound: int

    @classmethod
    def of_topological(cls, bound: int) -> PurgePoint:
        """Before a topological ordering."""
        return cls("topological", bound)

    @classmethod
    def of_stream(cls, bound: int) -> PurgePoint:
        """Before a stream ordering."""
        return cls("stream_id", bound)

    def is_before(self, alias: str) -> str:
        """The condition that an event is to go, in SQL; takes the named parameter ``bound``.

        :param alias: of ``_room_events``
        """
        return (
            f"({alias}.stream_id IS NOT NULL AND {alias}.{self.column} < %(bound)s"
            " AND NOT EXISTS (SELECT FROM synrepl._forward_extremities fx"
            f" WHERE fx.room_no = {alias}.room_no AND fx.event_no = {alias}.event_no))"
        )

    @property
    def newest_first(self) -> str:
        """The order in which events go, so that no event goes before those that follow it."""
        if self.column == "stream_id":
            return "stream_id DESC"
        return "topological DESC, stream_id DESC"


def purge_point_at(txn: Transaction, room: RoomRow, event_id: str) -> PurgePoint:
    """The point at an event, which stays; so do others with the same topological ordering.

    :raises NoPurgePoint: there is no such event in the room, or it is an outlier
    """
    row = events_by_id(txn, [event_id]).get(event_id)
    reason = None
    if row is None:
        reason = "it is not in the store"
    elif row.room_no != room.room_no:
        reason = "it is in another room"
    elif row.topological is None:
        reason = "it is an outlier, which has no place in the room's history"
    if reason is not None or row is None or row.topological is None:
        raise NoPurgePoint(room_id=room.room_id, event_id=event_id, reason=reason)
    return PurgePoint.of_topological(row.topological)
