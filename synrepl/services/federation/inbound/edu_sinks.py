"""Where EDUs of other servers go: into the streams that tell this server's clients, in whichever process writes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from synrepl.services.federation.inbound.edus import ForeignReceipt
from synrepl.services.rooms.client_data.presence import PresenceService
from synrepl.services.rooms.client_data.receipts import ReceiptService
from synrepl.services.rooms.client_data.stream_writers import DataWriters
from synrepl.services.rooms.client_data.to_device import ToDeviceService
from synrepl.services.rooms.client_data.typing import TypingService
from synrepl.storage.clients.values import Presence
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.device_lists import DEVICE_LISTS, DeviceListsRow

_DEVICE_LIST_ACTION = "tell of a foreign device list"


class StreamSinks:
    """Implements :class:`.EduSinks`. What this server has no stream for is ignored."""

    def __init__(
        self,
        writers: DataWriters,
        typing: TypingService,
        receipts: ReceiptService,
        presence: PresenceService,
        to_device: ToDeviceService,
    ) -> None:
        self._writers = writers
        self._typing = typing
        self._receipts = receipts
        self._presence = presence
        self._to_device = to_device
        writers.add(_DEVICE_LIST_ACTION, DEVICE_LISTS, self._perform_device_list)

    async def typing(self, user_id: str, room_id: str, is_typing: bool) -> None:
        """See :meth:`.EduSinks.typing`.

        :raises NotAMember: :raises SynreplError: the errors of :meth:`.TypingService.set`
        """
        await self._typing.set(user_id, room_id, is_typing, is_foreign=True)

    async def receipt(self, receipt: ForeignReceipt) -> None:
        """See :meth:`.EduSinks.receipt`.

        :raises NotAMember: :raises SynreplError: the errors of :meth:`.ReceiptService.send`
        """
        room_id, kind, user_id, event_id, thread_id, ts = receipt
        await self._receipts.send(
            user_id, room_id, kind, event_id, thread_id, ts=ts, is_foreign=True
        )

    async def presence(self, presences: Sequence[Presence]) -> None:
        """See :meth:`.EduSinks.presence`.

        :raises SynreplError: the errors of :meth:`.PresenceService.store_foreign`
        """
        if self._presence.is_served:
            await self._presence.store_foreign(presences)

    async def device_list_changed(self, user_id: str) -> None:
        """See :meth:`.EduSinks.device_list_changed`.

        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        if self._writers.serves(DEVICE_LISTS):
            await self._writers.run(_DEVICE_LIST_ACTION, user_id, {"user_id": user_id})

    async def to_devices(
        self,
        sender: str,
        kind: str,
        messages: Mapping[str, Mapping[str, Mapping[str, Any]]],
        request: str,
    ) -> None:
        """See :meth:`.EduSinks.to_devices`.

        :raises SynreplError: the errors of :meth:`.ToDeviceService.send`
        """
        await self._to_device.send(sender, kind, messages, request)

    async def _perform_device_list(self, argument: dict[str, Any]) -> None:
        row = DeviceListsRow(argument["user_id"])

        def work(txn: Transaction, outbox: Outbox, writer: str) -> None:
            outbox.append(DEVICE_LISTS, [row])

        await self._writers.transact("tell of a foreign device list", DEVICE_LISTS, work)


class NoSinks:
    """Implements :class:`.EduSinks` where clients have none of this."""

    async def typing(self, user_id: str, room_id: str, is_typing: bool) -> None:
        """Do nothing."""

    async def receipt(self, receipt: ForeignReceipt) -> None:
        """Do nothing."""

    async def presence(self, presences: Sequence[Presence]) -> None:
        """Do nothing."""

    async def device_list_changed(self, user_id: str) -> None:
        """Do nothing."""

    async def to_devices(
        self,
        sender: str,
        kind: str,
        messages: Mapping[str, Mapping[str, Mapping[str, Any]]],
        request: str,
    ) -> None:
        """Do nothing."""
