"""Takes in transactions of other servers: each once, whichever process gets it and however often it comes.

Events are judged where their room is persisted. Those of rooms of this process are judged before the transaction is
answered, unless it takes too long; all others are staged in a table first. So an event for which a transaction is answered
without an error is in the database. Source: https://spec.matrix.org/v1.16/server-server-api/#transactions
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from synrepl.core import jsons
from synrepl.core.clock import Scheduler
from synrepl.core.errors import InputError, Unavailable
from synrepl.core.keyed_semaphores import KeyedSemaphores
from synrepl.federation.transactions import ReceivedTransaction, parse_transaction
from synrepl.rooms import (
    BadEvent,
    Event,
    OtherRoom,
    ReceiptResult,
    UnknownRoomVersion,
    parse_event,
    room_version,
)
from synrepl.services.federation.inbound.admission import (
    AdmittedRoom,
    InboundAdmission,
    NotInThisRoom,
)
from synrepl.services.federation.inbound.edus import EduReceiver
from synrepl.services.federation.inbound.handover import EventHandover, Outcomes
from synrepl.services.federation.verifying import EventVerifier
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.received_transactions import record_answer
from synrepl.storage.rooms.tables.incoming import NotStorable, check_storable

#: Maximum length of a transaction ID.
MAX_TXN_ID = 255

#: Transactions of one server that are taken in or wait. A server sends one after the other.
MAX_OF_ORIGIN = 8


class BadTransactionId(InputError):
    """a transaction ID has 1 to {most} characters, without NUL"""


class TooManyTransactions(Unavailable):
    """{count} transactions of {origin} are being taken in already; send one after the other"""


class _HeadOfPdu(msgspec.Struct):
    room_id: str | None = None


class _Pdu(NamedTuple):
    """A PDU that passed checks 1 to 3.

    :ivar place: among the PDUs of its transaction that are objects
    """

    place: int
    event: Event


_HEAD = msgspec.json.Decoder(_HeadOfPdu)


class TransactionReceiver:
    """Takes in transactions.

    :ivar outcomes: number of transactions by outcome, and of PDUs by outcome, with ``pdu`` before it
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        admission: InboundAdmission,
        verifier: EventVerifier,
        handover: EventHandover,
        edus: EduReceiver,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._admission = admission
        self._verifier = verifier
        self._handover = handover
        self._edus = edus
        self._origins: KeyedSemaphores[str] = KeyedSemaphores(scheduler, 1)
        self.outcomes: Counter[str] = Counter()

    @property
    def active(self) -> int:
        """Number of transactions that are being taken in."""
        return self._origins.users

    async def receive(self, origin: str, txn_id: str, body: bytes) -> bytes:
        """Take in a transaction.

        :param origin: the server that signed the request
        :param body: of the request
        :returns: the answer, which is JSON
        :raises BadTransaction: :raises BadTransactionId: :raises TooManyTransactions:
        :raises Unavailable: it has to be sent again: nothing is known of what became of it
        """
        if not txn_id or len(txn_id) > MAX_TXN_ID or "\0" in txn_id:
            raise BadTransactionId(most=MAX_TXN_ID)
        transaction = parse_transaction(body)
        count = self._origins.users_of(origin)
        if count >= MAX_OF_ORIGIN:
            raise TooManyTransactions(origin=origin, count=count)
        with self._origins.entered(origin) as turn:
            async with turn:
                return await self._receive(origin, txn_id, transaction)

    async def _receive(self, origin: str, txn_id: str, transaction: ReceivedTransaction) -> bytes:
        room_ids = [_room_id(raw) for raw in transaction.pdus]
        names = _names(transaction)
        named = {each for each in room_ids if each is not None}
        facts = await self._admission.facts(origin, txn_id, named)
        if facts.answer is not None:
            self.outcomes["repeated"] += 1
            return facts.answer
        results: Outcomes = {
            f"pdus[{place}]": "it is no JSON object" for place in transaction.bad_pdus
        }
        by_version: dict[str, list[int]] = {}
        for place, room_id in enumerate(room_ids):
            room = None if room_id is None else facts.rooms.get(room_id)
            if room is None or room.refusal is not None:
                version = None if room is None else room.room.version
                event_id = _event_id(transaction.pdus[place], version) or names[place]
                results[event_id] = _room_error(room_id, room)
            else:
                by_version.setdefault(room.room.version, []).append(place)
        by_room = await self._verified(origin, transaction, room_ids, by_version, results)
        results |= await self._handover.give(origin, by_room, facts.rooms)
        await self._edus.receive(origin, transaction.edus)
        for error in results.values():
            self.outcomes["pdu taken" if error is None else "pdu refused"] += 1
        answer = _encoded(results)

        def work(txn: Transaction) -> bytes:
            return record_answer(txn, origin, txn_id, answer)

        recorded = await self._database.run("record a transaction", work)
        self.outcomes["taken"] += 1
        return recorded

    async def _verified(
        self,
        origin: str,
        transaction: ReceivedTransaction,
        room_ids: Sequence[str | None],
        by_version: Mapping[str, Sequence[int]],
        results: Outcomes,
    ) -> dict[str, list[Event]]:
        """The events that pass checks 1 to 3, by room, in their order.

        :param by_version: places of PDUs by the version of their room
        """
        found: list[_Pdu] = []
        names = _names(transaction)
        for name, places in by_version.items():
            try:
                version = room_version(name)
            except UnknownRoomVersion as error:
                results.update((names[place], str(error)) for place in places)
                continue
            raws = [transaction.pdus[place] for place in places]
            checked = await self._verifier.verify(raws, version, origin=origin)
            for place, raw, result in zip(places, raws, checked, strict=True):
                event = result.event
                why_not = _receipt_error(result, room_ids[place])
                if event is None or why_not is not None:
                    results[_event_id(raw, name) or names[place]] = why_not
                else:
                    found.append(_Pdu(place, event))
        by_room: dict[str, list[Event]] = {}
        for _, event in sorted(found):
            by_room.setdefault(event.room_id, []).append(event)
        return by_room


def _receipt_error(result: ReceiptResult, room_id: str | None) -> str | None:
    """Why an event is dropped; None if it is not."""
    event = result.event
    if event is None:
        return "it is no event" if result.refusal is None else result.refusal.sentence
    try:
        check_storable(event)
    except NotStorable as error:
        return str(error)
    if event.room_id != room_id:
        return str(
            OtherRoom(event_id=event.event_id, room_id=event.room_id, expected=room_id or "none")
        )
    return None


def _room_error(room_id: str | None, room: AdmittedRoom | None) -> str:
    """Why no event is taken of a room."""
    if room_id is None:
        return "it is no event, or names no room"
    if room is None or room.refusal is None:
        return str(NotInThisRoom(room_id=room_id[:255]))
    return str(room.refusal)


def _names(transaction: ReceivedTransaction) -> list[str]:
    """What PDUs that have no event ID are called in the answer: by their places in the transaction."""
    count = len(transaction.pdus) + len(transaction.bad_pdus)
    return [f"pdus[{at}]" for at in range(count) if at not in transaction.bad_pdus]


def _event_id(raw: bytes, version: str | None) -> str | None:
    """The ID of an event; None if it has none, or its room version is not known."""
    if version is None:
        return None
    try:
        return parse_event(raw, room_version(version)).event_id
    except (BadEvent, UnknownRoomVersion):
        return None


def _room_id(raw: bytes) -> str | None:
    """The room of a PDU as far as it says; None if it says nothing that can be used."""
    try:
        return _HEAD.decode(raw).room_id
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _encoded(results: Outcomes) -> bytes:
    pdus: dict[str, Any] = {
        event_id: {} if error is None else {"error": error} for event_id, error in results.items()
    }
    text: dict[str, Any] = {"pdus": pdus}
    try:
        return jsons.encode(text)
    except TypeError:  # an ID or a sentence with half a surrogate pair
        return jsons.encode(_printable(text))


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
