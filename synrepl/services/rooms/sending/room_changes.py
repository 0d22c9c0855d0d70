"""What users do with rooms besides sending events: create, join, leave, invite, ban, upgrade and the like.

Source: https://spec.matrix.org/v1.16/client-server-api/#rooms-1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from synrepl.core.errors import SynreplError
from synrepl.rooms import EventDraft, check_user_id
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.new_room import (
    DEFAULT_ROOM_VERSION,
    FirstEvents,
    InitialState,
    NewRoom,
)
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.reading.client_rooms import (
    check_allowed,
    current_events,
    forget_room,
    join_facts,
)
from synrepl.storage.rooms.tables.aliases import move_aliases
from synrepl.storage.rooms.tables.sent_events import SentEvent

#: State that an upgraded room takes over:
#: https://spec.matrix.org/v1.16/client-server-api/#server-behaviour-19
_TAKEN_OVER = (
    "m.room.server_acl",
    "m.room.encryption",
    "m.room.name",
    "m.room.avatar",
    "m.room.topic",
    "m.room.guest_access",
    "m.room.history_visibility",
    "m.room.join_rules",
    "m.room.power_levels",
)

_MEMBER = "m.room.member"


class CreatedRoom(NamedTuple):
    """A room that was created, and its last event."""

    room_id: str
    last: SentEvent


class RoomChanges:
    """Creates and changes rooms for users of this server.

    :param default_version: the version of a room whose creator does not choose one
    """

    def __init__(
        self,
        database: Database,
        sender: EventSender,
        aliases: RoomAliases,
        default_version: str = DEFAULT_ROOM_VERSION,
    ) -> None:
        self.default_version = default_version
        self._database = database
        self._sender = sender
        self._aliases = aliases

    async def create(
        self, identity: ClientIdentity, new: NewRoom, invited_later: Collection[str] = ()
    ) -> CreatedRoom:
        """Create a room; all of its first events are persisted together.

        :param invited_later: those of the invited users whom the caller invites when the room is there

        :raises TooMuchInNewRoom: :raises NotForNewRoom: :raises BadIdentifier: :raises UnknownRoomVersion:
        :raises EventNotAllowed: :raises BadEvent: :raises NoCanonicalJson: :raises NotStorable:
        :raises BadAlias: :raises AliasInUse:
        :raises SynreplError: the errors of :meth:`.EventSender.persist_new`
        """
        new.check()
        sender = self._sender
        builder = sender.builder(new.room_version or self.default_version)
        alias = None
        if new.room_alias_name is not None:
            alias = self._aliases.check(f"#{new.room_alias_name}:{sender.server_name}")
        first = FirstEvents(
            builder,
            identity.user_id,
            sender.server_name,
            sender.now_ms(),
            new,
            alias,
            invited_later,
        )
        events = first.build()
        if alias is None:
            return await self._persist(first)
        await self._aliases.claim(identity, alias, first.room_id)
        try:
            return await self._persist(first)
        except SynreplError:
            # The room may be there all the same; then the alias can be added to it.
            await self._aliases.release(alias, events[0].room_id)
            raise

    async def join(
        self, identity: ClientIdentity, room_id: str, content: Mapping[str, Any]
    ) -> SentEvent | None:
        """Join a room; None if the user is in it already.

        :param content: members of the event, such as ``reason``
        :raises UnknownRoom: :raises EventNotAllowed: :raises SynreplError: see :meth:`.EventSender.send`
        """
        user_id, server_name = identity.user_id, self._sender.server_name

        def work(txn: Transaction) -> tuple[str | None, str | None]:
            return join_facts(txn, room_id, user_id, server_name)

        membership, authorised_by = await self._database.run("look at a join", work, read_only=True)
        if membership == "join":
            return None
        more = {} if authorised_by is None else {"join_authorised_via_users_server": authorised_by}
        return await self._set_membership(identity, room_id, user_id, "join", {**content, **more})

    async def set_own_membership(
        self, identity: ClientIdentity, room_id: str, membership: str, content: Mapping[str, Any]
    ) -> SentEvent:
        """Leave a room, or knock on one.

        :param membership: ``leave`` or ``knock``
        :raises SynreplError: see :meth:`.EventSender.send`
        """
        return await self._set_membership(identity, room_id, identity.user_id, membership, content)

    async def set_membership(
        self,
        identity: ClientIdentity,
        room_id: str,
        user_id: str,
        membership: str,
        content: Mapping[str, Any],
        of: Collection[str] | None = None,
    ) -> SentEvent:
        """Set the membership of another user: invite, kick, ban or unban.

        :param of: what the membership must have been
        :raises BadIdentifier: there is no such user ID
        :raises SynreplError: see :meth:`.EventSender.send`
        """
        check_user_id(user_id)
        return await self._set_membership(identity, room_id, user_id, membership, content, of)

    async def forget(self, identity: ClientIdentity, room_id: str) -> None:
        """Remember that the user does not want to see a room any more, until the user's membership changes.

        :raises UnknownRoom: :raises StillInRoom:
        """
        await self._database.run(
            "forget a room of a user", lambda txn: forget_room(txn, room_id, identity.user_id)
        )

    async def upgrade(self, identity: ClientIdentity, room_id: str, version: str) -> CreatedRoom:
        """Replace a room by one of another version, and leave a tombstone in the old one.

        :returns: the new room, with the tombstone as its last event
        :raises UnknownRoomVersion: :raises UnknownRoom:
        :raises EventNotAllowed: the user may not send the tombstone; nothing was changed
        :raises SynreplError: the errors of :meth:`create` and :meth:`.EventSender.send`
        """
        builder = self._sender.builder(version)
        old_builder = self._sender.builder((await self._sender.placements.of(room_id)).version)
        draft = EventDraft("m.room.tombstone", identity.user_id, {}, self._sender.now_ms(), "")

        def work(txn: Transaction) -> tuple[str | None, dict[str, dict[str, Any]]]:
            newest = check_allowed(txn, room_id, old_builder, draft)
            events = current_events(txn, room_id, (*_TAKEN_OVER, "m.room.create"))
            return newest, {
                kind: dict(event.content) for (kind, key), event in events.items() if key == ""
            }

        newest, state = await self._database.run("look at a room", work, read_only=True)
        creation = state.pop("m.room.create", {})
        creation = {key: creation[key] for key in ("type", "m.federate") if key in creation}
        creation["predecessor"] = {"room_id": room_id, "event_id": newest}
        if "m.room.power_levels" in state:
            users = state["m.room.power_levels"].get("users")
            users = dict(users) if isinstance(users, dict) else {}
            users.pop(identity.user_id, None)
            if not builder.version.room_id_is_create_hash:
                users[identity.user_id] = 100
            state["m.room.power_levels"]["users"] = users
        new = NewRoom(
            room_version=version,
            creation_content=creation,
            initial_state=[InitialState(kind, content) for kind, content in state.items()],
        )
        created = await self.create(identity, new)
        tombstone = await self._sender.send(
            identity,
            room_id,
            "m.room.tombstone",
            {"body": "This room has been replaced", "replacement_room": created.room_id},
            state_key="",
        )
        await self._database.run(
            "move aliases", lambda txn: move_aliases(txn, room_id, created.room_id)
        )
        return CreatedRoom(created.room_id, tombstone)

    async def _persist(self, first: FirstEvents) -> CreatedRoom:
        version = first.events[0].version.name
        last = await self._sender.persist_new(first.room_id, version, first.events)
        return CreatedRoom(first.room_id, last)

    async def _set_membership(
        self,
        identity: ClientIdentity,
        room_id: str,
        user_id: str,
        membership: str,
        content: Mapping[str, Any],
        of: Collection[str] | None = None,
    ) -> SentEvent:
        return await self._sender.send(
            identity,
            room_id,
            _MEMBER,
            {**content, "membership": membership},
            state_key=user_id,
            memberships=of,
        )
