"""Answers what is new for a client since a token, and waits if nothing is.

Source: https://spec.matrix.org/v1.16/client-server-api/#syncing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from synrepl.core.clock import Clock
from synrepl.core.log import Logger
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.news.applied_vectors import AppliedVectors
from synrepl.services.rooms.news.news import NewsSource
from synrepl.services.rooms.news.sync_token import SyncToken
from synrepl.services.rooms.news.token_wait import TokenWait
from synrepl.services.rooms.news.waiting_syncs import WaitingSyncs
from synrepl.services.rooms.timelines.client_filter import NO_FILTER, ClientFilter
from synrepl.services.rooms.timelines.timelines import Timelines
from synrepl.services.rooms.timelines.updates import (
    InvitedRoom,
    JoinedRoom,
    LeftRoom,
    RoomSummary,
    RoomsUpdate,
    TimelineReader,
    fragments,
)

#: The longest wait for news, in seconds.
LONGEST_WAIT_S = 60.0


class SyncRequest(NamedTuple):
    """What a client asks.

    :ivar since: ``next_batch`` of the answer before; None: from the start
    :ivar timeout_s: how long to wait if nothing is new
    :ivar full_state: whether all rooms are wanted with their whole state
    :ivar state_after: what the states at the end of timelines are called (MSC4222); None: those at their start
        are wanted
    """

    since: SyncToken | None = None
    timeout_s: float = 0.0
    wanted: ClientFilter = NO_FILTER
    full_state: bool = False
    state_after: str | None = None


class ClientSync:
    """Answers ``/sync``. As long as nothing is new, it makes no query."""

    def __init__(
        self,
        clock: Clock,
        timelines: Timelines,
        applied: AppliedVectors,
        covered: TokenWait,
        news: NewsSource,
        waits: WaitingSyncs,
        log: Logger,
    ) -> None:
        self._clock = clock
        self._timelines = timelines
        self._applied = applied
        self._covered = covered
        self._news = news
        self._waits = waits
        self._log = log

    async def sync(self, identity: ClientIdentity, request: SyncRequest) -> dict[str, Any]:
        """What is new for a client, as JSON. It may be cancelled.

        :raises SynreplError: the errors of waiting for the token, and of reading rooms
        """
        if request.since is None:
            upto = self._applied.current()
            update = await self._timelines.initial(
                TimelineReader(*identity),
                upto.events,
                request.wanted,
                state_after=request.state_after is not None,
            )
            return self._answer(update, upto, request)
        await self._covered.until_covered(request.since)
        since = self._applied.readable_since(request.since)
        until = self._clock.seconds() + min(request.timeout_s, LONGEST_WAIT_S)
        while True:
            upto = self._applied.current()
            update = await self._update(identity, request, since, upto)
            left = until - self._clock.seconds()
            if not update.is_empty or left <= 0:
                return self._answer(update, self._applied.next_token(since, upto), request)
            await self._waits.wait(identity.user_id, upto, left)

    async def _update(
        self,
        identity: ClientIdentity,
        request: SyncRequest,
        since: SyncToken,
        upto: SyncToken,
    ) -> RoomsUpdate:
        news = await self._news.news_for(identity.user_id, since, upto)
        if not (news.membership or news.rooms is None or news.rooms or request.full_state):
            return RoomsUpdate()
        return await self._timelines.since(
            TimelineReader(*identity),
            since.events,
            upto.events,
            news.rooms,
            request.wanted,
            memberships_changed=news.membership,
            full_state=request.full_state,
            state_after=request.state_after is not None,
        )

    def _answer(
        self, update: RoomsUpdate, position: SyncToken, request: SyncRequest
    ) -> dict[str, Any]:
        for room_id, reason in update.damaged.items():
            self._log.warn(
                "room {room} is left out of a sync: {reason}", room=room_id, reason=reason
            )
        state = request.state_after or "state"
        rooms: dict[str, dict[str, Any]] = {
            "join": {each: _joined(room, state) for each, room in update.joined.items()},
            "invite": {
                each: _stripped(room, "invite_state") for each, room in update.invited.items()
            },
            "knock": {
                each: _stripped(room, "knock_state") for each, room in update.knocked.items()
            },
            "leave": {each: _left(room, state) for each, room in update.left.items()},
        }
        answer: dict[str, Any] = {
            "next_batch": str(position),
            "device_one_time_keys_count": {},
            "device_unused_fallback_key_types": [],
        }
        told = {name: found for name, found in rooms.items() if found}
        if told:
            answer["rooms"] = told
        return answer


def _joined(room: JoinedRoom, state: str) -> dict[str, Any]:
    timeline, entries = room.to_json()
    entry: dict[str, Any] = {
        "timeline": timeline,
        state: entries,
        "account_data": {"events": []},
        "ephemeral": {"events": []},
        "unread_notifications": {"notification_count": 0, "highlight_count": 0},
        "summary": {} if room.summary is None else _summary(room.summary),
    }
    return entry


def _left(room: LeftRoom, state: str) -> dict[str, Any]:
    return {
        "timeline": room.timeline.to_json(),
        state: {"events": fragments(room.state)},
        "account_data": {"events": []},
    }


def _stripped(room: InvitedRoom, name: str) -> dict[str, Any]:
    return {name: {"events": [orjson.Fragment(each) for each in room.state]}}


def _summary(summary: RoomSummary) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "m.joined_member_count": summary.joined,
        "m.invited_member_count": summary.invited,
    }
    if summary.heroes is not None:
        found["m.heroes"] = list(summary.heroes)
    return found
