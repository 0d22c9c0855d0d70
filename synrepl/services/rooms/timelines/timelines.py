"""What users see of rooms, read in batches over many rooms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from synrepl.core.clock import Clock
from synrepl.positions.vector import PositionVector
from synrepl.services.rooms.timelines.client_filter import (
    NO_FILTER,
    ClientFilter,
    RoomEventFilter,
)
from synrepl.services.rooms.timelines.history_reader import HistoryReader, position_token
from synrepl.services.rooms.timelines.plain_reads import PlainReads
from synrepl.services.rooms.timelines.room_selection import rooms_at_first, rooms_with_news
from synrepl.services.rooms.timelines.room_tail import NotInTail
from synrepl.services.rooms.timelines.room_tails import RoomTails
from synrepl.services.rooms.timelines.room_token import RoomToken
from synrepl.services.rooms.timelines.room_view import room_view
from synrepl.services.rooms.timelines.rooms_to_read import RoomsToRead
from synrepl.services.rooms.timelines.states_reader import StatesReader, with_membership
from synrepl.services.rooms.timelines.update_reader import UpdateReader
from synrepl.services.rooms.timelines.updates import (
    ClientEvent,
    EventContext,
    JoinedMember,
    JoinedRoom,
    MessagesPage,
    RoomPage,
    RoomsUpdate,
    TimelineReader,
)
from synrepl.storage.database import GENERIC_PLANS, Database, Isolation, Transaction
from synrepl.storage.rooms.timelines.user_rooms import rooms_with_membership

T = TypeVar("T")

#: Rooms of one update that are read as tails, which others may share.
MAX_TAILS = 32

#: Joined rooms that are read in one transaction.
ROOMS_AT_ONCE = 50


#: How often an update is read again because a room lacked what came before.
MAX_ROUNDS = 3


class FillsGaps(Protocol):
    """Waits for what rooms lack."""

    async def filled(self, upto: PositionVector) -> PositionVector | None:
        """Wait until there are no gaps below the highest token of a vector.

        :returns: what is applied now; None if it took too long
        """


class KnownGaps:
    """Implements :class:`FillsGaps` where nothing more comes."""

    async def filled(self, upto: PositionVector) -> PositionVector | None:
        """Do not wait."""
        return None


@dataclass(frozen=True, slots=True)
class Timelines:
    """Reads rooms for clients.

    Updates are as of a vector of the stream ``events``: what the process has applied, or less where a room lacks what came
    before it. The database may have more, which is left out. What is read of one room is what the database has.

    :ivar tails: has to hear of changes of rooms
    :ivar plain: reads what is plain; None: everything is read in transactions
    """

    database: Database
    clock: Clock
    tails: RoomTails
    gaps: FillsGaps = KnownGaps()  # noqa: RUF009  # it has no state
    plain: PlainReads | None = None

    async def initial(
        self,
        reader: TimelineReader,
        upto: PositionVector,
        wanted: ClientFilter = NO_FILTER,
        page: RoomPage | None = None,
        *,
        state_after: bool = False,
    ) -> RoomsUpdate:
        """The rooms of a user with the newest events and the state of each.

        :param page: only these of the joined rooms; others than joined ones come with the first page
        :param state_after: whether states are those at the end of timelines (MSC4222)
        """
        return await merged(self.initial_parts(reader, upto, wanted, page, state_after=state_after))

    def initial_parts(
        self,
        reader: TimelineReader,
        upto: PositionVector,
        wanted: ClientFilter = NO_FILTER,
        page: RoomPage | None = None,
        *,
        state_after: bool = False,
    ) -> AsyncIterator[RoomsUpdate]:
        """The same, :data:`ROOMS_AT_ONCE` joined rooms at a time."""

        def select(upto: PositionVector, txn: Transaction) -> RoomsToRead:
            return rooms_at_first(txn, reader.user_id, upto, wanted.room, page)

        def read(rooms: RoomsToRead, txn: Transaction) -> RoomsUpdate:
            return UpdateReader(
                txn, reader, rooms.upto, rooms, wanted, self._now_ms(), state_after=state_after
            ).read()

        return self._read_in_parts("initial sync", select, read, upto)

    async def since(
        self,
        reader: TimelineReader,
        since: PositionVector,
        upto: PositionVector,
        changed_rooms: Collection[str] | None = None,
        wanted: ClientFilter = NO_FILTER,
        *,
        memberships_changed: bool = True,
        full_state: bool = False,
        state_after: bool = False,
    ) -> RoomsUpdate:
        """What is new in the rooms of a user; rooms without news are left out, unless ``full_state``.

        :param changed_rooms: the rooms of the user in which something may be new; None: find out. Rooms in
            which the user's membership changed need not be named
        :param memberships_changed: False: it is known that the user's memberships are those as of ``since``, also
            now, and that the user is in each of ``changed_rooms``
        :param full_state: give all joined rooms with their whole state
        """
        if changed_rooms is not None and not (memberships_changed or full_state):
            shared = await self._of_tails(
                reader, since, upto, changed_rooms, wanted, state_after=state_after
            )
            if shared is not None:
                return shared

        def select(upto: PositionVector, txn: Transaction) -> RoomsToRead:
            return rooms_with_news(
                txn,
                reader.user_id,
                since,
                upto,
                wanted.room,
                None if full_state else changed_rooms,
                full_state=full_state,
            )

        def read(rooms: RoomsToRead, txn: Transaction) -> RoomsUpdate:
            return UpdateReader(
                txn, reader, since, rooms, wanted, self._now_ms(), state_after=state_after
            ).read()

        return await merged(self._read_in_parts("sync", select, read, upto))

    async def _of_tails(
        self,
        reader: TimelineReader,
        since: PositionVector,
        upto: PositionVector,
        changed_rooms: Collection[str],
        wanted: ClientFilter,
        *,
        state_after: bool,
    ) -> RoomsUpdate | None:
        """What is new in rooms that the user was in all the time; None if that does not follow from their tails."""
        room_ids = [each for each in changed_rooms if wanted.room.allows_room(each)]
        if len(room_ids) > MAX_TAILS:
            return None
        tails = await self.tails.tails_of(room_ids, since)
        joined: dict[str, JoinedRoom] = {}
        try:
            for tail in sorted(tails.values(), key=lambda each: (-each.newest, each.room_id)):
                room = tail.joined_room(reader, since, upto, wanted, state_after=state_after)
                if room is not None:
                    joined[tail.room_id] = room
        except NotInTail:
            return None
        return RoomsUpdate(joined, upto=upto)

    async def messages(
        self,
        reader: TimelineReader,
        room_id: str,
        upto: PositionVector,
        start: RoomToken | PositionVector | None,
        end: RoomToken | PositionVector | None = None,
        *,
        backwards: bool = True,
        limit: int = 10,
        wanted: RoomEventFilter | None = None,
    ) -> MessagesPage:
        """A page of the history of a room.

        :param start: a vector is that of a sync token; None: the end of the room, or its beginning
        :param end: where to stop
        :raises NotInRoom: :raises UnknownRoom:
        """
        if self.plain is not None and backwards and end is None:
            token = position_token(start, upto)
            reading = self.plain.page(reader, room_id, token, limit, wanted or RoomEventFilter())
            page = await self.plain.counted("messages", reading)
            if page is not None:
                return page

        def work(txn: Transaction) -> MessagesPage:
            return self._history(txn, reader, room_id, upto, wanted).page(
                start, end, backwards=backwards, limit=limit
            )

        return await self._read("messages", work)

    async def context(
        self,
        reader: TimelineReader,
        room_id: str,
        event_id: str,
        upto: PositionVector,
        limit: int = 10,
        wanted: RoomEventFilter | None = None,
    ) -> EventContext:
        """An event and those around it.

        :raises NotInRoom: :raises UnknownRoom: :raises EventNotVisible:
        """
        if self.plain is not None:
            reading = self.plain.context(
                reader, room_id, event_id, upto, limit, wanted or RoomEventFilter()
            )
            found = await self.plain.counted("context", reading)
            if found is not None:
                return found

        def work(txn: Transaction) -> EventContext:
            return self._history(txn, reader, room_id, upto, wanted).context(event_id, limit)

        return await self._read("context", work)

    async def event(
        self, reader: TimelineReader, room_id: str, event_id: str, upto: PositionVector
    ) -> ClientEvent:
        """One event.

        :raises NotInRoom: :raises UnknownRoom: :raises EventNotVisible:
        """

        def work(txn: Transaction) -> ClientEvent:
            return self._history(txn, reader, room_id, upto, None).event(event_id)

        return await self._read("event", work)

    async def state(
        self, reader: TimelineReader, room_id: str, upto: PositionVector
    ) -> Sequence[ClientEvent]:
        """The current state of a room; for a user who left, that after the leave.

        :raises NotInRoom: :raises UnknownRoom: :raises StateNotKnownYet:
        """

        def work(txn: Transaction) -> Sequence[ClientEvent]:
            return self._states(txn, reader, room_id, upto).state()

        return await self._read("state", work)

    async def state_entry(
        self,
        reader: TimelineReader,
        room_id: str,
        kind: str,
        state_key: str,
        upto: PositionVector,
    ) -> ClientEvent:
        """One entry of the same.

        :raises NotInRoom: :raises UnknownRoom: :raises HasNoEntry: :raises StateNotKnownYet:
        """

        def work(txn: Transaction) -> ClientEvent:
            return self._states(txn, reader, room_id, upto).entry((kind, state_key))

        return await self._read("state entry", work)

    async def members(
        self,
        reader: TimelineReader,
        room_id: str,
        upto: PositionVector,
        at: RoomToken | PositionVector | None = None,
        membership: str | None = None,
        not_membership: str | None = None,
    ) -> Sequence[ClientEvent]:
        """The memberships of a room.

        :param at: in the state at this position; None: now
        :raises NotInRoom: :raises UnknownRoom: :raises StateNotKnownYet:
        """

        def work(txn: Transaction) -> Sequence[ClientEvent]:
            return self._states(txn, reader, room_id, upto).members(at)

        found: Sequence[ClientEvent] | None = None
        if self.plain is not None:
            found = await self.plain.counted("members", self.plain.members(reader, room_id, at))
        if found is None:
            found = await self._read("members", work)
        return with_membership(found, membership, not_membership)

    async def joined_members(
        self, reader: TimelineReader, room_id: str, upto: PositionVector
    ) -> Sequence[JoinedMember]:
        """The users that are in a room.

        :raises NotInRoom: :raises UnknownRoom: :raises StateNotKnownYet:
        """

        def work(txn: Transaction) -> Sequence[JoinedMember]:
            return self._states(txn, reader, room_id, upto).joined_members()

        return await self._read("joined members", work)

    async def joined_rooms(self, user_id: str, upto: PositionVector) -> Sequence[str]:
        """The IDs of the rooms that a user is in."""

        def work(txn: Transaction) -> Sequence[str]:
            rooms = rooms_with_membership(txn, user_id, upto)
            return sorted(each.room_id for each in rooms if each.membership == "join")

        return await self._read("joined rooms", work)

    def _history(
        self,
        txn: Transaction,
        reader: TimelineReader,
        room_id: str,
        upto: PositionVector,
        wanted: RoomEventFilter | None,
    ) -> HistoryReader:
        view = room_view(txn, reader, room_id, upto, with_history=True)
        return HistoryReader(txn, view, wanted or RoomEventFilter(), self._now_ms())

    def _states(
        self, txn: Transaction, reader: TimelineReader, room_id: str, upto: PositionVector
    ) -> StatesReader:
        view = room_view(txn, reader, room_id, upto, with_history=False)
        return StatesReader(txn, view, self._now_ms())

    def _now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    async def _read_in_parts(
        self,
        name: str,
        select: Callable[[PositionVector, Transaction], RoomsToRead],
        read: Callable[[RoomsToRead, Transaction], RoomsUpdate],
        upto: PositionVector,
    ) -> AsyncIterator[RoomsUpdate]:
        """Read :data:`ROOMS_AT_ONCE` at a time, so that what is needed to read them stays small.

        They are as of one vector. If need be, the first are read again once the process has what a room lacks.
        """

        def begin(upto: PositionVector, txn: Transaction) -> tuple[RoomsUpdate, list[RoomsToRead]]:
            first, *others = select(upto, txn).parts(ROOMS_AT_ONCE)
            return read(first, txn), others

        for _ in range(MAX_ROUNDS):
            update, others = await self._read(name, partial(begin, upto))
            newer = None if update.upto == upto else await self.gaps.filled(upto)
            if newer is None:
                break
            upto = newer
        yield update
        for part in others:
            yield await self._read(name, partial(read, part))

    async def _read(self, name: str, work: Callable[[Transaction], T]) -> T:
        def planned(txn: Transaction) -> T:
            txn.execute(GENERIC_PLANS)
            return work(txn)

        return await self.database.run(
            name, planned, read_only=True, isolation=Isolation.REPEATABLE_READ
        )


async def merged(parts: AsyncIterator[RoomsUpdate]) -> RoomsUpdate:
    """An update of which there is at least one part."""
    update = await anext(parts)
    async for part in parts:
        update = update.merged(part)
    return update
