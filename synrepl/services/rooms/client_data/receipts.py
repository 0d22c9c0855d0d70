"""Receipts: how far users have read, as others are told, or only they themselves.

Source: https://spec.matrix.org/v1.16/client-server-api/#receipts
"""

from __future__ import annotations

from typing import Any

from synrepl.core.clock import Clock
from synrepl.core.errors import InputError
from synrepl.services.rooms.client_data.account_data import check_name, check_room
from synrepl.services.rooms.client_data.stream_writers import (
    DataWriters,
    WrittenFact,
    written_fact,
)
from synrepl.storage.clients.receipts import NewReceipt, write_receipt
from synrepl.storage.clients.values import PRIVATE_RECEIPT
from synrepl.storage.clients.written_values import StoredFact
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.receipts import RECEIPTS

PUBLIC_RECEIPT = "m.read"

RECEIPT_TYPES = (PUBLIC_RECEIPT, PRIVATE_RECEIPT)

_ACTION = "send receipt"


class UnknownReceiptType(InputError):
    """{type!r} is not a type of receipts: use one of {types}"""


class ReceiptService:
    """Takes receipts, in whichever process their stream is written."""

    def __init__(self, clock: Clock, writers: DataWriters) -> None:
        self._clock = clock
        self._writers = writers
        writers.add(_ACTION, RECEIPTS, self._perform)

    async def send(
        self,
        user_id: str,
        room_id: str,
        receipt_type: str,
        event_id: str,
        thread_id: str | None = None,
        *,
        ts: int | None = None,
        is_foreign: bool = False,
    ) -> WrittenFact | None:
        """Take a receipt, unless the user has read further already.

        :param thread_id: the root of a thread, or ``main``; None for a receipt that belongs to no thread
        :param ts: milliseconds since 1970; None: now
        :param is_foreign: whether it comes from another server, for a user of that: the event may come later
        :raises UnknownReceiptType: :raises BadAccountDataName: :raises UnknownRoom: :raises NotAMember:
        :raises EventNotInRoom: :raises NotInThread:
        :raises SynreplError: the errors of :meth:`.DataWriters.run`
        """
        if receipt_type not in RECEIPT_TYPES:
            types = ", ".join(RECEIPT_TYPES)
            raise UnknownReceiptType(type=receipt_type[:100], types=types)
        check_room(room_id)
        check_name(event_id, "an event ID")
        if thread_id is not None:
            check_name(thread_id, "a thread ID")
        at = int(self._clock.seconds() * 1000) if ts is None else ts
        receipt = NewReceipt(room_id, receipt_type, user_id, event_id, thread_id, at)
        argument = {"receipt": receipt._asdict(), "is_foreign": is_foreign}
        return written_fact(await self._writers.run(_ACTION, room_id, argument))

    async def _perform(self, argument: dict[str, Any]) -> WrittenFact | None:
        receipt, is_foreign = NewReceipt(**argument["receipt"]), argument["is_foreign"]

        def work(txn: Transaction, outbox: Outbox, writer: str) -> StoredFact | None:
            return write_receipt(txn, outbox, writer, receipt, is_foreign=is_foreign)

        return await self._writers.transact("send a receipt", RECEIPTS, work)
