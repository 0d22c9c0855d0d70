"""Aliases of rooms: who may add and remove them, and which room one stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from synrepl.core.errors import InputError
from synrepl.rooms import EventBuilder, EventDraft
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.inbound_rooms import some_servers
from synrepl.storage.rooms.persisting.send_run import EventNotAllowed
from synrepl.storage.rooms.reading.client_rooms import check_allowed, membership_of
from synrepl.storage.rooms.tables.aliases import (
    RoomAlias,
    add_alias,
    aliases_of,
    find_alias,
    remove_alias,
)
from synrepl.storage.rooms.tables.numbers import require_room

#: Maximum length of an alias in bytes.
MAX_ALIAS_BYTES = 255

#: Aliases of a room that are listed.
MAX_LISTED = 1_000

_LOCALPART = re.compile(r"[^\0\s:]+")


class BadAlias(InputError):
    """{alias!r} is not an alias of this server: {reason}"""


class RoomAliases:
    """Adds, removes and finds aliases of this server."""

    def __init__(self, database: Database, sender: EventSender) -> None:
        self._database = database
        self._sender = sender

    def check(self, alias: str) -> str:
        """Check an alias that is to be added; returns it.

        :raises BadAlias: it is malformed, or of another server
        """
        local, _, server = alias[1:].partition(":")
        reason = None
        if alias[:1] != "#" or not _LOCALPART.fullmatch(local):
            reason = "it is not '#name:server'"
        elif server != self._sender.server_name:
            reason = f"aliases here end with ':{self._sender.server_name}'"
        elif len(alias.encode("utf-8", "replace")) > MAX_ALIAS_BYTES:
            reason = f"it has more than {MAX_ALIAS_BYTES} bytes"
        if reason is not None:
            raise BadAlias(alias=alias[:MAX_ALIAS_BYTES], reason=reason)
        return alias

    async def room_of(self, alias: str) -> str:
        """The ID of the room that an alias stands for.

        :raises UnknownAlias:
        """

        def work(txn: Transaction) -> str:
            return find_alias(txn, alias).room_id

        return await self._database.run("find an alias", work, read_only=True)

    async def room_with_servers(self, alias: str) -> tuple[str, Sequence[str]]:
        """The ID of the room that an alias stands for, and servers in it.

        :raises UnknownAlias:
        """

        def work(txn: Transaction) -> tuple[str, Sequence[str]]:
            room = require_room(txn, find_alias(txn, alias).room_id)
            return room.room_id, some_servers(txn, room.room_no, MAX_LISTED)

        return await self._database.run("find an alias", work, read_only=True)

    async def add(self, identity: ClientIdentity, alias: str, room_id: str) -> None:
        """Add an alias to a room that the user is in.

        :raises BadAlias: :raises UnknownRoom: :raises EventNotAllowed: :raises AliasInUse:
        """
        self.check(alias)

        def work(txn: Transaction) -> None:
            room = require_room(txn, room_id)
            if membership_of(txn, room.room_no, identity.user_id) != "join":
                raise EventNotAllowed(reason=f"{identity.user_id} is no member")
            add_alias(txn, RoomAlias(alias, room_id, identity.user_id))

        await self._database.run("add an alias", work)

    async def claim(self, identity: ClientIdentity, alias: str, room_id: str) -> None:
        """Add an alias to a room that is about to be created.

        :raises AliasInUse:
        """

        def work(txn: Transaction) -> None:
            add_alias(txn, RoomAlias(alias, room_id, identity.user_id))

        await self._database.run("claim an alias", work)

    async def release(self, alias: str, room_id: str) -> None:
        """Remove an alias of a room that was not created after all."""
        await self._database.run("release an alias", lambda txn: remove_alias(txn, alias, room_id))

    async def remove(self, identity: ClientIdentity, alias: str) -> None:
        """Remove an alias: its creator may, and who may set the room's canonical alias.

        :raises UnknownAlias: :raises EventNotAllowed:
        """
        placed = await self._sender.placements.of(await self.room_of(alias))
        builder = self._sender.builder(placed.version)

        def work(txn: Transaction) -> None:
            found = find_alias(txn, alias)
            if found.creator != identity.user_id:
                self._check_canonical(txn, found.room_id, builder, identity.user_id)
            remove_alias(txn, alias, found.room_id)

        await self._database.run("remove an alias", work)

    async def of_room(self, identity: ClientIdentity, room_id: str) -> Sequence[str]:
        """The aliases of a room that the user is in.

        :raises UnknownRoom: :raises EventNotAllowed:
        """

        def work(txn: Transaction) -> list[str]:
            room = require_room(txn, room_id)
            if membership_of(txn, room.room_no, identity.user_id) != "join":
                raise EventNotAllowed(reason=f"{identity.user_id} is no member")
            return aliases_of(txn, room_id, MAX_LISTED)

        return await self._database.run("list aliases", work, read_only=True)

    def _check_canonical(
        self, txn: Transaction, room_id: str, builder: EventBuilder, user_id: str
    ) -> None:
        now_ms = self._sender.now_ms()
        draft = EventDraft("m.room.canonical_alias", user_id, {}, now_ms, "")
        check_allowed(txn, room_id, builder, draft)
