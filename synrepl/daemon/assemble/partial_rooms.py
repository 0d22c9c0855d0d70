"""Assembles what joins rooms of other servers, and completes those that were joined with partial state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.daemon.assemble.federation import FederationServices
from synrepl.daemon.assemble.ports import Ports
from synrepl.daemon.assemble.rooms import RoomServices
from synrepl.daemon.config.config import Config
from synrepl.services.federation.full_joins import FullJoins
from synrepl.services.federation.partial_joins import PartialJoins
from synrepl.services.federation.resync.monitor import ResyncMonitor
from synrepl.services.federation.resync.pushing import JoinPusher
from synrepl.services.federation.resync.room_resync import ResyncParts
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS

#: Seconds between two looks for what interrupted joins left.
REMOVE_S = 60.0


@dataclass(frozen=True, slots=True)
class PartialRoomServices:
    """What joins rooms of other servers, and completes them.

    :ivar joins: stores joins with partial state
    :ivar full_joins: stores joins with the whole state
    :ivar monitor: watches the completion of rooms by all processes
    """

    joins: PartialJoins
    full_joins: FullJoins
    worker: ResyncWorker
    monitor: ResyncMonitor
    log: Logger

    def begin(self, scheduler: Scheduler) -> None:
        """Begin to complete rooms."""
        scheduler.spawn("complete partial rooms", self.worker.run())
        scheduler.spawn("watch partial rooms", self.monitor.run())
        scheduler.spawn("remove unfinished joins", self._remove_unfinished(scheduler))

    def status(self) -> dict[str, Any]:
        """The partial rooms, and which of them this process completes."""
        return {**self.monitor.status(), "here": sorted(self.worker.rooms)}

    async def stop(self) -> None:
        """Let other processes complete the rooms."""
        try:
            await self.worker.stop()
        except SynreplError as error:
            self.log.warn("cannot release partial rooms: {error}", error=error)

    async def _remove_unfinished(self, scheduler: Scheduler) -> None:
        while True:
            try:
                await self.full_joins.remove_unfinished()
            except SynreplError as error:
                self.log.warn("cannot remove unfinished joins: {error}", error=error)
            await scheduler.sleep(REMOVE_S)


def assemble_partial_rooms(
    config: Config,
    ports: Ports,
    database: Database | None,
    writer: StreamWriter | None,
    rooms: RoomServices | None,
    federation: FederationServices | None,
) -> PartialRoomServices | None:
    """Make it; None without federation, and in a process that does not persist rooms.

    :param writer: the writer of the process's streams; None if it writes none
    """
    if config.rooms is None or database is None or writer is None or federation is None:
        return None
    persister = None if rooms is None else rooms.persister
    if persister is None or not all(each in writer.streams for each in RESYNC_STREAMS):
        return None
    scheduler, log, name = ports.scheduler, ports.log, config.server_name
    parts = ResyncParts(
        scheduler=scheduler,
        database=database,
        persister=persister,
        client=federation.client,
        verifier=federation.verifier,
        pusher=JoinPusher(scheduler, database, federation.client),
        server_name=name,
        limits=config.rooms.limits,
        log=log,
    )
    instance = config.instance_name
    worker = ResyncWorker(parts, instance, config.rooms.writers)
    federation.transport.listeners.append(worker.server_is_up)
    return PartialRoomServices(
        PartialJoins(persister, worker.wake),
        FullJoins(database, persister, instance, name, worker.wake),
        worker,
        ResyncMonitor(scheduler, database, log),
        log,
    )
