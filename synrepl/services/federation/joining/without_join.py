"""Knocks on rooms of other servers, and leaves of rooms that this server is not in, such as a rejected invite.

Source: https://spec.matrix.org/v1.16/server-server-api/#knocking-upon-a-room, #leaving-rooms-rejecting-invites
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from synrepl.core import jsons
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.rooms import Event, EventBuilder, EventDraft
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.joining.errors import (
    SERVER_FAULTS,
    NoServerToAsk,
    ServerOutcome,
    ServersDidNotHelp,
    failure_of,
    outcome_of,
)
from synrepl.services.federation.joining.own_membership import AskedMembership, MembershipMaker
from synrepl.services.federation.resident.invites import RemoteMemberships, shown_state
from synrepl.storage.federation.remote_memberships import RemoteMembership

T = TypeVar("T")

#: Seconds in which servers are asked, and that one of them has.
ASK_S, SERVER_S = 25.0, 10.0


class MembershipsWithoutJoin:
    """Has users knock, and leave rooms that this server is not in. It may be done in any process.

    :param memberships: stores such memberships
    """

    def __init__(
        self,
        scheduler: Scheduler,
        client: FederationClient,
        maker: MembershipMaker,
        memberships: RemoteMemberships,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._client = client
        self._maker = maker
        self._memberships = memberships
        self._log = log

    async def knock(self, asked: AskedMembership, servers: Sequence[str]) -> Event:
        """Knock by the first of some servers that takes it.

        :raises NoServerToAsk: :raises RoomNotAtServers: :raises RefusedByServers: :raises RoomVersionNotSpoken:
        :raises ServersDidNotHelp:
        :raises SynreplError: the errors of :meth:`.RemoteMemberships.store`
        """

        async def by(server: str) -> tuple[Event, Sequence[bytes]]:
            template = await self._client.make_membership(
                server, "knock", asked.room_id, asked.user_id, self._maker.versions, SERVER_S
            )
            event = self._maker.made(asked, "knock", template, self._now_ms())
            return event, await self._client.send_knock(server, event, SERVER_S)

        event, shown = await self._by_any(asked.room_id, servers, by)
        states = shown_state([_decoded(each) for each in shown])
        await self._memberships.store(RemoteMembership(event, states))
        return event

    async def leave(
        self, asked: AskedMembership, servers: Sequence[str], before: Event, builder: EventBuilder
    ) -> Event:
        """Reject an invite, or take back a knock.

        Nobody is kept in a room by servers that are away or refuse: then only this server knows of it.

        :param before: the invite or the knock
        :param builder: of the version of the room
        :raises SynreplError: the errors of :meth:`.RemoteMemberships.store`
        """

        async def by(server: str) -> Event:
            template = await self._client.make_membership(
                server, "leave", asked.room_id, asked.user_id, (), SERVER_S
            )
            # Servers of old specifications do not say which version the room has.
            template = template._replace(room_version=builder.version.name)
            event = self._maker.made(asked, "leave", template, self._now_ms())
            await self._client.send_leave(server, event, SERVER_S)
            return event

        try:
            event = await self._by_any(asked.room_id, servers, by)
        except (*SERVER_FAULTS, ServersDidNotHelp) as error:
            event = self._left_here(asked, before, builder, error)
        await self._memberships.store(RemoteMembership(event, ()))
        return event

    def _left_here(
        self, asked: AskedMembership, before: Event, builder: EventBuilder, error: SynreplError
    ) -> Event:
        self._log.info(
            "{user_id} leaves {room_id}, and no other server knows: {error}",
            user_id=asked.user_id,
            room_id=asked.room_id,
            error=error,
        )
        content = {**asked.content, "membership": "leave"}
        draft = EventDraft("m.room.member", asked.user_id, content, self._now_ms(), asked.user_id)
        return builder.assemble(draft, asked.room_id, [before], [before])

    async def _by_any(
        self, room_id: str, servers: Sequence[str], by: Callable[[str], Awaitable[T]]
    ) -> T:
        if not servers:
            raise NoServerToAsk(room_id=room_id)
        until = self._scheduler.seconds() + ASK_S
        outcomes: list[ServerOutcome] = []
        for server in servers:
            if self._scheduler.seconds() >= until:
                break
            try:
                return await by(server)
            except SERVER_FAULTS as error:
                outcomes.append(outcome_of(server, error))
        raise failure_of(room_id, outcomes)

    def _now_ms(self) -> int:
        return int(self._scheduler.seconds() * 1000)


def _decoded(raw: bytes) -> object:
    return jsons.decode(raw, "an event")
