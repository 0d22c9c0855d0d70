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
from synrepl.services.rooms.news.news import ANY_NEWS, News, NewsSource
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.token_wait import SyncTokenFromFuture, TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sliding.connection_state import ConnectionState
from synrepl.services.rooms.sliding.connections import KnownPosition, SlidingConnections
from synrepl.services.rooms.sliding.room_labels import NO_LABELS
from synrepl.services.rooms.sliding.room_lists import (
    RoomListCache,
    UserRooms,
    read_rooms,
    with_all_for,
)
from synrepl.services.rooms.sliding.room_reader import ReadAs, read_results
from synrepl.services.rooms.sliding.room_results import NO_ROOMS, RoomResult, SlidingRooms
from synrepl.services.rooms.sliding.sliding_plan import PlannedFrom, SlidingPlan, make_plan
from synrepl.services.rooms.sliding.sliding_pos import INCOMPLETE, SlidingPos, UnknownPosition
from synrepl.services.rooms.sliding.sliding_request import SlidingRequest
from synrepl.services.rooms.sync.sync import LONGEST_WAIT_S
from synrepl.services.rooms.timelines.updates import TimelineReader
from synrepl.storage.clients.sliding_positions import ConnectionName
from synrepl.storage.database import Database, Isolation, Transaction

_NO_MEMBERS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SlidingAnswer:
    """An answer.

    :ivar pos: for the next request
    :ivar counts: number of rooms in each list; none if they were not counted, because nothing has changed
    :ivar rooms: by ID
    :ivar extensions: answers of extensions, by name
    """

    pos: str
    counts: Mapping[str, int] = field(default_factory=dict)
    rooms: Mapping[str, RoomResult] = field(default_factory=dict)
    extensions: Mapping[str, object] = field(default_factory=dict)


class _Asked(NamedTuple):
    """A request of a connection.

    :ivar since: the token of the position; None for the first request
    :ivar members: numbers of membership events that the client has
    """

    identity: ClientIdentity
    request: SlidingRequest
    state: ConnectionState
    since: SyncToken | None
    members: Collection[int]


class _Found(NamedTuple):
    """What there is to tell."""

    plan: SlidingPlan
    rooms: SlidingRooms

    @property
    def is_empty(self) -> bool:
        """Whether that is nothing."""
        return not self.rooms.results


class SlidingSync:
    """Answers the requests of sliding sync. As long as nothing is new, it makes no query.

    :param server: name of this server
    """

    def __init__(
        self,
        server: str,
        clock: Clock,
        database: Database,
        connections: SlidingConnections,
        lists: RoomListCache,
        applied: AppliedVectors,
        covered: TokenWait,
        news: NewsSource,
        waits: WaitingSyncs,
        log: Logger,
    ) -> None:
        self._server = server
        self._clock = clock
        self._database = database
        self._connections = connections
        self._lists = lists
        self._applied = applied
        self._covered = covered
        self._news = news
        self._waits = waits
        self._log = log

    async def sync(self, identity: ClientIdentity, request: SlidingRequest) -> SlidingAnswer:
        """Answer a request. It may be cancelled.

        :raises UnknownPosition: the client has to begin anew
        :raises SynreplError: the errors of waiting for the position, and of reading rooms
        """
        name = ConnectionName(*identity, request.conn_id)
        if request.pos is None:
            return await self._begin(identity, request, name)
        pos = SlidingPos.parse(request.pos, self._server)
        position = await self._connections.find(name, pos.key)
        try:
            await self._covered.until_covered(pos.token)
        except SyncTokenFromFuture as error:
            raise UnknownPosition(reason=error) from None
        return await self._go_on(identity, request, position, pos)

    async def _begin(
        self, identity: ClientIdentity, request: SlidingRequest, name: ConnectionName
    ) -> SlidingAnswer:
        upto = self._applied.current()
        asked = _Asked(identity, request, ConnectionState(), None, _NO_MEMBERS)
        found = await self._read(asked, ANY_NEWS, upto)
        state = asked.state.updated(found.rooms.records, found.plan.matched)
        position = await self._connections.open(name, state)
        token = str(upto)
        self._connections.note_members(position, token, token, found.rooms.members)
        return self._answer(position, found, request, upto)

    async def _go_on(
        self,
        identity: ClientIdentity,
        request: SlidingRequest,
        position: KnownPosition,
        pos: SlidingPos,
    ) -> SlidingAnswer:
        since = self._applied.readable_since(pos.token)
        members = position.members.at(str(pos.token))
        state = self._connections.state_of(position)
        asked = _Asked(identity, request, state, since, members)
        is_new_request = pos.rules != request.rules_tag()
        until = self._clock.seconds() + min(request.timeout_s, LONGEST_WAIT_S)
        while True:
            upto = self._applied.current()
            news = await self._news.news_for(identity.user_id, since, upto)
            found: _Found | None = None
            if is_new_request or _concerns(news, asked):
                found = await self._read(asked, news, upto)
            left = until - self._clock.seconds()
            if left <= 0 or (found is not None and not found.is_empty):
                break
            await self._waits.wait(identity.user_id, upto, left)
        token = self._applied.next_token(since, upto)
        if found is None:
            members_told: Collection[int] = ()
        else:
            members_told = found.rooms.members
            changes = {**found.plan.records, **found.rooms.records}
            after = state.updated(changes, found.plan.matched)
            if after is not state:
                position = await self._connections.follow(position, after)
        self._connections.note_members(position, str(pos.token), str(token), members_told)
        if found is None:
            return SlidingAnswer(str(SlidingPos(position.key, pos.rules, token)))
        return self._answer(position, found, request, token)

    def _answer(
        self, position: KnownPosition, found: _Found, request: SlidingRequest, token: SyncToken
    ) -> SlidingAnswer:
        for room_id, reason in found.rooms.damaged.items():
            self._log.warn(
                "room {room} is left out of a sync: {reason}", room=room_id, reason=reason
            )
        rules = request.rules_tag() if found.plan.is_complete else INCOMPLETE
        ids = {number: each.room.room_id for number, each in found.plan.matched.items()}
        return SlidingAnswer(
            str(SlidingPos(position.key, rules, token)),
            found.plan.counts,
            {ids[number]: result for number, result in found.rooms.results.items()},
        )

    # -- reading ----------------------------------------------------------------------

    async def _read(self, asked: _Asked, news: News, upto: SyncToken) -> _Found:
        """Find what there is to tell; without a query where nothing has changed."""
        user_id, request = asked.identity.user_id, asked.request
        listed, changed = await self._listed(asked, upto)
        if listed is not None and listed.upto == upto.events and listed.has_all_for(request):
            plan = make_plan(self._given(asked, listed, news))
            if not plan.to_read:
                return _Found(plan, NO_ROOMS)
        since = None if asked.since is None else asked.since.events
        read_as = ReadAs(
            TimelineReader(*asked.identity),
            since,
            upto.events,
            NO_LABELS,
            asked.members,
            int(self._clock.seconds() * 1000),
        )

        def work(txn: Transaction) -> tuple[UserRooms, _Found]:
            rooms = read_rooms(txn, user_id, upto.events, listed, changed)
            rooms = with_all_for(txn, rooms, request)
            plan = make_plan(self._given(asked, rooms, news))
            return rooms, _Found(plan, read_results(txn, plan.to_read, read_as))

        rooms, found = await self._database.run(
            "sliding sync", work, read_only=True, isolation=Isolation.REPEATABLE_READ
        )
        self._lists.keep(user_id, rooms)
        return found

    async def _listed(
        self, asked: _Asked, upto: SyncToken
    ) -> tuple[UserRooms | None, Collection[str] | None]:
        """The rooms of the user as they are known, and the IDs of those that have changed since; None: unknown."""
        user_id = asked.identity.user_id
        listed = self._lists.find(user_id)
        if asked.since is None or listed is None or not upto.events.covers(listed.upto):
            return None, None
        if listed.upto == upto.events:
            return listed, ()
        news = await self._news.news_for(user_id, upto.replace({"events": listed.upto}), upto)
        if news.rooms is not None and not news.rooms and not news.membership:
            return replace(listed, upto=upto.events), ()
        return listed, news.rooms

    def _given(self, asked: _Asked, listed: UserRooms, news: News) -> PlannedFrom:
        return PlannedFrom(
            asked.request, asked.state, listed, NO_LABELS, asked.since, news, self._server
        )


def _concerns(news: News, asked: _Asked) -> bool:
    """Whether news may be about what a connection has, or wants."""
    if not asked.request.has_rules and not asked.state.rooms:
        return False
    return news.rooms is None or bool(news.rooms) or news.membership
