"""Joins, knocks, leaves and invites, as clients ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.rooms.sending.room_changes import CreatedRoom, RoomChanges
from synrepl.storage.rooms.tables.sent_events import SentEvent


class ChangedMembership(NamedTuple):
    """A membership that was changed.

    :ivar sent: the event; None if the user was in the room already
    """

    room_id: str
    sent: SentEvent | None


class FoundRoom(NamedTuple):
    """A room that was named.

    :ivar servers: in it, where it was named by an alias
    """

    room_id: str
    servers: Sequence[str]


class ChangesMemberships(Protocol):
    """Changes memberships of users of this server, and invites others."""

    async def find(self, named: str) -> FoundRoom:
        """The room with an ID or an alias.

        :raises UnknownAlias:
        """

    async def create(self, identity: ClientIdentity, new: NewRoom) -> CreatedRoom:
        """Create a room."""

    async def join(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Join a room.

        :param named: its ID or an alias
        :param via: servers that may be in it
        :param content: members of the event, such as ``reason``
        """

    async def knock(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Knock on a room."""

    async def leave(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Leave a room, reject an invite, or take back a knock."""

    async def invite(
        self, identity: ClientIdentity, room_id: str, user_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """Invite a user."""


class OwnMemberships:
    """Implements :class:`ChangesMemberships` for a server that knows no others."""

    def __init__(self, changes: RoomChanges, aliases: RoomAliases) -> None:
        self._changes = changes
        self._aliases = aliases

    async def find(self, named: str) -> FoundRoom:
        """See :meth:`ChangesMemberships.find`."""
        if not named.startswith("#"):
            return FoundRoom(named, ())
        return FoundRoom(*await self._aliases.room_with_servers(named))

    async def create(self, identity: ClientIdentity, new: NewRoom) -> CreatedRoom:
        """See :meth:`.RoomChanges.create`."""
        return await self._changes.create(identity, new)

    async def join(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """See :meth:`.RoomChanges.join`."""
        room_id, _ = await self.find(named)
        return ChangedMembership(room_id, await self._changes.join(identity, room_id, content))

    async def knock(
        self, identity: ClientIdentity, named: str, via: Sequence[str], content: Mapping[str, Any]
    ) -> ChangedMembership:
        """See :meth:`.RoomChanges.set_own_membership`."""
        room_id, _ = await self.find(named)
        sent = await self._changes.set_own_membership(identity, room_id, "knock", content)
        return ChangedMembership(room_id, sent)

    async def leave(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """See :meth:`.RoomChanges.set_own_membership`."""
        sent = await self._changes.set_own_membership(identity, room_id, "leave", content)
        return ChangedMembership(room_id, sent)

    async def invite(
        self, identity: ClientIdentity, room_id: str, user_id: str, content: Mapping[str, Any]
    ) -> ChangedMembership:
        """See :meth:`.RoomChanges.set_membership`."""
        sent = await self._changes.set_membership(identity, room_id, user_id, "invite", content)
        return ChangedMembership(room_id, sent)
