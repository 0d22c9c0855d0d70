"""Reads what clients are mostly told of one room in one statement, without a transaction and its thread.

It covers the plain case: the user is in the room and the room is complete, nothing of the answer was redacted or is of an
erased user, and all that would be shown may be seen. Everything else is left to a transaction
(:mod:`.history_reader`, :mod:`.states_reader`), which gives the same answer in the plain case. The rules of what may be seen are
the same expressions in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from synrepl.core.clock import Clock
from synrepl.core.errors import StorageError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.throttled_log import ThrottledLog
from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering
from synrepl.services.rooms.timelines.client_events import (
    ClientEventForms,
    EntryOfRoom,
    in_order,
    made_events,
)
from synrepl.services.rooms.timelines.client_filter import RoomEventFilter
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    EventContext,
    MessagesPage,
    TimelineReader,
)
from synrepl.storage.database import Statements
from synrepl.storage.rooms.timelines.event_sources import AnswerRows
from synrepl.storage.rooms.timelines.plain_rows import (
    PlainReader,
    plain_context,
    plain_members,
    plain_page,
)
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.visibility.event_filter import ALL_EVENTS
from synrepl.storage.rooms.visibility.viewers import END

T = TypeVar("T")

#: Events above which they are not read so: the answer is made in the thread of the reactor.
MOST_EVENTS = 100


#: How a plain read may end.
PLAIN, SPECIAL, FAILED = "plain", "special", "failed"


class PlainReads:
    """Reads on a connection of its own.

    :param statements: with :data:`.PLAIN_SETTINGS`
    :ivar counts: number of reads that were tried, by the request and how they ended: ``plain``, ``special`` if a transaction
        has to read it, ``failed`` if it does so because of an error
    """

    def __init__(self, statements: Statements, clock: Clock, log: Logger) -> None:
        self._statements = statements
        self._clock = clock
        self._failures = ThrottledLog(clock, log)
        self.counts: Mapping[str, Counter[str]] = {
            each: Counter() for each in ("members", "context", "messages")
        }

    async def counted(self, request: str, reading: Coroutine[Any, Any, T | None]) -> T | None:
        """What one of the reads below gives; None also if it fails, which is counted and logged."""
        try:
            found = await reading
        except (StorageError, Unavailable) as error:
            self.counts[request][FAILED] += 1
            self._failures.warn(
                (request, type(error)),
                "/{request} is read in a transaction, because its statement failed: {error}",
                request=request,
                error=error,
            )
            return None
        self.counts[request][SPECIAL if found is None else PLAIN] += 1
        return found

    async def members(
        self, reader: TimelineReader, room_id: str, at: RoomToken | PositionVector | None
    ) -> list[ClientEvent] | None:
        """The memberships of a room; None if that is not plain. See :meth:`.Timelines.members`."""
        vector = at.ceiling if isinstance(at, RoomToken) else at
        upto = None if vector is None else vector.linear
        if not _are_texts(room_id):
            return None
        found = await plain_members(self._statements, room_id, reader.user_id, upto)
        if found is None:
            return None
        entries = [EntryOfRoom(found.room_no, found.version, each) for each in found.numbers]
        made = made_events(self._forms(found.room_no, room_id), found.rows, (), entries)
        return None if made.damaged else in_order(made.events, found.numbers)

    async def context(
        self,
        reader: TimelineReader,
        room_id: str,
        event_id: str,
        now: PositionVector,
        limit: int,
        wanted: RoomEventFilter,
    ) -> EventContext | None:
        """An event and those around it; None if that is not plain. See :meth:`.Timelines.context`."""
        if limit > MOST_EVENTS or wanted.sql() != ALL_EVENTS or not _are_texts(room_id, event_id):
            return None
        found = await plain_context(
            self._statements,
            _plain_reader(reader, room_id, now),
            event_id,
            limit - limit // 2,
            limit // 2,
        )
        if found is None or found.event is None:
            return None
        shown = [found.event, *found.before, *found.after]
        made = made_events(
            self._forms(found.room_no, room_id),
            found.rows,
            [(found.room_no, found.version, each) for each in shown],
            [EntryOfRoom(found.room_no, found.version, each) for each in found.state],
        )
        if made.damaged:
            return None
        state = in_order(made.events, found.state)
        if wanted.lazy_load_members:
            senders = {each.sender for each in shown}
            state = [e for e in state if e.type != MEMBER or e.state_key in senders]
        first = found.before[-1] if found.before else found.event
        last = found.after[-1] if found.after else found.event
        return EventContext(
            made.events[found.event.event_no],
            in_order(made.events, [each.event_no for each in found.before]),
            in_order(made.events, [each.event_no for each in found.after]),
            [each for each in state if wanted.allows(each.type, each.sender)],
            RoomToken(now, EventOrdering(first.ordering.topological, first.ordering.stream - 1)),
            RoomToken(now, last.ordering),
        )

    async def page(
        self,
        reader: TimelineReader,
        room_id: str,
        start: RoomToken,
        limit: int,
        wanted: RoomEventFilter,
    ) -> MessagesPage | None:
        """A page of a room's history backwards; None if that is not plain. See :meth:`.Timelines.messages`."""
        if limit > MOST_EVENTS or wanted.sql() != ALL_EVENTS or not _are_texts(room_id):
            return None
        found = await plain_page(
            self._statements,
            _plain_reader(reader, room_id, start.ceiling),
            start.position or END,
            limit,
            lazy=wanted.lazy_load_members,
        )
        if found is None:
            return None
        forms = self._forms(found.room_no, room_id)
        events = [(found.room_no, found.version, each) for each in found.before]
        entries = [EntryOfRoom(found.room_no, found.version, each) for each in found.state]
        made = made_events(forms, found.rows, events, entries)
        if made.damaged:
            return None
        state = made
        if wanted.lazy_load_members:  # without what an event of the page has besides
            rows = [row for row in found.rows.rows if row[0] in found.state]
            rooms = dict.fromkeys(found.state, found.room_no)
            state = made_events(forms, AnswerRows(rooms, rows, {}, {}), (), entries)
        last = found.before[-1].ordering
        following = EventOrdering(last.topological, last.stream - 1)
        return MessagesPage(
            in_order(made.events, [each.event_no for each in found.before]),
            in_order(state.events, found.state),
            start,
            RoomToken(start.ceiling, following) if len(found.before) == limit else None,
            (),
            None,
        )

    def _forms(self, room_no: int, room_id: str) -> ClientEventForms:
        return ClientEventForms(int(self._clock.seconds() * 1000), room_ids={room_no: room_id})


def _plain_reader(reader: TimelineReader, room_id: str, ceiling: PositionVector) -> PlainReader:
    return PlainReader(room_id, reader.user_id, reader.device_id, reader.ignored, ceiling)


def _are_texts(*given: str) -> bool:
    """Whether PostgreSQL takes them."""
    return not any("\0" in each for each in given)
