"""Answers what is new for a client since a token, and waits if nothing is.

Source: https://spec.matrix.org/v1.16/client-server-api/#syncing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.client_data.data import NO_DATA, ClientData
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news import NewsSource
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.sync.answer import ToldRoom, sync_answer
from synrepl.services.rooms.sync.user_data import UserData
from synrepl.services.rooms.timelines.client_filter import NO_FILTER, ClientFilter
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import EncodedRoom, RoomsUpdate
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.to_device import TO_DEVICE

#: The longest wait for news, in seconds.
LONGEST_WAIT_S = 60.0


class SyncRequest(NamedTuple):
    """What a client asks.

    :ivar since: ``next_batch`` of the answer before; None: from the start
    :ivar timeout_s: how long to wait if nothing is new
    :ivar full_state: whether all rooms are wanted with their whole state
    :ivar state_after: what the states at the end of timelines are called (MSC4222); None: those at their start
        are wanted
    :ivar presence: what this makes of the user's presence; None: nothing
    """

    since: SyncToken | None = None
    timeout_s: float = 0.0
    wanted: ClientFilter = NO_FILTER
    full_state: bool = False
    state_after: str | None = None
    presence: str | None = None


class ClientSync:
    """Answers ``/sync``. As long as nothing is new, it makes no query.

    :param data: what is told besides the events of rooms
    """

    def __init__(
        self,
        clock: Clock,
        timelines: Timelines,
        data: UserData,
        applied: AppliedVectors,
        covered: TokenWait,
        news: NewsSource,
        waits: WaitingSyncs,
        log: Logger,
    ) -> None:
        self._clock = clock
        self._timelines = timelines
        self._data = data
        self._applied = applied
        self._covered = covered
        self._news = news
        self._waits = waits
        self._log = log

    async def sync(self, identity: ClientIdentity, request: SyncRequest) -> dict[str, Any]:
        """What is new for a client, as JSON. It may be cancelled.

        :raises SynreplError: the errors of waiting for the token, and of reading rooms
        """
        with self._data.presence.syncing(identity.user_id, request.presence):
            if request.since is None:
                return await self._first(identity, request)
            return await self._next(identity, request, request.since)

    async def _first(self, identity: ClientIdentity, request: SyncRequest) -> dict[str, Any]:
        await self._data.devices.begins(identity)
        reader = await self._data.reader_of(identity)
        upto = self._applied.current()
        update, told = None, dict[str, EncodedRoom]()
        async for part in self._timelines.initial_parts(
            reader, upto.events, request.wanted, state_after=request.state_after is not None
        ):
            told |= {room_id: room.encoded() for room_id, room in part.joined.items()}
            rest = replace(part, joined={})
            update = rest if update is None else update.merged(rest)
        assert update is not None
        reached = _reached(upto, update)
        data = await self._data.first(reader, reached, told, update.left, request.wanted)
        return self._answer(identity, told, update, data, reached, request)

    async def _next(
        self, identity: ClientIdentity, request: SyncRequest, asked_since: SyncToken
    ) -> dict[str, Any]:
        await self._covered.until_covered(asked_since)
        since = self._applied.readable_since(asked_since)
        self._data.devices.syncs(identity, since.to_device)
        until = self._clock.seconds() + min(request.timeout_s, LONGEST_WAIT_S)
        while True:
            upto = self._applied.current()
            update, data = await self._changes(identity, request, since, upto)
            left = until - self._clock.seconds()
            if not (update.is_empty and data.is_empty) or left <= 0:
                position = self._applied.next_token(since, _reached(upto, update))
                return self._answer(identity, update.joined, update, data, position, request)
            await self._waits.wait(identity.user_id, upto, left)

    async def _changes(
        self,
        identity: ClientIdentity,
        request: SyncRequest,
        since: SyncToken,
        upto: SyncToken,
    ) -> tuple[RoomsUpdate, ClientData]:
        news = await self._news.news_for(identity.user_id, since, upto)
        if news.is_empty and not request.full_state:
            return RoomsUpdate(), NO_DATA
        reader = await self._data.reader_of(identity)
        update = RoomsUpdate()
        if news.membership or news.rooms is None or news.rooms or request.full_state:
            update = await self._timelines.since(
                reader,
                since.events,
                upto.events,
                news.rooms,
                request.wanted,
                memberships_changed=news.membership,
                full_state=request.full_state,
                state_after=request.state_after is not None,
            )
        data = await self._data.since(reader, since, upto, news, update, request.wanted)
        if data.has_acknowledged:
            self._data.devices.delete(identity, since.to_device)
        return update, data

    def _answer(
        self,
        identity: ClientIdentity,
        told: Mapping[str, ToldRoom],
        update: RoomsUpdate,
        data: ClientData,
        position: SyncToken,
        request: SyncRequest,
    ) -> dict[str, Any]:
        for room_id, reason in update.damaged.items():
            self._log.warn(
                "room {room} is left out of a sync: {reason}", room=room_id, reason=reason
            )
        if data.to_device_upto is not None:
            position = position.replace({TO_DEVICE.name: data.to_device_upto})
        if data.to_device:
            self._data.devices.told(identity, position.to_device)
        return sync_answer(
            told, update, data, position, request.state_after or "state", self._clock.seconds()
        )


def _reached(upto: SyncToken, update: RoomsUpdate) -> SyncToken:
    """What an update is as of."""
    return upto if update.upto is None else upto.replace({EVENTS.name: update.upto})
