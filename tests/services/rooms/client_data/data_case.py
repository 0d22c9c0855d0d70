"""Processes that change clients' data, on one database, and a room whose members do so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.forwarding import WriterActions, WriterUnreachable
from synrepl.services.rooms.client_data.account_data import AccountDataService
from synrepl.services.rooms.client_data.forwarded_errors import CLIENT_DATA_ERRORS
from synrepl.services.rooms.client_data.receipts import ReceiptService
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.to_device import ToDeviceService
from synrepl.services.rooms.sending.new_room import NewRoom
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.clients.devices import Device, record_devices
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.account_data import ACCOUNT_DATA
from synrepl.streams.synapse.presence import PRESENCE
from synrepl.streams.synapse.receipts import RECEIPTS
from synrepl.streams.synapse.tag_account_data import TAG_ACCOUNT_DATA
from synrepl.streams.synapse.to_device import TO_DEVICE
from tests.services.rooms.sending_case import ALICE, BOB, SendingServiceCase
from tests.services.world import NullLog
from tests.storage.rooms.store_case import IgnoringListener

STREAMS: tuple[Stream, ...] = (ACCOUNT_DATA, TAG_ACCOUNT_DATA, RECEIPTS, PRESENCE, TO_DEVICE)


class DataProcess:
    """A process with the services.

    :ivar streams: those that it writes
    :ivar others: processes that it reaches, by name
    :ivar away: whether it does not answer others
    """

    def __init__(
        self,
        case: ClientDataCase,
        name: str,
        streams: Sequence[Stream],
        writers: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self.process = case.process(name)
        self.others: dict[str, DataProcess] = {}
        self.away = False
        self.actions = WriterActions(CLIENT_DATA_ERRORS)
        self.writer: StreamWriter | None = None
        if streams:
            self.writer = StreamWriter(
                self.process.scheduler,
                self.process.store,
                name,
                streams,
                IgnoringListener(),  # type: ignore[arg-type]
                NullLog(),
            )
        self.writers = DataWriters(name, self.writer, writers, self, self.actions)
        database, scheduler = self.process.database, self.process.scheduler
        self.database = database
        self.account_data = AccountDataService(database, self.writers)
        self.receipts = ReceiptService(scheduler, self.writers)
        self.to_device = ToDeviceService("test", True, self.writers, NullLog())

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have another process perform an action; everything goes through JSON."""
        if writer not in self.others or self.others[writer].away:
            raise WriterUnreachable(writer=writer)
        decoded = json.loads(json.dumps(argument))
        answer = await self.others[writer].actions.perform(action, decoded)
        return self.actions.result(writer, json.loads(json.dumps(answer)))


class ClientDataCase(SendingServiceCase):
    """Alice and Bob are in a room. The processes write all streams, but for the last one."""

    names: Sequence[str] = ("d1", "d2", "d3")

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        await self.database.run("tables", lambda txn: ensure_tables(txn, STREAMS) and None)
        *writing, last = self.names
        writers = {stream.name: writing for stream in STREAMS}
        self.data = {name: DataProcess(self, name, STREAMS, writers) for name in writing}
        self.data[last] = DataProcess(self, last, (), writers)
        for each in self.data.values():
            each.others = self.data
            if each.writer is not None:
                await each.writer.start()
                self.addCleanup(each.writer.stop)
        self.room_id = await self.create(preset="public_chat")
        await self.changes.join(BOB, self.room_id, {})

    async def another_room(self) -> str:
        """A room of Alice and Bob."""
        created = await self.changes.create(ALICE, NewRoom(preset="public_chat"))
        await self.changes.join(BOB, created.room_id, {})
        return created.room_id

    async def know(self, *identities: ClientIdentity) -> None:
        """Record devices."""
        devices = [Device(*each) for each in identities]
        await self.database.run("devices", lambda txn: record_devices(txn, devices))
