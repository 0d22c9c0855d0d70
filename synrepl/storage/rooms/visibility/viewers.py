"""What a user was in a room when, along the main line of its states.

A user's membership and the room's history visibility change rarely, so a few versions on the line say what a
page needs, and those near where it begins are read first. Together they say between which positions of the line the user may see events. Positions are
numbers of state groups; the first event of a group says where it is in the orderings
(:mod:`synrepl.storage.rooms.visibility.event_places`). So what a page has to read is a few ranges of one index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from synrepl.rooms import EventAudience, EventOrdering, HistoryVisibility, Viewer, visible_to_user
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.tables.numbers import RoomRow, slots_of
from synrepl.storage.rooms.visibility.audience import (
    BESIDE_BIT,
    FIRST_BIT,
    LEAVE,
    NEAR_BIT,
    membership_set,
    membership_text,
    visibility_set,
)

MEMBER, HISTORY_VISIBILITY = "m.room.member", "m.room.history_visibility"

#: Before and after every event.
START, END = EventOrdering(-(1 << 63), -(1 << 63)), EventOrdering((1 << 63) - 1, (1 << 63) - 1)

#: Versions of a user's membership, and of the history visibility, that are read first: those near where a page begins.
RECENT_VERSIONS = 64

#: Events that are looked at to find the group in which a page begins.
EDGE_ROWS = 64

#: A slot that no room has.
NO_SLOT = -1


class Span(NamedTuple):
    """A range of events on the main line with one membership and one history visibility.

    :ivar since: number of the group from which on
    :ivar until: number of the group before which; None: to the end
    :ivar start: no event of the span is before it
    :ivar end: every event of the span is before it
    """

    since: int
    until: int | None
    membership: int
    visibility: HistoryVisibility
    start: EventOrdering
    end: EventOrdering


class ViewerHistory(NamedTuple):
    """A user in a room.

    :ivar slot: of the user's membership; :data:`NO_SLOT` if the room never had one
    :ivar visibility_slot: of the history visibility; likewise
    :ivar spans: along the main line, gapless; the first begins with the room
    """

    room: RoomRow
    slot: int
    visibility_slot: int
    spans: Sequence[Span]

    def groups(self, membership: int) -> str:
        """The groups on the main line at which the user has a membership, as an ``int8multirange``."""
        return multirange(
            (span.since, span.until) for span in self.spans if span.membership == membership
        )

    def visible_spans(self, viewer: Viewer) -> list[Span]:
        """The spans in which the user may see events, neighbours joined."""
        found: list[Span] = []
        kinds = {(span.membership, span.visibility) for span in self.spans}
        seen = {kind for kind in kinds if _may_see(viewer, *kind)}
        for span in self.spans:
            if (span.membership, span.visibility) not in seen:
                continue
            if found and found[-1].until == span.since:
                end = max(found[-1].end, span.end)
                found[-1] = found[-1]._replace(until=span.until, end=end)
            else:
                found.append(span)
        return found


def multirange(ranges: Iterable[tuple[int, int | None]]) -> str:
    """Ranges of group numbers, as PostgreSQL reads them."""
    texts = (f"[{since},{'' if until is None else until})" for since, until in ranges)
    return "{" + ",".join(texts) + "}"


class ViewerSlots(NamedTuple):
    """The slots of a room that decide what a user sees; :data:`NO_SLOT` for a key that the room never had.

    :ivar member: that of the user's membership
    :ivar visibility: that of the history visibility
    """

    member: int = NO_SLOT
    visibility: int = NO_SLOT


def slots_of_viewer(txn: Transaction, room: RoomRow, user: str) -> ViewerSlots:
    """The slots for a user."""
    keys = (MEMBER, user), (HISTORY_VISIBILITY, "")
    slots = slots_of(txn, room.room_no, keys)
    return ViewerSlots(*(slots.get(key, NO_SLOT) for key in keys))


def viewer_history(txn: Transaction, room: RoomRow, slots: ViewerSlots) -> ViewerHistory:
    """Read what a user was in a room when."""
    txn.execute(_VERSIONS, {"room": room.room_no, "slots": list(slots)})
    spans = _spans(txn.fetchall(), slots.visibility)
    return ViewerHistory(room, *slots, spans)


class HistoryPart(NamedTuple):
    """What a user was in a room around some ordering.

    :ivar history: right for the events from ``low`` on that are before ``high``
    :ivar low: by stream, only its second half counts; likewise ``high``
    """

    history: ViewerHistory
    low: EventOrdering
    high: EventOrdering


def history_part(
    txn: Transaction,
    room: RoomRow,
    slots: ViewerSlots,
    edge: EventOrdering,
    *,
    backwards: bool,
    by_stream: bool,
) -> HistoryPart:
    """Read what a user was in a room shortly before an ordering, or from it on, in statements of bounded size.

    :param backwards: whether events before the ordering are meant; otherwise those that are not before it
    :param by_stream: whether the stream ordering is meant
    """
    params = {"room": room.room_no, "slots": list(slots), "limit": RECENT_VERSIONS}
    statement = _PARTS[backwards, by_stream]
    txn.execute(statement, {**params, "topological": edge.topological, "stream": edge.stream})
    return _history_part(room, slots, txn.fetchall(), backwards=backwards)


def newest_part(
    room: RoomRow, slots: ViewerSlots, versions: Sequence[Sequence[object]] | None
) -> HistoryPart:
    """What a user was in a room most recently.

    :param versions: what :func:`newest_versions_sql` gave
    """
    return _history_part(room, slots, versions or (), backwards=True)


def newest_versions_sql(*slots: str) -> str:
    """The newest versions of slots of a room ``r``, as JSON, for a statement that reads more of the room."""
    return f"""
        (SELECT json_agg(json_build_array({_CELLS}) ORDER BY v.pos)
           FROM unnest(ARRAY[{", ".join(slots)}]) AS s (slot)
          CROSS JOIN LATERAL (
                {_LINE} WHERE {_OF_SLOT} ORDER BY l.pos DESC LIMIT {RECENT_VERSIONS}) AS v
          {_BEGINNINGS})"""


def _history_part(
    room: RoomRow,
    slots: ViewerSlots,
    versions: Sequence[Sequence[object]],
    *,
    backwards: bool,
) -> HistoryPart:
    history = ViewerHistory(room, *slots, _spans(versions, slots.visibility))
    low, high = START, END
    for each in slots:
        found = [version for version in versions if version[0] == each]
        if len(found) < RECENT_VERSIONS:
            continue
        if backwards:
            # Every event before the oldest of them is before where it begins, as is the end of a span.
            low = max(low, _end_before(found[0]) or END)
        else:
            high = min(high, _start_at(found[-1]))
    return HistoryPart(history, low, high)


# An entry is mostly the first event of its own group, so that nothing else has to be read.
_BEGINS = f"(entry.group_after = v.pos AND (entry.audience & {FIRST_BIT}) <> 0)"

# Where the first group at or after a position begins. The first events of groups may have been purged, so a start
# counts only if the group began after the point of each purge, and something is left before it.
_CELLS = f"""v.slot, v.pos, entry.audience,
           CASE WHEN {_BEGINS} THEN entry.topological ELSE first.topological END,
           CASE WHEN {_BEGINS} THEN entry.stream_id ELSE first.stream_id END,
           CASE WHEN {_BEGINS} THEN entry.reach ELSE first.reach END,
           coalesce((SELECT f.group_after FROM synrepl._room_events f
                      WHERE f.room_no = r.room_no AND (f.audience & {FIRST_BIT}) <> 0
                      ORDER BY f.group_after LIMIT 1) < v.pos, false),
           v.pos <= r.purged_group"""

_COLUMNS = f"SELECT {_CELLS} FROM synrepl._rooms r"

_BEGINNINGS = f"""
      LEFT JOIN synrepl._room_events entry ON entry.event_no = v.event_no
      LEFT JOIN LATERAL (
          SELECT f.topological, f.stream_id, f.reach FROM synrepl._room_events f
           WHERE f.room_no = r.room_no AND (f.audience & {FIRST_BIT}) <> 0
             AND f.group_after >= v.pos AND {_BEGINS} IS NOT TRUE
           ORDER BY f.group_after LIMIT 1) first ON true"""

_OF_ROOM = "WHERE r.room_no = %(room)s ORDER BY v.pos"

_VERSIONS = f"""{_COLUMNS}
      JOIN synrepl._state_line v ON v.line_no = r.main_line AND v.slot = ANY (%(slots)s::int[])
    {_BEGINNINGS} {_OF_ROOM}"""

_LINE = "SELECT l.slot, l.pos, l.event_no FROM synrepl._state_line l"
_OF_SLOT = "l.line_no = r.main_line AND l.slot = s.slot"
_NEWEST_BEFORE = f"{_LINE} WHERE {_OF_SLOT} AND l.pos < edge.pos ORDER BY l.pos DESC"
_NEXT = f"{_LINE} WHERE {_OF_SLOT} AND l.pos >= edge.pos ORDER BY l.pos LIMIT %(limit)s"

_FIRST = f"f.room_no = %(room)s AND (f.audience & {FIRST_BIT}) <> 0"
_EDGE = "(%(topological)s, %(stream)s)"


def _near_by_stream(where: str, order: str) -> str:
    """The group of the first event on the line, if it is among the first few events."""
    return f"""
        SELECT near.group_after FROM (
               SELECT f.group_after, f.audience, f.stream_id FROM synrepl._room_events f
                WHERE f.room_no = %(room)s AND f.stream_id IS NOT NULL AND {where}
                ORDER BY f.stream_id {order} LIMIT {EDGE_ROWS}) AS near
         WHERE near.audience & {BESIDE_BIT | NEAR_BIT} = 0
         ORDER BY near.stream_id {order} LIMIT 1"""


def _part(edge: str, versions: str) -> Script:
    return Script(
        [
            PlannedOnce(f"""{_COLUMNS}
     CROSS JOIN (SELECT {edge}) AS edge (pos)
     CROSS JOIN unnest(%(slots)s::int[]) AS s (slot)
     CROSS JOIN LATERAL ({versions}) AS v
    {_BEGINNINGS} {_OF_ROOM}""")
        ]
    )


_BACKWARDS = f"{_NEWEST_BEFORE} LIMIT %(limit)s"
_FORWARDS = f"({_NEWEST_BEFORE} LIMIT 1) UNION ALL ({_NEXT})"
_LAST = (1 << 63) - 1

# By direction, and whether by stream: the versions that count for events on the line before the edge, the newest first;
# or for those that are not before it, the oldest first. Without an event that tells where on the line the edge is,
# these are the newest of all, or the oldest.
_PARTS = {
    # Groups whose first event is at or after the edge have no event before it.
    (True, False): _part(
        f"""coalesce((SELECT f.group_after FROM synrepl._room_events f
              WHERE {_FIRST} AND (f.topological, f.stream_id) >= {_EDGE}
              ORDER BY f.topological, f.stream_id LIMIT 1), {_LAST})""",
        _BACKWARDS,
    ),
    (True, True): _part(
        f"coalesce(({_near_by_stream('f.stream_id >= %(stream)s', 'ASC')}) + 1, {_LAST})",
        _BACKWARDS,
    ),
    # Groups before one that begins before the edge have no event after it, as high as they may reach.
    (False, False): _part(
        f"""coalesce((SELECT first.group_after FROM (
                     SELECT f.* FROM synrepl._room_events f
                      WHERE {_FIRST} AND (f.topological, f.stream_id) <= {_EDGE}
                      ORDER BY f.topological DESC, f.stream_id DESC LIMIT {EDGE_ROWS}) AS first
               WHERE (coalesce(first.reach, first.topological), first.stream_id) <= {_EDGE}
               ORDER BY first.topological DESC, first.stream_id DESC LIMIT 1) + 1, 0)""",
        _FORWARDS,
    ),
    (False, True): _part(
        f"coalesce(({_near_by_stream('f.stream_id < %(stream)s', 'DESC')}) + 1, 0)", _FORWARDS
    ),
}


def _spans(versions: Iterable[Sequence[object]], visibility_slot: int) -> list[Span]:
    membership, visibility = LEAVE, HistoryVisibility.SHARED
    spans = [Span(0, None, membership, visibility, START, END)]
    for version in versions:
        slot, pos, audience, *_ = version
        assert isinstance(pos, int)
        if slot == visibility_slot:
            visibility = (
                visibility_set(audience) if isinstance(audience, int) else HistoryVisibility.SHARED
            )
        else:
            membership = membership_set(audience) if isinstance(audience, int) else LEAVE
        start, end = _start_at(version), _end_before(version) or END
        last = spans.pop()
        if last.since < pos:
            spans.append(last._replace(until=pos, end=end))
            last = last._replace(since=pos, start=start)
        spans.append(last._replace(membership=membership, visibility=visibility, end=END))
    return spans


def _start_at(version: Sequence[object]) -> EventOrdering:
    """What no event from a version on is before."""
    _, _, _, topological, stream, _, follows, was_purged = version
    if isinstance(topological, int) and isinstance(stream, int):
        return EventOrdering(topological, stream) if follows and not was_purged else START
    return START if was_purged else END  # nothing on the line follows


def _end_before(version: Sequence[object]) -> EventOrdering | None:
    """What all events before a version are before; None if no event is known to follow it."""
    _, _, _, topological, stream, reach, *_ = version
    if not isinstance(topological, int) or not isinstance(stream, int):
        return None
    return EventOrdering(reach if isinstance(reach, int) else topological, stream)


def _may_see(viewer: Viewer, membership: int, visibility: HistoryVisibility) -> bool:
    """Whether a user may see an ordinary event."""
    return _shows(membership, visibility, peeks=viewer.is_peeking)


@cache
def _shows(membership: int, visibility: HistoryVisibility, *, peeks: bool) -> bool:
    text = membership_text(membership)
    message = EventAudience("", "", visibility, visibility, False, None, "leave", None)
    return visible_to_user(message, Viewer("@viewer:server", is_peeking=peeks), text).reason.shows


def ranges(
    spans: Sequence[Span], after: EventOrdering, upto: EventOrdering
) -> list[tuple[EventOrdering, EventOrdering]]:
    """The parts of the topological ordering with the events of some spans.

    :returns: ascending and disjoint; each without its end
    """
    found: list[tuple[EventOrdering, EventOrdering]] = []
    for start, end in sorted((max(span.start, after), min(span.end, upto)) for span in spans):
        if start >= end:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found
