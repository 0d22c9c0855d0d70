"""What users of this server do with memberships, in rooms of this server and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.concurrent import map_concurrently
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.rooms import BadIdentifier, Event, canonical_json, server_of
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.joining.candidates import candidates
from synrepl.services.federation.joining.errors import (
    SERVER_FAULTS,
    ReasonTooLong,
    failure_of,
    outcome_of,
)
from synrepl.services.federation.joining.join import JoinRequest
from synrepl.services.federation.joining.own_membership import AskedMembership
from synrepl.services.federation.joining.remote_invites import RemoteInvites
from synrepl.services.federation.joining.running_joins import RunningJoins
from synrepl.services.federation.joining.without_join import MembershipsWithoutJoin
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.memberships import (
    ChangedMembership,
    FoundRoom,
    OwnMemberships,
)
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.rooms.sending.room_changes import CreatedRoom, RoomChanges
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.membership_facts import MembershipFacts, membership_facts
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.tables.aliases import UnknownAlias
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.storage.rooms.tables.sent_events import SentEvent

#: Bytes of what a user adds to the event of a membership, which have a place in an event with 20 parents.
MAX_CONTENT = 32 * 2**10

#: Bytes of the ID or alias of a room.
MAX_ROOM_ID = 255

#: Seconds that a server has to say which room an alias stands for.
ALIAS_S = 10.0

#: Users of other servers that are invited at the same time when a room is created.
INVITED_AT_ONCE = 50


class RemoteAliases:
    """Finds rooms by their IDs and aliases, at this server and at others.

    :param own: finds those of this server
    """

    def __init__(self, own: OwnMemberships, client: FederationClient, server_name: str) -> None:
        self._own = own
        self._client = client
        self._server_name = server_name

    async def find(self, named: str) -> FoundRoom:
        """The room with an ID or an alias.

        :raises UnknownRoom: it is neither an ID nor an alias
        :raises UnknownAlias: :raises BadIdentifier: :raises RefusedByServers: :raises ServersDidNotHelp:
        """
        if (
            named[:1] not in ("!", "#")
            or "\0" in named
            or len(named.encode(errors="replace")) > MAX_ROOM_ID
        ):
            raise UnknownRoom(room_id=named.replace("\0", "\ufffd")[:MAX_ROOM_ID])
        server = server_of(named) if named.startswith("#") else self._server_name
        if server == self._server_name:
            return await self._own.find(named)
        try:
            answer = await self._client.query_directory(server, named, ALIAS_S)
        except SERVER_FAULTS as error:
            outcome = outcome_of(server, error)
            if outcome.status == 404:
                raise UnknownAlias(alias=named[:255]) from None
            raise failure_of(named, [outcome]) from error
        return FoundRoom(answer.room_id, list(dict.fromkeys([server, *answer.servers])))


class UserMemberships:
    """Implements :class:`.ChangesMemberships` for a server among others.

    What this server can judge is done by the rooms that it has; else other servers are asked.

    :param changes: changes rooms that are here
    :param joins: joins rooms of other servers
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        sender: EventSender,
        changes: RoomChanges,
        aliases: RemoteAliases,
        joins: RunningJoins,
        without_join: MembershipsWithoutJoin,
        invites: RemoteInvites,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._sender = sender
        self._changes = changes
        self._aliases = aliases
        self._joins = joins
        self._without_join = without_join
        self._invites = invites
        self._log = log
        self._server_name = sender.server_name

    async def find(self, named: str) -> FoundRoom:
        """See :meth:`.RemoteAliases.find`."""
        return await self._aliases.find(named)

    async def create(self, identity: ClientIdentity, new: NewRoom) -> CreatedRoom:
        """Create a room, and invite users of other servers when it is there; who cannot be invited is logged.

        :raises SynreplError: the errors of :meth:`.RoomChanges.create`
        """
        new.check()
        others = [each for each in dict.fromkeys(new.invite) if not self._is_own(each)]
        created = await self._changes.create(identity, new, others)

        async def invite(user_id: str) -> None:
            asked = AskedMembership(created.room_id, user_id, new.invite_content)
            try:
                await self._invites.invite(identity.user_id, asked)
            except SynreplError as error:
                self._log.info("{user_id} is not invited: {error}", user_id=user_id, error=error)

        await map_concurrently(self._scheduler, invite, others, INVITED_AT_ONCE)
        return created

    async def join(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Join a room.

        :raises JoinGoesOn: it takes long, and goes on
        :raises SynreplError: the errors of :meth:`.RemoteAliases.find`, :meth:`.RoomJoiner.join` and
            :meth:`.RoomChanges.join`
        """
        _check_content(content)
        room_id, servers = await self.find(named)
        facts = await self._facts(identity, room_id)
        if facts.is_local and not facts.is_restricted:
            return ChangedMembership(room_id, await self._changes.join(identity, room_id, content))
        asked = JoinRequest(room_id, identity.user_id, content, via, servers)
        return ChangedMembership(room_id, (await self._joins.join(asked)).sent)

    async def knock(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Knock on a room.

        :raises SynreplError: the errors of :meth:`.RemoteAliases.find`, :meth:`.MembershipsWithoutJoin.knock` and
            :meth:`.RoomChanges.set_own_membership`
        """
        _check_content(content)
        room_id, found = await self.find(named)
        facts = await self._facts(identity, room_id)
        if facts.is_local:
            sent = await self._changes.set_own_membership(identity, room_id, "knock", content)
            return ChangedMembership(room_id, sent)
        servers = candidates(room_id, via, found, facts, self._server_name)
        asked = AskedMembership(room_id, identity.user_id, content)
        return _elsewhere(await self._without_join.knock(asked, servers))

    async def leave(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Leave a room, reject an invite, or take back a knock.

        :raises SynreplError: the errors of :meth:`.RoomChanges.set_own_membership`
        """
        _check_content(content)
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
        return _elsewhere(await self._without_join.leave(asked, servers, remote, builder))

    async def invite(
        self, identity: ClientIdentity, room_id: str, user_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Invite a user.

        :raises SynreplError: the errors of :meth:`.RemoteInvites.invite` and :meth:`.RoomChanges.set_membership`
        """
        if self._is_own(user_id):
            sent = await self._changes.set_membership(identity, room_id, user_id, "invite", content)
            return ChangedMembership(room_id, sent)
        asked = AskedMembership(room_id, user_id, content)
        return _elsewhere(await self._invites.invite(identity.user_id, asked))

    async def _left(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        sent = await self._changes.set_own_membership(identity, room_id, "leave", content)
        return ChangedMembership(room_id, sent)

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


def _elsewhere(event: Event) -> ChangedMembership:
    """A membership whose event has no position that a client could wait for."""
    return ChangedMembership(event.room_id, SentEvent(event.event_id, None, None))


def _check_content(content: Mapping[str, Any]) -> None:
    """Check what a user adds to an event, for which no other server is to blame.

    :raises ReasonTooLong: :raises NoCanonicalJson:
    """
    if len(canonical_json(content)) > MAX_CONTENT:
        raise ReasonTooLong(limit=MAX_CONTENT)
