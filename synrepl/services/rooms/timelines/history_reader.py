"""Pages of a room's history for a user, and the events around one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering, server_of
from synrepl.services.rooms.timelines.client_events import (
    ClientEventMaker,
    EntryOfRoom,
    EventOfRoom,
    in_order,
)
from synrepl.services.rooms.timelines.client_filter import RoomEventFilter
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.room_view import UserRoomView
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    DamagedRoom,
    EventContext,
    EventNotVisible,
    MessagesPage,
)
from synrepl.storage.database import Transaction
from synrepl.storage.federation.inbound_rooms import some_servers
from synrepl.storage.rooms.reading.messages import missing_in_page
from synrepl.storage.rooms.timelines.cited_members import cited_members
from synrepl.storage.rooms.timelines.room_entries import (
    MEMBER,
    entries_before,
    state_entries_after,
)
from synrepl.storage.rooms.timelines.shown_events import ShownEvent, of_seen
from synrepl.storage.rooms.visibility.event_visibility import seen_by_viewer
from synrepl.storage.rooms.visibility.pages import (
    PageOrder,
    PageRequest,
    VisiblePage,
    page_for,
)

_Position = RoomToken | PositionVector | None


class HistoryReader:
    """Reads the history of one room, in a transaction.

    :param view: what the user may read
    """

    def __init__(
        self, txn: Transaction, view: UserRoomView, wanted: RoomEventFilter, now_ms: int
    ) -> None:
        self._txn = txn
        self._view = view
        self._wanted = wanted
        room_ids = {view.room.room_no: view.room.room_id}
        self._maker = ClientEventMaker(txn, view.reader, now_ms, room_ids=room_ids)

    def page(
        self, start: _Position, end: _Position, *, backwards: bool, limit: int
    ) -> MessagesPage:
        """A page of the history.

        :raises DamagedRoom: an event of it is damaged
        """
        now = self._view.now
        if backwards:
            request = self._backwards(_token(start, now), end, limit)
        else:
            request = self._forwards(start, end, limit)
        page = page_for(self._view.user, request)
        shown = of_seen(page.events)
        following = self._next(request, page)
        gaps = self._gaps(page, request) if backwards else ()
        return MessagesPage(
            self._events(shown),
            self._members(shown),
            _token(start, now),
            following,
            gaps,
            _below(request, shown) if gaps and following is None else None,
        )

    def _gaps(self, page: VisiblePage, request: PageRequest) -> Sequence[str]:
        """Missing events in the part of the room that a page covers, if another server is in the room."""
        room = self._view.room
        gaps = missing_in_page(self._txn, room, page, request)
        own = {server_of(self._view.reader.user_id)}
        return gaps if gaps and set(some_servers(self._txn, room.room_no, 2)) - own else ()

    def _backwards(self, start: RoomToken, end: _Position, limit: int) -> PageRequest:
        since, floor = None, None
        if isinstance(end, PositionVector):
            floor = end
        elif end is not None:
            since, floor = end.position, end.ceiling if end.position is None else None
        return PageRequest(
            limit,
            since=since,
            upto=start.position,
            ceiling=_least(start.ceiling, self._view),
            floor=floor,
            wanted=self._wanted.sql(),
        )

    def _forwards(self, start: _Position, end: _Position, limit: int) -> PageRequest:
        if isinstance(end, PositionVector):
            end = RoomToken(end)
        known = self._view.now
        if start is not None:  # it may come from a process that is ahead of this one
            known = known.merge(start.ceiling if isinstance(start, RoomToken) else start)
        if end is not None and end.position is None:
            known = end.ceiling
        ceiling = _least(known, self._view)
        until = None if end is None else end.position
        if isinstance(start, RoomToken) and start.position is not None:
            return PageRequest(
                limit,
                since=start.position,
                upto=until,
                backwards=False,
                ceiling=ceiling,
                wanted=self._wanted.sql(),
            )
        floor = start.ceiling if isinstance(start, RoomToken) else start
        if floor is None:
            return PageRequest(
                limit, upto=until, backwards=False, ceiling=ceiling, wanted=self._wanted.sql()
            )
        # What comes after a sync is in the order of the stream, as syncs are.
        return PageRequest(
            limit,
            since=EventOrdering(0, floor.linear),
            backwards=False,
            order=PageOrder.STREAM,
            ceiling=ceiling,
            floor=floor,
            wanted=self._wanted.sql(),
        )

    def _next(self, request: PageRequest, page: VisiblePage) -> RoomToken | None:
        if page.next is None:
            return None
        if request.order is PageOrder.STREAM:
            assert request.floor is not None
            return RoomToken(request.floor.merge(request.ceiling.lowered(page.next.stream)))
        return RoomToken(request.ceiling, page.next)

    def context(self, event_id: str, limit: int) -> EventContext:
        """An event and those around it.

        :param limit: number of the others
        :raises EventNotVisible: :raises DamagedRoom:
        """
        event = self._shown(event_id)
        topological, stream = event.ordering
        before_count, after_count = limit - limit // 2, limit // 2
        now = self._view.now
        older = RoomToken(now, EventOrdering(topological, stream - 1))
        newer = RoomToken(now, event.ordering)
        before = self._part(older, before_count, backwards=True)
        after = self._part(newer, after_count, backwards=False)
        last = after[-1] if after else event
        state = self._state_after(last, {each.sender for each in (event, *before, *after)})
        made = self._made([event, *before, *after], state)
        start = before[-1].ordering if before else event.ordering
        return EventContext(
            made[event.event_no],
            in_order(made, [each.event_no for each in before]),
            in_order(made, [each.event_no for each in after]),
            [each for each in in_order(made, state) if self._wanted.allows(each.type, each.sender)],
            RoomToken(now, EventOrdering(start.topological, start.stream - 1)),
            RoomToken(now, last.ordering),
        )

    def _part(self, start: RoomToken, limit: int, *, backwards: bool) -> list[ShownEvent]:
        if not limit:
            return []
        request = (
            self._backwards(start, None, limit) if backwards else self._forwards(start, None, limit)
        )
        page = page_for(self._view.user, request)
        return of_seen(page.events)

    def event(self, event_id: str) -> ClientEvent:
        """One event.

        :raises EventNotVisible: :raises DamagedRoom:
        """
        return self._events([self._shown(event_id)])[0]

    def _shown(self, event_id: str) -> ShownEvent:
        named = [event_id] if "\0" not in event_id else []
        room_id, user = self._view.room.room_id, self._view.user
        seen = seen_by_viewer(user, named).get(event_id)
        if seen is None or not seen.verdict.reason.shows or not self._is_readable(seen.ordering):
            raise EventNotVisible(event_id=event_id, room_id=room_id, user=user.viewer.user)
        return of_seen([seen])[0]

    def _is_readable(self, ordering: EventOrdering) -> bool:
        """Whether an event is in the part that the user may read."""
        return ordering.stream <= self._view.upto.highest

    def _events(self, shown: Sequence[ShownEvent]) -> list[ClientEvent]:
        return in_order(self._made(shown), [each.event_no for each in shown])

    def _made(
        self, shown: Sequence[ShownEvent], entries: Collection[int] = ()
    ) -> Mapping[int, ClientEvent]:
        """Events of the timeline, and state events by their numbers."""
        room = self._view.room
        made = self._maker.make(
            [EventOfRoom(room.room_no, room.version, each) for each in shown],
            [EntryOfRoom(room.room_no, room.version, each) for each in entries],
        )
        if made.damaged:
            raise DamagedRoom(room_id=room.room_id, reason=made.damaged[room.room_no])
        return made.events

    def _state_after(self, event: ShownEvent, senders: Collection[str]) -> Collection[int]:
        """The state after an event; with lazy loading, with the memberships of some users."""
        entries = state_entries_after(self._txn, self._view.room.room_no, event.event_no)
        if self._wanted.lazy_load_members:
            entries = {k: n for k, n in entries.items() if k[0] != MEMBER or k[1] in senders}
        return entries.values()

    def _members(self, shown: Sequence[ShownEvent]) -> list[ClientEvent]:
        """With lazy loading, the memberships of the senders at the newest event shown."""
        if not self._wanted.lazy_load_members or not shown:
            return []
        room = self._view.room
        newest = max(shown, key=lambda each: each.ordering)
        senders = sorted({each.sender for each in shown})
        entries = entries_before(
            self._txn, [(room.room_no, newest.group_before, (MEMBER, user)) for user in senders]
        )
        if None in entries.values():  # the room is partial, or was so when its users left
            cited = cited_members(self._txn, [each.event_no for each in shown])
            for (_, user), number in cited.items():
                key = room.room_no, (MEMBER, user)
                entries[key] = number if entries.get(key) is None else entries[key]
        numbers = [each for each in entries.values() if each is not None]
        made = self._maker.make(
            (), [EntryOfRoom(room.room_no, room.version, each) for each in numbers]
        )
        return in_order(made.events, numbers)


def _token(position: _Position, now: PositionVector) -> RoomToken:
    """A position as a token."""
    if isinstance(position, RoomToken):
        return position
    return RoomToken(now if position is None else position)


def _below(request: PageRequest, shown: Sequence[ShownEvent]) -> RoomToken:
    """Where a page begins that has what is missing now, if it comes later."""
    if not shown:
        return RoomToken(request.ceiling, request.upto)
    topological, stream = shown[-1].ordering
    return RoomToken(request.ceiling, EventOrdering(topological, stream - 1))


def _least(ceiling: PositionVector, view: UserRoomView) -> PositionVector:
    """A ceiling that is not above what the user may read."""
    if view.is_joined:
        return ceiling
    return ceiling.lowered(view.upto.highest)
