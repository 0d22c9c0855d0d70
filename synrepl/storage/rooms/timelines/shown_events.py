"""The newest events of many rooms that one user sees, in one statement.

Rows are read from the end of each room. What the user may not see is left out by the rules of
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


class ShownEvent(NamedTuple):
    """An event that a user sees.

    :ivar type: event type
    :ivar slot: of its state key; None for a message event
    :ivar sent_at: ``origin_server_ts``, in milliseconds
    :ivar redacted_by: number of the redaction that applies to it
    :ivar membership: of the user after the event
    :ivar is_whole: whether it is served as it came, not in its redacted form
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


class RoomWindow(NamedTuple):
    """The part of a room that is read.

    :ivar is_new: whether it is read from its beginning, not from ``since``
    :ivar last: stream ordering of the last event that may be shown
    :ivar is_peeking: whether the user was never in the room
    """

    room: UserRoom
    is_new: bool
    last: int
    is_peeking: bool = False


class ShownPart(NamedTuple):
    """The newest events of a window, in stream order.

    :ivar is_limited: whether the window has more
    """

    events: Sequence[ShownEvent]
    is_limited: bool


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
    found = _rows(txn, viewer, windows, since, upto, rows, wanted)
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
        parts[window.room.room_no] = ShownPart(shown[:limit][::-1], len(shown) > limit)
    return parts


def _rows(
    txn: Transaction,
    viewer: Viewer,
    windows: Sequence[RoomWindow],
    since: PositionVector,
    upto: PositionVector,
    rows: int,
    wanted: EventFilterSql,
) -> dict[int, list[tuple[ShownEvent, bool]]]:
    """The newest events of windows that clients may see, newest first, and whether this user sees them."""
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
        f" WHERE m.event_no = synrepl.state_entry(w.room_no, e.group_after, w.slot)), {LEAVE})"
    )
    own = "coalesce(e.slot = w.slot, false)"
    # OFFSET keeps the planner from computing an input wherever it is used.
    statement = f"""
        SELECT found.*, {sql.sight("found.reason")}
          FROM (SELECT found.*, {sql.reason()} AS reason
                  FROM (SELECT w.room_no, e.event_no, e.event_id, e.topological, e.stream_id, t.type,
                               e.slot, e.sender, e.origin_server_ts, e.redacted_by, e.group_before,
                               CASE WHEN {own} THEN {membership_set("e.audience")} ELSE {by_state} END
                                   AS membership,
                               e.audience, {own} AS own, w.is_peeking, {is_erased_sql("e.sender")} AS erased
                          FROM unnest(%(rooms)s::int[], %(slots)s::int[], %(new)s::bool[], %(last)s::bigint[],
                                      %(peeking)s::bool[]) AS w (room_no, slot, is_new, last, is_peeking)
                         CROSS JOIN LATERAL (
                               SELECT e.* FROM synrepl._room_events e
                                WHERE e.room_no = w.room_no AND e.stream_id IS NOT NULL
                                  AND e.stream_id <= w.last AND e.audience & {NEVER_BITS} = 0
                                  AND e.stream_id > CASE WHEN w.is_new THEN (%(start)s)::bigint ELSE %(since_linear)s END
                                  AND {covered_sql(upto, "upto")}
                                  AND (w.is_new OR {not_covered_sql(since, "since")}){wanted.predicate}
                                ORDER BY e.stream_id DESC LIMIT %(limit)s) AS e
                          JOIN synrepl._event_types t USING (type_no)
                        OFFSET 0) AS found
                OFFSET 0) AS found
         ORDER BY found.room_no, found.stream_id DESC"""
    # With filters, or several vectors of writers, there would be many texts.
    is_plain = not (wanted.predicate or writers_above(since) or writers_above(upto))
    txn.execute(
        planned(statement) if is_plain else statement,
        {
            "rooms": array_text([each.room.room_no for each in windows]),
            "slots": array_text([each.room.slot for each in windows]),
            "new": array_text([each.is_new for each in windows]),
            "last": array_text([each.last for each in windows]),
            "peeking": array_text([each.is_peeking for each in windows]),
            "ignored": sorted(viewer.ignored),
            "start": _BEFORE_ALL,
            "limit": rows,
            **covered_params(upto, "upto"),
            **covered_params(since, "since"),
            **wanted.params,
        },
    )
    found: dict[int, list[tuple[ShownEvent, bool]]] = defaultdict(list)
    for row in txn.fetchall():
        found[row[0]].append(_shown(row))
    return found


#: Below every stream ordering.
_BEFORE_ALL = -(1 << 63)


def _shown(row: Record) -> tuple[ShownEvent, bool]:
    _, event_no, event_id, topological, stream_id, kind, slot, sender, sent_at, *rest = row
    redacted_by, group_before, membership, *_, sight = rest
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
        upto=EventOrdering(0, window.last),
        order=PageOrder.STREAM,
        ceiling=upto,
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
        )
        for each in seen
    ]
