"""Events of a room as users and other servers get them, with their JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.rooms import EventOrdering, Viewer, room_version
from synrepl.storage.database import Transaction, planned
from synrepl.storage.rooms.reading.served_json import served_json
from synrepl.storage.rooms.tables.numbers import RoomRow, require_room
from synrepl.storage.rooms.visibility.event_visibility import ServedEvent
from synrepl.storage.rooms.visibility.pages import PageOrder, PageRequest, VisiblePage, visible_page
from synrepl.storage.rooms.visibility.traversal import backfill, missing_events
from synrepl.storage.rooms.visibility.viewer_sql import SeenEvent
from synrepl.storage.rooms.visibility.viewers import END, START

#: Missing events that a page names at most.
MAX_GAPS = 20


class Messages(NamedTuple):
    """A page of a room for a user.

    :ivar events: in the order of the request
    :ivar json: of each, in federation format; in its redacted form where the user must not see more
    :ivar next: where the next page begins: its ``upto`` if backwards, else its ``since``; None if there is no
        more
    :ivar gaps: some of the events that are missing in this part of the room's history, and that other servers
        may have
    """

    events: Sequence[SeenEvent]
    json: Sequence[bytes]
    next: EventOrdering | None
    gaps: Sequence[str]


class ServedEvents(NamedTuple):
    """Events for another server.

    :ivar json: of each, in federation format; in its redacted form where the server must not see more
    """

    events: Sequence[ServedEvent]
    json: Sequence[bytes]


def read_messages(txn: Transaction, room_id: str, viewer: Viewer, request: PageRequest) -> Messages:
    """A page of what a user sees of a room.

    :raises UnknownRoom: :raises BadPageSize: :raises TooManyIgnored: see
        :func:`~synrepl.storage.rooms.visibility.pages.visible_page`
    :raises CorruptEvent: :raises MissingJson: an event is damaged
    """
    room = require_room(txn, room_id)
    page = visible_page(txn, room_id, viewer, request)
    json = served_json(txn, room_version(room.version), page.events)
    gaps = []
    if request.backwards and request.order is PageOrder.TOPOLOGICAL:
        gaps = missing_in_page(txn, room, page, request)
    return Messages(page.events, json, page.next, gaps)


def missing_in_page(
    txn: Transaction, room: RoomRow, page: VisiblePage, request: PageRequest
) -> list[str]:
    """Missing prev events of events in the part of the room that a page covers.

    A page that comes to the end of what is here, although the room begins earlier, covers everything above it, too: what is
    missing there may be older than all that is here.
    """
    low, high = page.next or request.since or START, request.upto or END
    if request.upto is not None:
        # What is missing before the event at which a timeline begins is part of the history before it.
        high = high._replace(stream=high.stream + 1)
    if page.next is None and high != END and not _begins_here(txn, room):
        high = END
    txn.execute(_MISSING, (room.room_no, *low, *high))
    return [missing_id for (missing_id,) in txn.fetchall()]


_MISSING = planned(
    "SELECT b.missing_id FROM synrepl._backward_extremities b"
    " JOIN synrepl._room_events e ON e.event_no = b.child_no"
    " WHERE b.room_no = %s AND (e.topological, e.stream_id) > (%s, %s)"
    " AND (e.topological, e.stream_id) <= (%s, %s)"
    f" GROUP BY b.missing_id ORDER BY max(e.topological) DESC, b.missing_id LIMIT {MAX_GAPS}"
)


def _begins_here(txn: Transaction, room: RoomRow) -> bool:
    """Whether the first event of a room is here."""
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._room_events"
        " WHERE room_no = %s AND topological = 1 AND stream_id IS NOT NULL)",
        (room.room_no,),
    )
    return bool(txn.fetchone()[0])


def read_backfill(
    txn: Transaction, room_id: str, server: str, event_ids: Collection[str], limit: int
) -> ServedEvents:
    """History for another server; see :func:`~synrepl.storage.rooms.visibility.traversal.backfill`."""
    return _served(txn, room_id, backfill(txn, room_id, server, event_ids, limit))


def read_missing_events(
    txn: Transaction,
    room_id: str,
    server: str,
    earliest: Collection[str],
    latest: Collection[str],
    limit: int = 10,
    min_depth: int = 0,
) -> ServedEvents:
    """Missing events for another server; see :func:`~synrepl.storage.rooms.visibility.traversal.missing_events`."""
    found = missing_events(txn, room_id, server, earliest, latest, limit, min_depth)
    return _served(txn, room_id, found)


def _served(txn: Transaction, room_id: str, events: Sequence[ServedEvent]) -> ServedEvents:
    version = room_version(require_room(txn, room_id).version)
    return ServedEvents(events, served_json(txn, version, events))
