"""Answers requests of simplified sliding sync, and waits if there is nothing to tell.

Source: MSC4186.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news import ANY_NEWS, NO_NEWS, News, NewsSource
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.token_wait import SyncTokenFromFuture, TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sliding.connection_state import ConnectionState
from synrepl.services.rooms.sliding.connections import KnownPosition, SlidingConnections
from synrepl.services.rooms.sliding.extensions import (
    NO_EXTENSIONS,
    ExtensionReader,
    ExtensionResults,
    has_messages,
    known_messages,
    nothing_to_tell,
    plan_extensions,
)
from synrepl.services.rooms.sliding.room_labels import LabelsOf, RoomLabels
from synrepl.services.rooms.sliding.room_lists import (
    RoomListCache,
    UserRooms,
    read_rooms,
    with_all_for,
)
from synrepl.services.rooms.sliding.room_reader import ReadAs, read_results
from synrepl.services.rooms.sliding.room_reading import as_of
from synrepl.services.rooms.sliding.room_results import NO_ROOMS, RoomResult, SlidingRooms
from synrepl.services.rooms.sliding.sliding_plan import PlannedFrom, SlidingPlan, make_plan
from synrepl.services.rooms.sliding.sliding_pos import INCOMPLETE, SlidingPos, UnknownPosition
from synrepl.services.rooms.sliding.sliding_request import SlidingRequest
from synrepl.services.rooms.sync.sync import LONGEST_WAIT_S
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.clients.sliding_positions import ConnectionName
from synrepl.storage.database import GENERIC_PLANS, Isolation, Transaction
from synrepl.streams.synapse.events import EVENTS


@dataclass(frozen=True, slots=True)
class SlidingAnswer:
    """An answer.

    :ivar pos: for the next request
    :ivar counts: number of rooms in each list; none if they were not counted, because nothing has changed
    :ivar rooms: by ID
    :ivar is_first: whether it is the first answer of its connection
    """

    pos: str
    counts: Mapping[str, int] = field(default_factory=dict)
    rooms: Mapping[str, RoomResult] = field(default_factory=dict)
    extensions: ExtensionResults = NO_EXTENSIONS
    is_first: bool = False


class _Asked(NamedTuple):
    """A request of a connection.

    :ivar since: the token of the position; None for the first request
    :ivar members: numbers of membership events that the client has
    """

    reader: TimelineReader
    request: SlidingRequest
    state: ConnectionState
    since: SyncToken | None
    members: Collection[int]

    @property
    def lacks_account_data(self) -> bool:
        """Whether account data is wanted of which the client was not told yet."""
        return self.request.extensions.account_data is not None and (
            not self.state.has_account_data
        )


class _AnswerFound(NamedTuple):
    """What there is to tell.

    :ivar state: what the client was told, with this
    """

    plan: SlidingPlan
    rooms: SlidingRooms
    extensions: ExtensionResults
    state: ConnectionState

    @property
    def is_empty(self) -> bool:
        """Whether that is nothing."""
        return not self.rooms.results and self.extensions.is_empty


class SlidingSync:
    """Answers the requests of sliding sync. As long as nothing is new, it makes no query.

    :param server: name of this server
    :param labels_of: what account data says of the rooms of a user
    """

    def __init__(
        self,
        server: str,
        clock: Clock,
        data: UserData,
        connections: SlidingConnections,
        lists: RoomListCache,
        applied: AppliedVectors,
        covered: TokenWait,
        news: NewsSource,
        waits: WaitingSyncs,
        labels_of: LabelsOf,
        log: Logger,
    ) -> None:
        self._server = server
        self._clock = clock
        self._data = data
        self._extensions = ExtensionReader(data.data)
        self._connections = connections
        self._lists = lists
        self._applied = applied
        self._covered = covered
        self._news = news
        self._waits = waits
        self._labels_of = labels_of
        self._log = log

    async def sync(self, identity: ClientIdentity, request: SlidingRequest) -> SlidingAnswer:
        """Answer a request. It may be cancelled.

        :raises UnknownPosition: the client has to begin anew
        :raises BadToDeviceToken: :raises SynreplError: the errors of waiting for the position, and of reading rooms
        """
        name = ConnectionName(*identity, request.conn_id)
        with self._data.presence.syncing(identity.user_id, request.presence):
            await self._note_device(identity, request)
            if request.pos is None:
                return await self._begin(identity, request, name)
            return await self._next(identity, request, name, request.pos)

    async def _next(
        self, identity: ClientIdentity, request: SlidingRequest, name: ConnectionName, text: str
    ) -> SlidingAnswer:
        pos = SlidingPos.parse(text, self._server)
        position = await self._connections.find(name, pos.key)
        try:
            await self._covered.until_covered(pos.token)
        except SyncTokenFromFuture as error:
            raise UnknownPosition(reason=error) from None
        return await self._go_on(identity, request, position, pos)

    async def _note_device(self, identity: ClientIdentity, request: SlidingRequest) -> None:
        """Note that a device fetches its messages, and up to where it has them."""
        wanted = request.extensions.to_device
        if wanted is None:
            return
        known = known_messages(wanted)
        if request.pos is None:
            await self._data.devices.begins(identity)
        self._data.devices.syncs(identity, known)

    async def _begin(
        self, identity: ClientIdentity, request: SlidingRequest, name: ConnectionName
    ) -> SlidingAnswer:
        upto = self._applied.current()
        reader = await self._data.reader_of(identity)
        asked = _Asked(reader, request, ConnectionState(), None, ())
        found = await self._read(asked, NO_NEWS, upto)
        position = await self._connections.open(name, found.state)
        token = str(upto)
        self._connections.note_members(position, token, token, found.rooms.members)
        return self._answer(identity, position, found, request, upto)

    async def _go_on(
        self,
        identity: ClientIdentity,
        request: SlidingRequest,
        position: KnownPosition,
        pos: SlidingPos,
    ) -> SlidingAnswer:
        since = self._applied.readable_since(pos.token)
        is_new_request = pos.rules != request.rules_tag()
        asked: _Asked | None = None
        until = self._clock.seconds() + min(request.timeout_s, LONGEST_WAIT_S)
        while True:
            upto = self._applied.current()
            news = await self._news.news_for(identity.user_id, since, upto)
            found: _AnswerFound | None = None
            if is_new_request or not news.is_empty or _lacks_messages(request, since):
                if asked is None:
                    asked = await self._asked(identity, request, position, pos, since)
                if is_new_request or _concerns(news, asked):
                    found = await self._read(asked, news, upto)
            left = until - self._clock.seconds()
            if left <= 0 or (found is not None and not found.is_empty):
                break
            await self._waits.wait(identity.user_id, upto, left)
        token = self._applied.next_token(since, upto)
        if found is None:
            self._connections.note_members(position, str(pos.token), str(token), ())
            extensions = nothing_to_tell(request.extensions, upto)
            return SlidingAnswer(
                str(SlidingPos(position.key, pos.rules, token)), extensions=extensions
            )
        if asked is not None and found.state is not asked.state:
            position = await self._connections.follow(position, found.state)
        self._connections.note_members(position, str(pos.token), str(token), found.rooms.members)
        return self._answer(identity, position, found, request, token)

    async def _asked(
        self,
        identity: ClientIdentity,
        request: SlidingRequest,
        position: KnownPosition,
        pos: SlidingPos,
        since: SyncToken,
    ) -> _Asked:
        """A request, with what its client was told.

        :raises UnknownPosition: that cannot be read
        """
        reader = await self._data.reader_of(identity)
        state = self._connections.state_of(position)
        return _Asked(reader, request, state, since, position.members.at(str(pos.token)))

    def _answer(
        self,
        identity: ClientIdentity,
        position: KnownPosition,
        found: _AnswerFound,
        request: SlidingRequest,
        token: SyncToken,
    ) -> SlidingAnswer:
        for room_id, reason in found.rooms.damaged.items():
            self._log.warn(
                "room {room} is left out of a sync: {reason}", room=room_id, reason=reason
            )
        extensions = found.extensions
        if extensions.to_device and extensions.to_device_upto is not None:
            self._data.devices.told(identity, extensions.to_device_upto)
        if extensions.has_acknowledged and request.extensions.to_device is not None:
            acknowledged = known_messages(request.extensions.to_device)
            self._data.devices.delete(identity, acknowledged)
        rules = request.rules_tag() if found.plan.is_complete else INCOMPLETE
        return SlidingAnswer(
            str(SlidingPos(position.key, rules, token)),
            found.plan.counts,
            found.rooms.by_id(found.plan),
            extensions,
            is_first=request.pos is None,
        )

    # -- reading ----------------------------------------------------------------------

    async def _read(self, asked: _Asked, news: News, upto: SyncToken) -> _AnswerFound:
        """Find what there is to tell; without a query where nothing has changed."""
        user_id, request = asked.reader.user_id, asked.request
        listed, since_listed = await self._listed(asked, upto)
        labels = await self._labels_of(user_id)
        if listed is not None and since_listed.is_empty and listed.has_all_for(request):
            plan = make_plan(self._given(asked, listed, labels, news))
            known = None
            if not plan.to_read:
                known = self._found(None, asked, news, upto, plan, NO_ROOMS)
            if known is not None:
                return known
        since = None if asked.since is None else asked.since.events
        # The next token covers what either does, so rooms are told up to there: this process may be behind in one writer.
        reached = upto.events if since is None else since.merge(upto.events)
        read_as = ReadAs(
            asked.reader,
            since,
            reached,
            labels,
            asked.members,
            int(self._clock.seconds() * 1000),
        )

        def work(txn: Transaction) -> tuple[UserRooms, _AnswerFound]:
            txn.execute(GENERIC_PLANS)
            rooms = read_rooms(txn, user_id, upto.events, listed, since_listed)
            rooms = with_all_for(txn, rooms, request)
            plan = make_plan(self._given(asked, rooms, labels, news))
            to_read = plan.to_read
            if not upto.events.covers(reached):
                to_read = as_of(txn, user_id, to_read, reached)
            results = read_results(txn, to_read, read_as)
            found = self._found(txn, asked, news, upto, plan, results)
            assert found is not None
            return rooms, found

        rooms, found = await self._data.database.run(
            "sliding sync", work, read_only=True, isolation=Isolation.REPEATABLE_READ
        )
        self._lists.keep(user_id, rooms)
        return found

    def _found(
        self,
        txn: Transaction | None,
        asked: _Asked,
        news: News,
        upto: SyncToken,
        plan: SlidingPlan,
        rooms: SlidingRooms,
    ) -> _AnswerFound | None:
        """What there is to tell, with that of extensions; None if they have to read, and there is no transaction."""
        wanted = asked.request.extensions
        records = {**plan.records, **rooms.records}
        known = {**asked.state.rooms, **records}
        told = {number: record for number, record in known.items() if record is not None}
        extended = plan_extensions(wanted, plan, told, news)
        lacks = asked.lacks_account_data
        results = nothing_to_tell(wanted, upto)
        if self._extensions.needs_reading(wanted, extended, asked.since, news, is_first=lacks):
            if txn is None:
                return None
            results = self._extensions.read(
                txn,
                asked.reader,
                wanted,
                extended,
                asked.since,
                upto,
                news,
                rooms.by_id(plan),
                is_first=lacks,
            )
        for number, flags in extended.told.items():
            records[number] = told[number]._replace(told=flags)
        has_account_data = asked.state.has_account_data or wanted.account_data is not None
        if wanted.account_data is None and news.account_data:
            has_account_data = False
        state = asked.state.updated(records, plan.matched, has_account_data=has_account_data)
        return _AnswerFound(plan, rooms, results, state)

    async def _listed(self, asked: _Asked, upto: SyncToken) -> tuple[UserRooms | None, News]:
        """The rooms of the user as they are known, and what may be new since then."""
        user_id = asked.reader.user_id
        listed = self._lists.find(user_id)
        if listed is None or not upto.events.covers(listed.upto):
            return None, ANY_NEWS
        if asked.since is None:
            return listed, ANY_NEWS
        news = await self._news.news_for(user_id, upto.replace({EVENTS.name: listed.upto}), upto)
        if news.is_empty:
            return replace(listed, upto=upto.events), news
        return listed, news

    def _given(
        self, asked: _Asked, listed: UserRooms, labels: RoomLabels, news: News
    ) -> PlannedFrom:
        return PlannedFrom(
            asked.request, asked.state, listed, labels, asked.since, news, self._server
        )


def _lacks_messages(request: SlidingRequest, since: SyncToken) -> bool:
    """Whether the device may lack messages that the position covers."""
    wanted = request.extensions.to_device
    return wanted is not None and has_messages(wanted, since, NO_NEWS)


def _concerns(news: News, asked: _Asked) -> bool:
    """Whether news may be about what a connection has, or wants."""
    wanted = asked.request.extensions
    if wanted.to_device is not None and has_messages(wanted.to_device, asked.since, news):
        return True
    if wanted.account_data is not None and (news.account_data or asked.lacks_account_data):
        return True
    if not asked.request.has_rules and not asked.state.rooms:
        return False
    return bool(
        news.rooms is None
        or news.rooms
        or news.membership
        or news.account_data
        or news.receipts is None
        or news.receipts
        or news.private_receipts
        or news.typing is None
        or news.typing
    )
