"""Reads the events of a room in topological order, with their JSON."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import FROM_EVENTS, STORED_EVENT, raw_json, stored_event


class OrderedEvent(NamedTuple):
    """An event in topological order.

    :ivar topological: its topological ordering
    :ivar stream_id: its stream ordering
    :ivar raw: its JSON as it came
    """

    topological: int
    stream_id: int
    event_id: str
    raw: bytes


#: Before the first event of a room.
BEFORE_FIRST = (-1, 0)


def events_in_order(
    txn: Transaction, room_no: int, after: tuple[int, int], limit: int
) -> list[OrderedEvent]:
    """A page of a room's events in topological order, rejected ones among them, without outliers.

    :param after: topological and stream ordering of the last event of the page before
    :raises MissingJson: an event has no JSON
    :raises CorruptEvent: the JSON of an event does not fit its checksum
    """
    txn.execute(
        f"SELECT {STORED_EVENT} {FROM_EVENTS} WHERE e.room_no = %s AND e.stream_id IS NOT NULL"
        " AND (e.topological, e.stream_id) > (%s, %s)"
        " ORDER BY e.topological, e.stream_id LIMIT %s",
        (room_no, *after, limit),
    )
    rows = [stored_event(row) for row in txn.fetchall()]
    raw = raw_json(txn, rows)
    found: list[OrderedEvent] = []
    for row in rows:
        if row.topological is not None and row.stream_id is not None:
            found.append(
                OrderedEvent(row.topological, row.stream_id, row.event_id, raw[row.event_id])
            )
    return found
