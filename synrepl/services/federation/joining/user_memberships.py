"""What users of this server do with memberships, in rooms of this server and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.rooms import BadIdentifier, server_of
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.joining.candidates import candidates
from synrepl.services.federation.joining.errors import SERVER_FAULTS, failure_of, outcome_of
from synrepl.services.federation.joining.join import JoinedRoomResult, JoinRequest
from synrepl.services.federation.joining.own_membership import AskedMembership
from synrepl.services.federation.joining.remote_invites import RemoteInvites
from synrepl.services.federation.joining.running_joins import CLIENT_WAIT_S, RunningJoins
from synrepl.services.federation.joining.without_join import MembershipsWithoutJoin
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.rooms.sending.room_changes import CreatedRoom, RoomChanges
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.membership_facts import MembershipFacts, membership_facts
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.aliases import UnknownAlias
from synrepl.storage.rooms.tables.sent_events import SentEvent


class FoundRoom(NamedTuple):
    """A room that was named.

    :ivar servers: in it, where it was named by an alias
    """

    room_id: str
    servers: Sequence[str]


class RemoteAliases:
    """Finds rooms by their IDs and aliases, at this server and at others."""

    def __init__(self, aliases: RoomAliases, client: FederationClient, server_name: str) -> None:
        self._aliases = aliases
        self._client = client
        self._server_name = server_name

    async def find(self, named: str) -> FoundRoom:
        """The room with an ID or an alias.

        :raises UnknownAlias: :raises BadIdentifier: :raises RefusedByServers: :raises ServersDidNotHelp:
        """
        if not named.startswith("#"):
            return FoundRoom(named, ())
        server = server_of(named)
        if server == self._server_name:
            room_id, servers = await self._aliases.room_with_servers(named)
            return FoundRoom(room_id, servers)
        try:
            answer = await self._client.query_directory(server, named)
        except SERVER_FAULTS as error:
            outcome = outcome_of(server, error)
            if outcome.status == 404:
                raise UnknownAlias(alias=named[:255]) from None
            raise failure_of(named, [outcome]) from error
        return FoundRoom(answer.room_id, list(dict.fromkeys([server, *answer.servers])))


class UserMemberships:
    """Joins, knocks, leaves and invites.

    What this server can judge is done by the rooms that it has; else other servers are asked.

    :param changes: changes rooms that are here
    :param joins: joins rooms of other servers
    """

    def __init__(
        self,
        database: Database,
        sender: EventSender,
        changes: RoomChanges,
        aliases: RemoteAliases,
        joins: RunningJoins,
        without_join: MembershipsWithoutJoin,
        invites: RemoteInvites,
        log: Logger,
    ) -> None:
        self._database = database
        self._sender = sender
        self._changes = changes
        self._without_join = without_join
        self._invites = invites
        self._log = log
        self._server_name = sender.server_name
        self.aliases = aliases
        self.joins = joins

    async def create(self, identity: ClientIdentity, new: NewRoom) -> CreatedRoom:
        """Create a room, and invite users of other servers when it is there; who cannot be invited is logged.

        :raises SynreplError: the errors of :meth:`.RoomChanges.create`
        """
        new.check()
        others = [each for each in dict.fromkeys(new.invite) if not self._is_own(each)]
        created = await self._changes.create(identity, new, others)
        for user_id in others:
            asked = AskedMembership(created.room_id, user_id, new.invite_content)
            try:
                await self._invites.invite(identity.user_id, asked)
            except SynreplError as error:
                self._log.info("{user_id} is not invited: {error}", user_id=user_id, error=error)
        return created

    async def join(
        self,
        identity: ClientIdentity,
        named: str,
        via: Sequence[str],
        content: Mapping[str, Any],
        patience_s: float = CLIENT_WAIT_S,
    ) -> JoinedRoomResult:
        """Join a room.

        :param named: its ID or an alias
        :param via: servers that may be in it
        :param content: members of the event, such as ``reason``
        :raises JoinGoesOn: it takes longer than the patience, and goes on
        :raises SynreplError: the errors of :meth:`.RemoteAliases.find`, :meth:`.RoomJoiner.join` and
            :meth:`.RoomChanges.join`
        """
        room = await self.aliases.find(named)
        asked = JoinRequest(room.room_id, identity.user_id, content, via, room.servers)
        facts = await self._facts(identity, room.room_id)
        if facts.is_local and not facts.is_restricted:
            sent = await self._changes.join(identity, room.room_id, content)
            return JoinedRoomResult(room.room_id, sent, False)
        return await self.joins.join(asked, patience_s)

    async def knock(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> tuple[str, SentEvent | None]:
        """Knock on a room; its ID, and the event if it is in a room that is here.

        :raises SynreplError: the errors of :meth:`.RemoteAliases.find`, :meth:`.MembershipsWithoutJoin.knock` and
            :meth:`.RoomChanges.set_own_membership`
        """
        room = await self.aliases.find(named)
        room_id = room.room_id
        facts = await self._facts(identity, room_id)
        if facts.is_local:
            changes = self._changes
            return room_id, await changes.set_own_membership(identity, room_id, "knock", content)
        servers = candidates(room_id, via, room.servers, facts, self._server_name)
        asked = AskedMembership(room_id, identity.user_id, content)
        await self._without_join.knock(asked, servers)
        return room_id, None

    async def leave(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> SentEvent | None:
        """Leave a room, reject an invite, or take back a knock; None if that is in a room that is not here.

        :raises SynreplError: the errors of :meth:`.RoomChanges.set_own_membership`
        """
        facts = await self._facts(identity, room_id)
        remote = facts.remote
        if remote is None or remote.membership not in ("invite", "knock"):
            return await self._left(identity, room_id, content)
        if facts.is_ours:
            try:
                return await self._left(identity, room_id, content)
            except EventNotAllowed:  # the partial state of the room does not have the invite
                if not facts.is_partial:
                    raise
        servers = candidates(room_id, (), (), facts, self._server_name)
        asked = AskedMembership(room_id, identity.user_id, content)
        builder = self._sender.builder(remote.version.name)
        await self._without_join.leave(asked, servers, remote, builder)
        return None

    async def invite(
        self, identity: ClientIdentity, room_id: str, user_id: str, content: Mapping[str, Any]
    ) -> SentEvent | None:
        """Invite a user; None for one of another server.

        :raises SynreplError: the errors of :meth:`.RemoteInvites.invite` and :meth:`.RoomChanges.set_membership`
        """
        if self._is_own(user_id):
            return await self._changes.set_membership(identity, room_id, user_id, "invite", content)
        asked = AskedMembership(room_id, user_id, content)
        await self._invites.invite(identity.user_id, asked)
        return None

    async def _left(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> SentEvent:
        return await self._changes.set_own_membership(identity, room_id, "leave", content)

    async def _facts(self, identity: ClientIdentity, room_id: str) -> MembershipFacts:
        def work(txn: Transaction) -> MembershipFacts:
            return membership_facts(txn, room_id, identity.user_id, self._server_name)

        return await self._database.run("look at a membership", work, read_only=True)

    def _is_own(self, user_id: str) -> bool:
        """Whether a user is one of this server; what is no user ID is refused where it is used."""
        try:
            return server_of(user_id) == self._server_name
        except BadIdentifier:
            return True
