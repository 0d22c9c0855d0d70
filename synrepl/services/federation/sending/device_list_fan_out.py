"""Has other servers told whose devices have changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.federation.partitions import partition_of
from synrepl.services.federation.sending.known_servers import KeptRoomServers, servers_of_users
from synrepl.services.federation.sending.registry import DestinationRegistry, OwnedPartition
from synrepl.services.federation.sending.settled_bound import SettledBound
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.destination_partitions import (
    PartitionsLost,
    enter_partitions,
    write_device_lists_position,
)
from synrepl.storage.federation.device_list_changes import changed_users
from synrepl.storage.federation.outgoing_messages import add_pokes
from synrepl.storage.federation.room_servers import ServersAtState

#: Seconds between two looks for changes.
LOOK_EVERY_S = 1.0

_AWAY = BackOff(1.0, 30.0)


class DeviceListFanOut:
    """Follows ``device_lists``, and writes which destinations are to be told of whom.

    Each server that shares a room with the user is told, once for each change: the row is written in the transaction that
    moves the position on.

    :param wake: called with the names of destinations that are to be told
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        own: str,
        registry: DestinationRegistry,
        settled: SettledBound,
        wake: Callable[[Collection[str]], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._own = own
        self._registry = registry
        self._settled = settled
        self._wake = wake
        self._log = log
        self._rooms = KeptRoomServers()
        self._is_due = True
        self._sleeping: Promise[None] | None = None

    def changed(self) -> None:
        """The stream has new facts, or partitions were claimed."""
        self._is_due = True
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None:
            sleeping.callback(None)

    async def run(self) -> None:
        """Follow, until the scheduler stops."""
        retry = Retry(_AWAY, self._scheduler.random)
        while True:
            if not self._is_due:
                self._sleeping = self._scheduler.promise()
                await self._sleeping
            self._is_due = False
            try:
                await self._follow()
            except PartitionsLost:
                continue  # it is noticed where transactions are recorded
            except SynreplError as error:
                self._log.warn("changes of devices cannot be read: {error}", error=error)
                self._is_due = True
                await self._scheduler.sleep(retry.failed())
            else:
                retry.succeeded()
                await self._scheduler.sleep(LOOK_EVERY_S)  # changes come in bursts

    async def _follow(self) -> None:
        upto = await self._settled.upto()
        by_position: dict[int, list[OwnedPartition]] = {}
        for each in self._registry.partitions.values():
            by_position.setdefault(each.device_lists_position, []).append(each)
        for position, partitions in by_position.items():
            if position >= upto:
                continue
            told = await self._write(position, upto, partitions)
            for each in partitions:
                each.device_lists_position = upto
            if told:
                self._wake(told)

    async def _write(
        self, after: int, upto: int, partitions: Collection[OwnedPartition]
    ) -> Collection[str]:
        """Write who is to be told of changes."""
        epochs = {each.number: each.epoch for each in partitions}
        known = self._rooms.known
        work = partial(_write, self._own, after, upto, epochs, known)
        told, rooms = await self._database.run("tell of changed devices", work)
        self._rooms.keep(rooms)
        return told


def _write(
    own: str,
    after: int,
    upto: int,
    epochs: Mapping[int, int],
    known: Mapping[int, ServersAtState],
    txn: Transaction,
) -> tuple[Collection[str], Mapping[int, ServersAtState]]:
    enter_partitions(txn, epochs)
    users = changed_users(txn, own, after, upto)
    servers, rooms = servers_of_users(txn, users, known)
    pokes = [
        (server, user, users[user])
        for user, names in servers.items()
        for server in names
        if server != own and partition_of(server) in epochs
    ]
    add_pokes(txn, pokes)
    write_device_lists_position(txn, epochs, upto)
    return {server for server, _, _ in pokes}, rooms
