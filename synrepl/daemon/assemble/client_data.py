"""Assembles what changes account data, receipts, typing, presence and messages to devices."""

from __future__ import annotations

from dataclasses import dataclass

from synrepl.core.clock import Scheduler
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.config.client_streams import client_stream_writers
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.client_data.account_data import AccountDataService
from synrepl.services.rooms.client_data.presence import PresenceService
from synrepl.services.rooms.client_data.receipts import ReceiptService
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.to_device import ToDeviceService
from synrepl.services.rooms.client_data.typing import TypingService
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse.presence import PRESENCE


@dataclass(frozen=True, slots=True)
class ClientDataServices:
    """What users change besides rooms. A process that writes any of the streams does so for others, too."""

    writers: DataWriters
    account_data: AccountDataService
    receipts: ReceiptService
    typing: TypingService
    to_device: ToDeviceService
    presence: PresenceService

    def begin(self, scheduler: Scheduler) -> None:
        """Begin to decide who is present, if this process writes that."""
        if self.writers.writes(PRESENCE):
            scheduler.spawn("decide presence", self.presence.run())


def assemble_client_data(
    config: Config,
    ports: Ports,
    database: Database | None,
    catalogue: Catalogue,
    writer: StreamWriter | None,
) -> ClientDataServices | None:
    """Make what changes clients' data; None without rooms.

    :param writer: the writer of the process's streams; None if it writes none
    """
    if config.rooms is None or database is None:
        return None
    scheduler, log = ports.scheduler, ports.log
    writers = DataWriters(
        config.instance_name,
        writer,
        client_stream_writers(config, catalogue),
        ports.forwarder,
        ports.actions,
    )
    return ClientDataServices(
        writers,
        AccountDataService(database, writers),
        ReceiptService(scheduler, writers),
        TypingService(scheduler, database, writers, log),
        ToDeviceService(config.server_name, config.rooms.federation is not None, writers, log),
        PresenceService(scheduler, database, writers, log),
    )
