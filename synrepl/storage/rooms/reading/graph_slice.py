"""A part of a room's event graph, to be drawn or walked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.reading.event_access import (
    require_event,
    require_full,
    require_same_room,
)
from synrepl.storage.rooms.reading.room_overview import check_limit
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.numbers import require_room, room_by_number

#: Maximum number of events in a slice.
MAX_SLICE = 2_000


class GraphEvent(NamedTuple):
    """An event in the graph.

    :ivar prev_event_ids: the events that it follows, in the slice or not
    :ivar missing_ids: those of them that are not here with their state
    :ivar is_end: whether it is a forward extremity
    :ivar changes_state: whether the state after it is another one than before it
    """

    event_id: str
    type: str
    state_key: str | None
    sender: str
    depth: int
    topological: int
    stream_id: int
    flags: EventFlags
    prev_event_ids: Sequence[str]
    missing_ids: Sequence[str]
    is_end: bool
    changes_state: bool


def graph_slice(
    txn: Transaction, room_id: str, until: str | None = None, limit: int = 100
) -> list[GraphEvent]:
    """The newest events of a room in the topological ordering, or those up to an event; oldest first.

    :param until: the newest event of the slice
    :raises UnknownRoom: :raises BadRoomLimit: :raises EventNotStored: :raises EventIsOutlier:
    :raises EventInOtherRoom:
    """
    check_limit(limit, MAX_SLICE)
    room_no = require_room(txn, room_id).room_no
    where, params = "", list[object]()
    if until is not None:
        event = require_event(txn, until)
        require_full(event, rejected=True, partial=True)
        require_same_room(room_by_number(txn, event.room_no), event, room_id)
        where = " AND (e.topological, e.stream_id) <= (%s, %s)"
        params = [event.topological, event.stream_id]
    txn.execute(
        "SELECT e.event_id, t.type, k.state_key, e.sender, e.depth, e.topological, e.stream_id,"
        " e.flags, ARRAY(SELECT p.event_id FROM unnest(e.prev_nos) WITH ORDINALITY AS n (event_no, place)"
        "  JOIN synrepl._room_events p USING (event_no) ORDER BY n.place),"
        " ARRAY(SELECT b.missing_id FROM synrepl._backward_extremities b"
        "  WHERE b.room_no = e.room_no AND b.child_no = e.event_no ORDER BY b.missing_id),"
        " EXISTS (SELECT FROM synrepl._forward_extremities f"
        "  WHERE f.room_no = e.room_no AND f.event_no = e.event_no),"
        " e.group_before <> e.group_after"
        " FROM (SELECT * FROM synrepl._room_events e WHERE e.room_no = %s AND e.stream_id IS NOT NULL"
        f"  {where} ORDER BY e.topological DESC, e.stream_id DESC LIMIT %s) e"
        " JOIN synrepl._event_types t USING (type_no)"
        " LEFT JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot"
        " ORDER BY e.topological, e.stream_id",
        (room_no, *params, limit),
    )
    return [
        GraphEvent._make(
            (*row[:7], EventFlags(row[7]), (*row[8], *row[9]), tuple(row[9]), *row[10:])
        )
        for row in txn.fetchall()
    ]
