"""Pages of the events of a room that a user sees.

What the user may not see is left out before ``LIMIT``, so a page is full unless there is nothing more. Its
parts are read separately, each from an index in the order of the page, and merged:

- events on the main line and near it, from the ranges in which the user's membership shows them;
- events near the line after which the user's membership may be another one than on the line;
- events beside the line, by history visibility, each with the membership at its own state;
- the user's own departures and invitations, and changes of the history visibility, which have rules of
  their own.

A page looks at no more than :data:`~.page_sql.SCAN_ROWS` events beside the line that need a membership. If there are more,
it ends there, shorter than its limit, and says where to go on. So does a page with a filter that has looked at
enough events (:mod:`synrepl.storage.rooms.visibility.event_filter`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, HistoryVisibility, Viewer
from synrepl.storage.database import DeferredScript, Transaction
from synrepl.storage.rooms.visibility.audience import INVITE, JOIN, SETS_SHIFT
from synrepl.storage.rooms.visibility.covered_sql import (
    EVERYTHING,
    covered_params,
    covered_sql,
    not_covered_sql,
    writers_above,
)
from synrepl.storage.rooms.visibility.event_filter import ALL_EVENTS, EventFilterSql
from synrepl.storage.rooms.visibility.page_sql import page_sql
from synrepl.storage.rooms.visibility.room_viewer import RoomViewer
from synrepl.storage.rooms.visibility.viewer_sql import (
    SeenEvent,
    ordinary_sql,
    seen_events,
    viewer_params,
    viewer_sql,
)
from synrepl.storage.rooms.visibility.viewers import (
    END,
    START,
    Span,
    ViewerHistory,
    ranges,
)

#: Largest number of events on a page.
MAX_PAGE = 1_000


class BadPageSize(InputError):
    """a page of {limit} events was requested; it must have from 1 to {most}"""


class PageOrder(StrEnum):
    """The ordering of a page."""

    TOPOLOGICAL = "topological"
    STREAM = "stream"


class PageRequest(NamedTuple):
    """What is requested of a room.

    Positions are between events: just after the event with that ordering. In the stream ordering, only
    their second half counts.

    :ivar since: events after it; None: from the beginning
    :ivar upto: events up to it; None: to the end
    :ivar backwards: whether the newest come first; otherwise the oldest
    :ivar ceiling: only events that this vector covers; its linear position may be negative, and is a stream
        ordering of backfilled events then
    :ivar floor: only events that this vector does not cover; None: all
    :ivar wanted: only these events
    """

    limit: int
    since: EventOrdering | None = None
    upto: EventOrdering | None = None
    backwards: bool = True
    order: PageOrder = PageOrder.TOPOLOGICAL
    ceiling: PositionVector = EVERYTHING
    floor: PositionVector | None = None
    wanted: EventFilterSql = ALL_EVENTS

    @property
    def is_plain(self) -> bool:
        """Whether its statements have one of a few texts."""
        return self.wanted == ALL_EVENTS and self.floor is None and not writers_above(self.ceiling)


class VisiblePage(NamedTuple):
    """Events in the order of the request.

    :ivar next: where the next page begins: its ``upto`` if backwards, else its ``since``; None if there is
        no more
    """

    events: Sequence[SeenEvent]
    next: EventOrdering | None


def visible_page(
    txn: Transaction, room_id: str, viewer: Viewer, request: PageRequest
) -> VisiblePage:
    """A page of what a user sees of a room.

    :raises UnknownRoom: it is not in the store
    :raises BadPageSize: the limit is not from 1 to :data:`MAX_PAGE`
    :raises TooManyIgnored: see :class:`~synrepl.storage.rooms.visibility.viewer_sql.TooManyIgnored`
    """
    return page_for(RoomViewer.find(txn, room_id, viewer), request)


def page_for(user: RoomViewer, request: PageRequest) -> VisiblePage:
    """The same for a user in a room.

    :raises BadPageSize: :raises TooManyIgnored:
    """
    if not 1 <= request.limit <= MAX_PAGE:
        raise BadPageSize(limit=request.limit, most=MAX_PAGE)
    user.txn.execute(_IN_ORDER)
    window = _window(request)
    by_stream = request.order is PageOrder.STREAM
    edge = window.high if request.backwards else window.low
    part = user.part(edge, backwards=request.backwards, by_stream=by_stream)
    tried = window.within(part.low, part.high, by_stream)
    if tried.low < tried.high:
        page = _page(user, part.history, request, tried)
        if tried == window or len(page.events) == request.limit:
            return page
    return _page(user, user.history(), request, window)


def _page(
    user: RoomViewer, history: ViewerHistory, request: PageRequest, window: _Window
) -> VisiblePage:
    """A page.

    :param history: right for all events of the window
    """
    pages = _Pages(history, user.viewer, request)
    if user.may_have_branches or request.wanted.scan_rows is not None:
        window = pages.scannable(user.txn, window)
    events = pages.read(user.txn, window)
    is_full = len(events) == request.limit
    return VisiblePage(events, pages.position_after(window, events[-1] if is_full else None))


class _Window(NamedTuple):
    """The events from one ordering to another, without the latter.

    :ivar beside: history visibilities of events in it that are beside the main line
    :ivar is_cut: whether the request went further
    """

    low: EventOrdering
    high: EventOrdering
    beside: Sequence[int] = ()
    is_cut: bool = False

    def within(self, low: EventOrdering, high: EventOrdering, by_stream: bool) -> _Window:
        """The part of it between two orderings."""
        if by_stream:
            low, high = EventOrdering(0, low.stream), EventOrdering(0, high.stream)
        return self._replace(low=max(self.low, low), high=min(self.high, high))


def _window(request: PageRequest) -> _Window:
    low, high = _bound(request.since, START), _bound(request.upto, END)
    if request.order is PageOrder.STREAM:
        low, high = EventOrdering(0, low.stream), EventOrdering(0, high.stream)
    return _Window(low, high)


def _bound(position: EventOrdering | None, default: EventOrdering) -> EventOrdering:
    """The first ordering after a position."""
    if position is None:
        return default
    return min(EventOrdering(position.topological, position.stream + 1), END)


class _Pages:
    """The statements for one user in one room."""

    def __init__(self, history: ViewerHistory, viewer: Viewer, request: PageRequest) -> None:
        self._viewer, self._request = viewer, request
        self._spans: Sequence[Span] = history.visible_spans(viewer)
        wanted, params = _wanted_sql(request)
        self._is_topological = request.order is PageOrder.TOPOLOGICAL
        self._sql = page_sql(
            viewer_sql(history, viewer),
            ordinary_sql(history, viewer),
            wanted,
            is_topological=self._is_topological,
            backwards=request.backwards,
        )
        self._params = viewer_params(history, viewer) | {"limit": request.limit, **params}
        if not self._is_topological:
            self._spans = [_by_stream(span) for span in self._spans]

    def scannable(self, txn: Transaction, window: _Window) -> _Window:
        """The part of a window in which there are not too many events to look at."""
        txn.execute(self._sql.probe, self._window_params(window))
        found = txn.fetchall()
        if any(not self._is_open(visibility) for visibility, _ in found):
            was_there = txn.execute(_WAS_IN_THE_ROOM, self._params).fetchone()[0]
            found = [row for row in found if was_there or self._is_open(row[0])]
        for visibility, last in found:
            if last is not None and not self._is_open(visibility):
                window = self._cut(window, EventOrdering(*last))
        if self._request.wanted.scan_rows is not None:
            window = self._cut_for_filter(txn, window, self._request.wanted.scan_rows)
        return window._replace(beside=[visibility for visibility, _ in found])

    def _cut_for_filter(self, txn: Transaction, window: _Window, rows: int) -> _Window:
        """The part of a window with so many events that others than wanted ones may be looked at."""
        txn.execute(self._sql.nth(rows), self._window_params(window))
        last = txn.fetchone_or_none()
        if last is None:
            return window
        topological = last[0] if self._is_topological else 0
        return self._cut(window, EventOrdering(topological, last[1]))

    def _is_open(self, visibility: int) -> bool:
        """Whether this history visibility shows events without a membership."""
        if visibility == HistoryVisibility.WORLD_READABLE:
            return True
        return visibility == HistoryVisibility.SHARED and not self._viewer.is_peeking

    def _cut(self, window: _Window, last: EventOrdering) -> _Window:
        """The window up to an event."""
        if self._request.backwards:
            return window._replace(low=max(window.low, last), is_cut=True)
        return window._replace(high=min(window.high, _bound(last, END)), is_cut=True)

    def read(self, txn: Transaction, window: _Window) -> list[SeenEvent]:
        """The events of a page."""
        params = self._window_params(window) | self._range_params(window)
        # With the histories beside the line, or with filters, there would be many texts.
        return seen_events(
            txn,
            self._sql.source if not window.beside else self._sql.source_with(window.beside),
            params,
            self._sql.inputs,
            self._sql.order("found"),
            planned_once=not window.beside and self._request.is_plain,
        )

    def position_after(self, window: _Window, last: SeenEvent | None) -> EventOrdering | None:
        """The position at which the next page begins.

        :param last: the last event of a full page
        """
        if last is None:
            if not window.is_cut:
                return None
            edge = window.low if self._request.backwards else window.high
            return edge._replace(stream=edge.stream - 1)
        topological, stream = last.ordering
        return EventOrdering(topological, stream - self._request.backwards)

    def _window_params(self, window: _Window) -> dict[str, object]:
        return self._params | {
            "low_topological": window.low.topological,
            "low_stream": window.low.stream,
            "high_topological": window.high.topological,
            "high_stream": window.high.stream,
        }

    def _range_params(self, window: _Window) -> dict[str, object]:
        found = ranges(self._spans, window.low, window.high)
        if self._request.backwards:
            found.reverse()
        return {
            "from_topological": [start.topological for start, _ in found],
            "from_stream": [start.stream for start, _ in found],
            "to_topological": [end.topological for _, end in found],
            "to_stream": [end.stream for _, end in found],
        }


def _wanted_sql(request: PageRequest) -> tuple[str, dict[str, object]]:
    """The conditions of a request that do not depend on the viewer, each preceded by AND, and their parameters."""
    # Not for the index of the stream, which is in another order: the planner might think that few events are left.
    stream_id = "e.stream_id" if request.order is PageOrder.STREAM else "(e.stream_id + 0)"
    sql = f" AND {covered_sql(request.ceiling, 'ceiling', stream_id)}{request.wanted.predicate}"
    params = {**covered_params(request.ceiling, "ceiling"), **request.wanted.params}
    if request.floor is not None:
        sql += f" AND {not_covered_sql(request.floor, 'floor', stream_id)}"
        params |= covered_params(request.floor, "floor")
    return sql, params


def _by_stream(span: Span) -> Span:
    """A span with its stream orderings only."""
    start, end = EventOrdering(0, span.start.stream), EventOrdering(0, span.end.stream)
    return span._replace(start=start, end=end)


# PostgreSQL expects the filters to leave next to nothing, and would read and sort whole ranges to find it. Each part
# has an index in its order, so that it can stop when the page is full. For the same reason it expects costs for which
# it compiles expressions, which takes longer than the page.
_IN_ORDER = DeferredScript(["SET LOCAL enable_bitmapscan = off", "SET LOCAL jit = off"])

# Whether the user ever had a membership that shows more than none.
_WAS_IN_THE_ROOM = (
    "SELECT EXISTS (SELECT FROM synrepl._room_events e WHERE e.room_no = %(room)s AND e.slot = %(slot)s"
    f" AND ((e.audience >> {SETS_SHIFT}) & 7) IN ({JOIN}, {INVITE}))"
)
