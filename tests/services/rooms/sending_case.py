"""Processes that send events of users, and forward to one another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from signedjson.key import generate_signing_key

from synrepl.rooms import Event, StateKey
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.forwarding import WriterActions, WriterUnreachable
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.rooms.sending.placements import PlacementCache
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.storage.rooms.reading.client_rooms import current_events
from tests.storage.rooms.store_case import PersistingProcess, StoreCase

ALICE = ClientIdentity("@alice:test", "A")
BOB = ClientIdentity("@bob:test", "B")
CAROL = ClientIdentity("@carol:test", "C")

#: Signing keys are those of the server, so all processes have the same one.
KEY = generate_signing_key("1")


class SendingProcess:
    """A process with the services that change rooms.

    :ivar forwarded: the actions that others performed for it
    """

    def __init__(self, process: PersistingProcess, writers: Sequence[str]) -> None:
        inner = process.process
        self.process = process
        self.forwarded: list[tuple[str, str]] = []
        self.others: dict[str, SendingProcess] = {}
        self.actions = WriterActions(FORWARDED_ERRORS)
        self.room_writers = RoomWriters(inner.database, writers)
        self.placements = PlacementCache(inner.scheduler, self.room_writers)
        self.sender = EventSender(
            inner.scheduler,
            inner.database,
            self.placements,
            process.persister,
            inner.name,
            "test",
            KEY,
            self,
        )
        self.sender.add_actions(self.actions)
        self.aliases = RoomAliases(inner.database, self.sender)
        self.changes = RoomChanges(inner.database, self.sender, self.aliases)

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have another process perform an action; everything goes through JSON."""
        if writer not in self.others:
            raise WriterUnreachable(writer=writer)
        self.forwarded.append((writer, action))
        decoded = json.loads(json.dumps(argument))
        answer = await self.others[writer].actions.perform(action, decoded)
        return self.actions.result(writer, json.loads(json.dumps(answer)))


class SendingServiceCase(StoreCase):
    """One process, or several that know one another."""

    writers: Sequence[str] = ("one",)

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.processes = {"one": SendingProcess(self.one, self.writers)}
        for name in self.writers[1:]:
            started = await self.start_process(name)
            self.processes[name] = SendingProcess(started, self.writers)
        for each in self.processes.values():
            each.others = self.processes
        first = self.processes["one"]
        self.sender, self.changes, self.aliases = first.sender, first.changes, first.aliases

    async def create(self, identity: ClientIdentity = ALICE, **chosen: Any) -> str:
        """Create a room; returns its ID."""
        return (await self.changes.create(identity, NewRoom(**chosen))).room_id

    async def say(self, room_id: str, identity: ClientIdentity = ALICE, **more: Any) -> str:
        """Send a message; returns its event ID."""
        content = {"msgtype": "m.text", "body": "hello"}
        return (
            await self.sender.send(identity, room_id, "m.room.message", content, **more)
        ).event_id

    async def state(self, room_id: str, *types: str) -> dict[StateKey, Event]:
        """The current state with some types."""
        return await self.read(lambda txn: current_events(txn, room_id, types))

    async def content(self, room_id: str, kind: str, key: str = "") -> dict[str, Any] | None:
        """The content of an entry of the current state."""
        found = (await self.state(room_id, kind)).get((kind, key))
        return None if found is None else dict(found.content)

    async def membership(self, room_id: str, user_id: str) -> object:
        """The membership of a user."""
        found = await self.content(room_id, "m.room.member", user_id)
        return None if found is None else found["membership"]
