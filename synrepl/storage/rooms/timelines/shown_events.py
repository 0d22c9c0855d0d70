"""The newest events of many rooms that one user sees, in one statement.

Rows are read from the end of each room: of one that is new to the client in the topological ordering, in which pages of
its history go on, and of another one in the stream ordering. What the user may not see is left out by the rules of
:mod:`~synrepl.storage.rooms.visibility.audience_sql`; a room where too few rows are left is read again by
:func:`~synrepl.storage.rooms.visibility.pages.page_for`, whose cost goes with what is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, Sight, Viewer
from synrepl.storage.database import Record, Transaction, planned
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.user_rooms import UserRoom
from synrepl.storage.rooms.visibility.audience import LEAVE, NEVER_BITS, membership_text
from synrepl.storage.rooms.visibility.audience_sql import SIGHTS, ViewerSql, membership_set
from synrepl.storage.rooms.visibility.covered_sql import (
    covered_params,
    covered_sql,
    not_covered_sql,
    writers_above,
)
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql
from synrepl.storage.rooms.visibility.event_filter import EventFilterSql
from synrepl.storage.rooms.visibility.pages import (
    MAX_PAGE,
    PageOrder,
    PageRequest,
    page_for,
)
from synrepl.storage.rooms.visibility.room_viewer import RoomViewer
from synrepl.storage.rooms.visibility.viewer_sql import SeenEvent

#: Rows read of each room beyond those that are shown, because a few may be hidden.
SPARE_ROWS = 10

_AFTER_GAP = int(EventFlags.AFTER_GAP)


class ShownEvent(NamedTuple):
    """An event that a user sees.

    :ivar type: event type
    :ivar slot: of its state key; None for a message event
    :ivar sent_at: ``origin_server_ts``, in milliseconds
    :ivar redacted_by: number of the redaction that applies to it
    :ivar membership: of the user after the event
    :ivar is_whole: whether it is served as it came, not in its redacted form
    :ivar is_after_gap: whether events before it were missing when it came
    """

    event_no: int
    event_id: str
    ordering: EventOrdering
    type: str
    slot: int | None
    sender: str
    sent_at: int
    redacted_by: int | None
    group_before: int
    membership: str
    is_whole: bool
    is_after_gap: bool


class RoomWindow(NamedTuple):
    """The part of a room that is read.

    :ivar is_new: whether it is read from its beginning, not from ``since``
    :ivar last: stream ordering of the last event that may be shown
    :ivar is_peeking: whether the user was never in the room
    :ivar is_purged: whether some of it is gone
    """

    room: UserRoom
    is_new: bool
    last: int
    is_peeking: bool = False
    is_purged: bool = False


class ShownPart(NamedTuple):
    """The newest events of a window: in topological order if it is new, else in stream order.

    :ivar is_limited: whether the window has more, or had, or other servers have: there is a gap before the first event
    :ivar is_new: whether the window is
    """

    events: Sequence[ShownEvent]
    is_limited: bool
    is_new: bool = False


def newest_shown(
    txn: Transaction,
    viewer: Viewer,
    windows: Sequence[RoomWindow],
    since: PositionVector,
    upto: PositionVector,
    limit: int,
    wanted: EventFilterSql,
) -> dict[int, ShownPart]:
    """The newest events of windows that a user sees, by number of the room.

    :param since: events that it covers are left out of windows that are not new
    :param upto: events that it does not cover are left out
    """
    if not windows:
        return {}
    rows = limit + 1 + SPARE_ROWS
    found: dict[int, list[tuple[ShownEvent, bool]]] = defaultdict(list)
    for is_new in (False, True):
        alike = [each for each in windows if each.is_new is is_new]
        if alike:
            found.update(_rows(txn, viewer, alike, None if is_new else since, upto, rows, wanted))
    parts: dict[int, ShownPart] = {}
    for window in windows:
        read = found[window.room.room_no]
        shown = [each for each, is_shown in read if is_shown]
        if len(shown) <= limit and len(read) == rows:
            shown = _page(
                txn,
                viewer._replace(is_peeking=window.is_peeking),
                window,
                since,
                upto,
                limit + 1,
                wanted,
            )
        is_limited = len(shown) > limit or window.is_purged
        shown = shown[:limit]
        for number, each in enumerate(shown, 1):
            if each.is_after_gap:
                shown, is_limited = shown[:number], True
                break
        parts[window.room.room_no] = ShownPart(shown[::-1], is_limited, window.is_new)
    return parts


def _rows(
    txn: Transaction,
    viewer: Viewer,
    windows: Sequence[RoomWindow],
    since: PositionVector | None,
    upto: PositionVector,
    rows: int,
    wanted: EventFilterSql,
) -> dict[int, list[tuple[ShownEvent, bool]]]:
    """The newest events of windows that clients may see, newest first, and whether this user sees them.

    :param since: None: the windows are new
    """
    order, begin, params = "topological DESC, {0}.stream_id DESC", "", dict[str, object]()
    # Not for an index of the stream, which is in another order: the planner might think that few events are left.
    stream_id = "(e.stream_id + 0)"
    if since is not None:
        order, stream_id, params = "stream_id DESC", "e.stream_id", covered_params(since, "since")
        begin = f" AND {not_covered_sql(since, 'since')}"
    sql = ViewerSql(
        audience="found.audience",
        membership="found.membership",
        own="found.own",
        ignored="found.sender = ANY (%(ignored)s::text[])" if viewer.ignored else "false",
        erased="found.erased",
        peeking="found.is_peeking",
    )
    by_state = (
        f"coalesce((SELECT {membership_set('m.audience')} FROM synrepl._room_events m"
        f" WHERE m.event_no = synrepl.state_entry(e.room_no, e.group_after, e.member_slot)), {LEAVE})"
    )
    # The membership is looked up once for the events of a group, most of which are messages. OFFSET keeps the planner
    # from computing an input wherever it is used.
    statement = f"""
        SELECT found.room_no, found.event_no, found.event_id, found.topological, found.stream_id, t.type,
               found.slot, found.sender, found.origin_server_ts, found.redacted_by, found.group_before,
               found.membership, {sql.sight("found.reason")}, found.flags & {_AFTER_GAP} <> 0
          FROM (SELECT found.*, {sql.reason()} AS reason
                  FROM (SELECT e.*, CASE WHEN e.own THEN {membership_set("e.audience")}
                                         ELSE max(e.by_state) OVER of_group END AS membership,
                               {is_erased_sql("e.sender")} AS erased
                          FROM (SELECT e.*, CASE WHEN e.place = 1 THEN {by_state} END AS by_state
                                  FROM (SELECT e.*, w.slot AS member_slot, w.is_peeking,
                                               coalesce(e.slot = w.slot, false) AS own,
                                               row_number() OVER of_group AS place
                                          FROM unnest(%(rooms)s::int[], %(slots)s::int[], %(last)s::bigint[],
                                                      %(peeking)s::bool[]) AS w (room_no, slot, last, is_peeking)
                                         CROSS JOIN LATERAL (
                                               SELECT e.* FROM synrepl._room_events e
                                                WHERE e.room_no = w.room_no AND e.stream_id IS NOT NULL
                                                  AND {stream_id} <= w.last AND e.audience & {NEVER_BITS} = 0
                                                  AND {covered_sql(upto, "upto", stream_id)}{begin}{wanted.predicate}
                                                ORDER BY e.{order.format("e")} LIMIT %(limit)s) AS e
                                        WINDOW of_group AS (PARTITION BY e.room_no, e.group_after)
                                        OFFSET 0) AS e
                                OFFSET 0) AS e
                        WINDOW of_group AS (PARTITION BY e.room_no, e.group_after)
                        OFFSET 0) AS found
                OFFSET 0) AS found
          JOIN synrepl._event_types t USING (type_no)
         ORDER BY found.room_no, found.{order.format("found")}"""
    # With filters, or several vectors of writers, there would be many texts.
    is_above = writers_above(upto) or (since is not None and writers_above(since))
    txn.execute(
        statement if wanted.predicate or is_above else planned(statement),
        {
            "rooms": array_text([each.room.room_no for each in windows]),
            "slots": array_text([each.room.slot for each in windows]),
            "last": array_text([each.last for each in windows]),
            "peeking": array_text([each.is_peeking for each in windows]),
            "ignored": sorted(viewer.ignored),
            "limit": rows,
            **covered_params(upto, "upto"),
            **params,
            **wanted.params,
        },
    )
    found: dict[int, list[tuple[ShownEvent, bool]]] = defaultdict(list)
    for row in txn.fetchall():
        found[row[0]].append(_shown(row))
    return found


def _shown(row: Record) -> tuple[ShownEvent, bool]:
    _, event_no, event_id, topological, stream_id, kind, slot, sender, sent_at, *rest = row
    redacted_by, group_before, membership, sight, is_after_gap = rest
    event = ShownEvent(
        event_no,
        event_id,
        EventOrdering(topological, stream_id),
        kind,
        slot,
        sender,
        sent_at,
        redacted_by,
        group_before,
        membership_text(membership),
        SIGHTS[sight] is Sight.FULL and redacted_by is None,
        is_after_gap,
    )
    return event, SIGHTS[sight] is not Sight.HIDDEN


def _page(
    txn: Transaction,
    viewer: Viewer,
    window: RoomWindow,
    since: PositionVector,
    upto: PositionVector,
    limit: int,
    wanted: EventFilterSql,
) -> list[ShownEvent]:
    """The same for one room in which much is hidden, newest first."""
    request = PageRequest(
        min(limit, MAX_PAGE),
        order=PageOrder.TOPOLOGICAL if window.is_new else PageOrder.STREAM,
        ceiling=upto.lowered(window.last),
        floor=None if window.is_new else since,
        wanted=wanted,
    )
    user = RoomViewer.find(txn, window.room.room_id, viewer)
    found: list[SeenEvent] = []
    while True:
        page = page_for(user, request)
        found += page.events
        if page.next is None or len(found) >= limit:
            return of_seen(found[:limit])
        request = request._replace(upto=page.next, limit=limit - len(found))


def of_seen(seen: Iterable[SeenEvent]) -> list[ShownEvent]:
    """Events of a page."""
    return [
        ShownEvent(
            each.event_no,
            each.event_id,
            each.ordering,
            each.type,
            each.slot,
            each.sender,
            each.sent_at,
            each.redacted_by,
            each.group_before,
            each.membership,
            each.is_whole,
            each.is_after_gap,
        )
        for each in seen
    ]
