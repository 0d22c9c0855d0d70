"""The point before which a room's history is purged."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags, events_by_id
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text


class NoPurgePoint(InputError):
    """history of room {room_id} cannot be purged up to event {event_id}: {reason}"""


class PurgePoint(NamedTuple):
    """Events before it go. Forward extremities stay, wherever they are, and so do rejected and soft-failed events on top of them.

    Such an event ends no forward extremity, but one that follows it and passes all checks does. So the store must go
    on to know which forward extremities are below it.

    :ivar column: ``topological`` or ``stream_id``
    :ivar bound: the first position that stays
    :ivar staying: the numbers of the events that stay before it, as :func:`with_staying` found them
    """

    column: str
    bound: int
    staying: tuple[int, ...] = ()

    @classmethod
    def of_topological(cls, bound: int) -> PurgePoint:
        """Before a topological ordering."""
        return cls("topological", bound)

    @classmethod
    def of_stream(cls, bound: int) -> PurgePoint:
        """Before a stream ordering."""
        return cls("stream_id", bound)

    def is_before(self, alias: str) -> str:
        """The condition that an event is to go, in SQL; takes :meth:`params`.

        :param alias: of ``_room_events``
        """
        return (
            f"({alias}.stream_id IS NOT NULL AND {alias}.{self.column} < %(bound)s"
            f" AND {alias}.event_no <> ALL (%(staying)s::bigint[])"
            " AND NOT EXISTS (SELECT FROM synrepl._forward_extremities fx"
            f" WHERE fx.room_no = {alias}.room_no AND fx.event_no = {alias}.event_no))"
        )

    def params(self, room_no: int) -> dict[str, object]:
        """The parameters ``room``, ``bound`` and ``staying``."""
        return {"room": room_no, "bound": self.bound, "staying": array_text(self.staying)}

    @property
    def newest_first(self) -> str:
        """The order in which events go, so that no event goes before those that follow it."""
        if self.column == "stream_id":
            return "stream_id DESC"
        return "topological DESC, stream_id DESC"


def with_staying(txn: Transaction, room_no: int, point: PurgePoint) -> PurgePoint:
    """A point with the events that stay before it.

    They stay during the whole purge, whatever comes meanwhile: edges to them are not cut. An event to which one was cut
    already, by a purge that was killed, goes. The room need not be locked.
    """
    unpassed = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)
    txn.execute(
        "WITH RECURSIVE unpassed (event_no, prev_no) AS MATERIALIZED ("
        "  SELECT e.event_no, unnest(e.prev_nos) FROM synrepl._room_events e"
        f"  WHERE e.room_no = %(room)s AND e.stream_id IS NOT NULL AND e.flags & {unpassed} <> 0"
        "   AND NOT EXISTS (SELECT FROM synrepl._backward_extremities b"
        "    WHERE b.room_no = e.room_no AND b.missing_id = e.event_id)),"
        " staying (event_no) AS ("
        "  SELECT f.event_no FROM synrepl._forward_extremities f WHERE f.room_no = %(room)s"
        "  UNION SELECT u.event_no FROM staying s JOIN unpassed u ON u.prev_no = s.event_no)"
        " SELECT e.event_no FROM staying JOIN synrepl._room_events e USING (event_no)"
        f" WHERE e.{point.column} < %(bound)s ORDER BY 1",
        {"room": room_no, "bound": point.bound},
    )
    return point._replace(staying=tuple(int(number) for (number,) in txn.fetchall()))


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
