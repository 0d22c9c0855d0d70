"""Which devices there are: those that have synced lately, since access tokens are stored nowhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.positions.vector import PositionVector
from synrepl.services.clients.identity import ClientIdentity
from synrepl.storage.clients.devices import Device, forget_device, record_devices
from synrepl.storage.clients.to_device import acknowledge_messages
from synrepl.storage.database import Database, Transaction

#: Seconds after which a device that syncs is recorded again.
RECORD_EVERY_S = 24 * 3600.0

#: Devices that are remembered to be on record, and seconds for which later records are gathered.
MAX_REMEMBERED, GATHER_S = 100_000, 5.0

#: Devices that are recorded in one transaction.
RECORDED_AT_ONCE = 1_000


class DeviceRegistry:
    """Records which devices sync, and deletes the messages that they have acknowledged.

    A device is on record before its first sync is answered, and then once a day. So syncs that wait, or find nothing
    new, cost no query.
    """

    def __init__(self, scheduler: Scheduler, database: Database, log: Logger) -> None:
        self._scheduler = scheduler
        self._database = database
        self._log = log
        self._recorded: OrderedDict[Device, float] = OrderedDict()
        self._waiting: dict[Device, None] = {}
        #: Devices that were told of messages here, with what they acknowledge by the next token.
        self._told: OrderedDict[Device, PositionVector] = OrderedDict()

    async def begins(self, identity: ClientIdentity) -> None:
        """A device syncs from the start: it is on record when this returns.

        :raises SynreplError: it cannot be recorded now
        """
        device = Device(*identity)
        await self._record([device])

    def syncs(self, identity: ClientIdentity, since: PositionVector) -> None:
        """A device syncs; it is recorded soon, unless it is on record.

        :param since: acknowledges messages to it; those that it was told of here are deleted
        """
        device = Device(*identity)
        told = self._told.get(device)
        if told is not None and since.covers(told):
            del self._told[device]
            self.delete(identity, since)
        recorded_at = self._recorded.get(device)
        now = self._scheduler.seconds()
        if recorded_at is not None and now < recorded_at + RECORD_EVERY_S:
            return
        if not self._waiting:
            self._scheduler.spawn("record devices", self._record_waiting())
        self._waiting[device] = None
        self._remember(device, now)

    async def forget(self, identity: ClientIdentity) -> None:
        """A device has logged out: nothing is kept for it any more.

        :raises SynreplError: it cannot be forgotten now
        """
        device = Device(*identity)
        for known in (self._recorded, self._told, self._waiting):
            known.pop(device, None)
        await self._database.run("forget a device", lambda txn: forget_device(txn, device))

    # -- messages that were told --------------------------------------------------------------

    def told(self, identity: ClientIdentity, upto: PositionVector) -> None:
        """A device is told of messages, and will acknowledge those that ``upto`` covers."""
        self._told[Device(*identity)] = upto
        if len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)  # they are deleted when there are new ones

    def delete(self, identity: ClientIdentity, upto: PositionVector) -> None:
        """Delete messages that a device has acknowledged; this does not wait until they are deleted."""
        deletion = self._delete(Device(*identity), upto)
        self._scheduler.spawn("delete messages to a device", deletion)

    async def _delete(self, device: Device, upto: PositionVector) -> None:
        def work(txn: Transaction) -> None:
            acknowledge_messages(txn, device, upto)

        try:
            await self._database.run("delete messages to a device", work)
        except SynreplError as error:  # they are deleted when there are new ones
            self._log.warn("cannot delete messages to a device: {error}", error=error)

    # -- recording ----------------------------------------------------------------------------

    async def _record_waiting(self) -> None:
        await self._scheduler.sleep(GATHER_S)
        waiting, self._waiting = list(self._waiting), {}
        try:
            for start in range(0, len(waiting), RECORDED_AT_ONCE):
                await self._record(waiting[start : start + RECORDED_AT_ONCE])
        except SynreplError as error:
            for each in waiting:
                self._recorded.pop(each, None)
            self._log.warn("cannot record devices: {error}", error=error)

    async def _record(self, devices: Collection[Device]) -> None:
        def work(txn: Transaction) -> None:
            record_devices(txn, devices)

        await self._database.run("record devices", work)
        for each in devices:
            self._remember(each, self._scheduler.seconds())

    def _remember(self, device: Device, now: float) -> None:
        self._recorded[device] = now
        self._recorded.move_to_end(device)
        if len(self._recorded) > MAX_REMEMBERED:
            self._recorded.popitem(last=False)
