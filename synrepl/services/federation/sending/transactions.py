"""Builds the next transaction of a destination, sends it, and settles what comes of it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff
from synrepl.federation.back_off import DestinationFailure, is_failure
from synrepl.federation.errors import (
    AddressRefused,
    DestinationAway,
    DestinationBackedOff,
    RequestRefusedByServer,
)
from synrepl.federation.outgoing_edus import device_list_edu
from synrepl.federation.transactions import MAX_EDUS
from synrepl.services.federation.sending.batched_loader import BatchedLoader
from synrepl.services.federation.sending.destination_queue import Away, DestinationQueue
from synrepl.services.federation.sending.journal import NotOwned, QueueJournal
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.destination_queues import RecordedTransaction
from synrepl.storage.federation.missed_events import missed_events
from synrepl.storage.federation.outgoing_events import outgoing_json
from synrepl.storage.federation.outgoing_messages import (
    DeviceListPoke,
    PersistentEdus,
    delete_messages,
    delete_pokes,
    messages_by_number,
    persistent_edus,
)
from synrepl.storage.rooms.tables.events import CorruptEvent, MissingJson

#: Messages to devices, and device lists, in one transaction.
MAX_MESSAGES, MAX_POKES = 50, 20

#: Events that a destination gets although it was behind. If it has missed more, it gets the newest of each room.
MAX_MISSED = 50

#: Rooms of which what was missed is read at once.
MAX_MISSED_ROOMS = 200

#: Size of the JSON of events that is kept, in bytes.
KEPT_BYTES = 32 * 2**20

#: Between attempts after an answer for which nobody else leaves the destination alone.
OWN_BACK_OFF = BackOff(5.0, 3600.0)

#: A transaction that is answered with these is not accepted as it is.
_CONTENT_STATUSES = frozenset({400, 413})


class SendsTransactions(Protocol):
    """See :class:`synrepl.services.federation.client.FederationClient`."""

    async def send_transaction(
        self,
        destination: str,
        txn_id: str,
        origin_ts: int,
        pdus: Sequence[bytes],
        edus: Sequence[bytes],
    ) -> Mapping[str, str | None]: ...


class KnowsFailures(Protocol):
    """See :class:`synrepl.services.federation.backing_off.BackOffTransport`."""

    async def failures(self, servers: Collection[str]) -> Mapping[str, DestinationFailure]:
        """The failures of those of some servers that have failed lately."""


class OutgoingTransaction(NamedTuple):
    """A transaction as it is sent.

    :ivar event_ids: of its PDUs
    :ivar pokes: the changes of device lists among its EDUs
    """

    recorded: RecordedTransaction
    event_ids: Sequence[str]
    pdus: Sequence[bytes]
    edus: Sequence[bytes]
    pokes: Sequence[DeviceListPoke] = ()


class DeliveredEdus(NamedTuple):
    """EDUs of the database that a destination has got."""

    destination: str
    messages: tuple[int, ...]
    pokes: tuple[DeviceListPoke, ...]


class EventJson:
    """The JSON of events by stream ID, the ones that were used last kept."""

    def __init__(self, scheduler: Scheduler, database: Database, log: Logger) -> None:
        self._database = database
        self._log = log
        self._kept: OrderedDict[int, tuple[str, bytes]] = OrderedDict()
        self._bytes = 0
        self._loader: BatchedLoader[int, tuple[str, bytes]] = BatchedLoader(
            scheduler, "read events to send", self._load
        )

    async def get(self, stream_ids: Sequence[int]) -> Sequence[tuple[str, bytes]]:
        """The ID and the JSON of events; those that are not here any more, or are damaged, are left out."""
        found = []
        for each in stream_ids:
            kept = self._kept.get(each)
            if kept is None:
                kept = await self._loader.get(each)
            else:
                self._kept.move_to_end(each)
            if kept is not None:
                found.append(kept)
        return found

    async def _load(self, stream_ids: Collection[int]) -> Mapping[int, tuple[str, bytes]]:
        try:
            found = await self._read(stream_ids)
        except (CorruptEvent, MissingJson) as error:
            if len(stream_ids) == 1:
                self._log.warn("not sent: {error}", error=error)
                return {}
            found = {}
            for each in stream_ids:
                found.update(await self._load([each]))
        for stream_id, event in found.items():
            if stream_id not in self._kept:
                self._kept[stream_id] = event
                self._bytes += len(event[1])
        while self._bytes > KEPT_BYTES:
            _, (_, data) = self._kept.popitem(last=False)
            self._bytes -= len(data)
        return found

    async def _read(self, stream_ids: Collection[int]) -> dict[int, tuple[str, bytes]]:
        return dict(
            await self._database.run(
                "read events to send", partial(_outgoing_json, stream_ids), read_only=True
            )
        )


def _outgoing_json(
    stream_ids: Collection[int], txn: Transaction
) -> Mapping[int, tuple[str, bytes]]:
    return outgoing_json(txn, stream_ids)


class TransactionSender:
    """Sends the transactions of destinations, one after the other for each.

    :param own: the name of this server
    :param prefix: what the IDs of transactions begin with
    :ivar outcomes: numbers of transactions by what came of them
    :ivar sent: numbers of events and EDUs that were delivered, and of events that destinations refused
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        own: str,
        registry: DestinationRegistry,
        journal: QueueJournal,
        client: SendsTransactions,
        failures: KnowsFailures,
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._own = own
        self._registry = registry
        self._journal = journal
        self._client = client
        self._failures = failures
        self._log = log
        self._events = EventJson(scheduler, database, log)
        self._edus: BatchedLoader[str, PersistentEdus] = BatchedLoader(
            scheduler, "read EDUs to send", self._read_edus
        )
        self._done: BatchedLoader[DeliveredEdus, None] = BatchedLoader(
            scheduler, "note delivered EDUs", self._delete_edus
        )
        self._numbers = count(1)
        self.prefix = ""
        self.outcomes: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    # -- building ---------------------------------------------------------------------------------

    async def next(self, queue: DestinationQueue) -> OutgoingTransaction | None:
        """The next transaction of a destination; None if there is nothing to send.

        When it is returned, it may be sent.

        :raises NotOwned: another process sends to the destination
        :raises SynreplError: the database is away
        """
        if queue.in_flight is not None:
            return await self._again(queue, queue.in_flight)
        _check_owned(queue)
        while queue.must_read:
            await self._read_missed(queue)
        transaction = await self._build(queue)
        if transaction is None:
            return None
        recorded = transaction.recorded
        is_plain = len(recorded.events) <= 1 and not recorded.messages
        queue.begin(recorded)
        if not is_plain or (queue.must_record and recorded.events):
            await self._journal.record(queue)
        events = await self._events.get(recorded.events)
        return transaction._replace(
            event_ids=[event_id for event_id, _ in events], pdus=[data for _, data in events]
        )

    async def _build(self, queue: DestinationQueue) -> OutgoingTransaction | None:
        events = queue.next_events()
        messages: Sequence[tuple[int, bytes]] = ()
        pokes: Sequence[DeviceListPoke] = ()
        is_alone = bool(events) and (queue.batch_limit > 0 or events[0] <= queue.single_upto)
        if (queue.has_messages or queue.has_pokes) and not is_alone:
            # Cleared first: what is added from now on sets it again.
            queue.has_messages = queue.has_pokes = False
            try:
                found = await self._edus.get(queue.name)
            except BaseException:
                queue.has_messages = queue.has_pokes = True
                raise
            if found is not None:
                most = queue.batch_limit or MAX_MESSAGES
                messages, pokes = found.messages[:most], found.pokes
                queue.has_messages = len(found.messages) >= most
                queue.has_pokes = len(pokes) == MAX_POKES
                _check_owned(queue)
                events = queue.next_events()  # others may have come
                if messages and events and events[0] <= queue.single_upto:
                    events = ()  # the next time, without messages
        edus = [edu for _, edu in messages]
        edus += [device_list_edu(*poke) for poke in pokes]
        if queue.edus and not queue.batch_limit:
            edus += queue.edus.take(MAX_EDUS - len(edus), self._now_ms())
        if not events and not edus:
            return None
        numbers = tuple(number for number, _ in messages)
        txn_id = self._txn_id(queue, events, numbers)
        recorded = RecordedTransaction(txn_id, events, numbers)
        return OutgoingTransaction(recorded, (), (), edus, pokes)

    def _txn_id(
        self, queue: DestinationQueue, events: Sequence[int], messages: Sequence[int]
    ) -> str:
        """The ID of a transaction. That of a single event follows from it, so it need not be recorded."""
        if len(events) == 1 and not messages:
            return f"{self.prefix}-{events[0]}"
        epoch = self._registry.partitions[queue.partition].epoch
        return f"{self.prefix}-{epoch}-{next(self._numbers)}"

    async def _again(
        self, queue: DestinationQueue, recorded: RecordedTransaction
    ) -> OutgoingTransaction:
        """A transaction that may have arrived, without what nobody keeps."""
        events = await self._events.get(recorded.events)
        edus: list[bytes] = []
        if recorded.messages:
            stored = await self._database.run(
                "read messages to send",
                lambda txn: messages_by_number(txn, queue.name, recorded.messages),
                read_only=True,
            )
            edus = [each.edu for each in stored]
        return OutgoingTransaction(
            recorded, [name for name, _ in events], [data for _, data in events], edus
        )

    async def _read_missed(self, queue: DestinationQueue) -> None:
        upto = self._registry.fanned(queue)
        after = queue.after
        queue.begin_loading()
        try:
            found = await self._database.run(
                "read missed events",
                lambda txn: missed_events(
                    txn, queue.name, self._own, after, upto, MAX_MISSED, MAX_MISSED_ROOMS
                ),
                read_only=True,
            )
        except BaseException:
            queue.loading_failed()
            raise
        _check_owned(queue)
        queue.loaded(found.stream_ids, found.upto, found.upto >= upto)

    async def _read_edus(self, names: Collection[str]) -> Mapping[str, PersistentEdus]:
        return await self._database.run(
            "read EDUs to send",
            lambda txn: persistent_edus(txn, names, MAX_MESSAGES, MAX_POKES),
            read_only=True,
        )

    def _now_ms(self) -> int:
        return int(self._scheduler.seconds() * 1000)

    # -- sending ------------------------------------------------------------------------------------

    async def send(self, queue: DestinationQueue, transaction: OutgoingTransaction) -> None:
        """Send a transaction, and settle it: it is delivered, or the destination is away."""
        recorded = transaction.recorded
        if transaction.pdus or transaction.edus:
            try:
                results = await self._client.send_transaction(
                    queue.name,
                    recorded.txn_id,
                    self._now_ms(),
                    transaction.pdus,
                    transaction.edus,
                )
            except SynreplError as error:
                await self._failed(queue, transaction, error)
                return
            self._note(queue, transaction, results)
        await self._delivered(queue, transaction)

    def _note(
        self,
        queue: DestinationQueue,
        transaction: OutgoingTransaction,
        results: Mapping[str, str | None],
    ) -> None:
        """Count what was delivered. An event that the destination refuses is not sent again."""
        own = set(transaction.event_ids)
        refused = [
            (event_id, error)
            for event_id, error in results.items()
            if error is not None and event_id in own
        ]
        self.outcomes["delivered"] += 1
        self.sent["events"] += len(transaction.pdus) - len(refused)
        self.sent["edus"] += len(transaction.edus)
        self.sent["refused events"] += len(refused)
        if refused:
            event_id, error = refused[0]
            self._log.warn(
                "{destination} refused {count} of {all} events, such as {event}: {error}",
                destination=queue.name,
                count=len(refused),
                all=len(own),
                event=event_id,
                error=str(error)[:200],
            )

    async def _delivered(self, queue: DestinationQueue, transaction: OutgoingTransaction) -> None:
        if queue.is_void:
            return
        await self._forget_edus(queue, transaction)
        queue.delivered()

    async def _forget_edus(self, queue: DestinationQueue, transaction: OutgoingTransaction) -> None:
        """Delete the EDUs of the database that a destination has got."""
        messages, pokes = transaction.recorded.messages, tuple(transaction.pokes)
        if messages or pokes:
            try:
                await self._done.get(DeliveredEdus(queue.name, messages, pokes))
            except SynreplError as error:  # they are sent again, and recognised by their IDs
                queue.has_messages = queue.has_pokes = True
                self._log.warn("cannot note delivered EDUs: {error}", error=error)

    async def _delete_edus(
        self, delivered: Collection[DeliveredEdus]
    ) -> Mapping[DeliveredEdus, None]:
        messages = [(each.destination, number) for each in delivered for number in each.messages]
        pokes = [(each.destination, poke) for each in delivered for poke in each.pokes]

        def work(txn: Transaction) -> None:
            delete_messages(txn, messages)
            delete_pokes(txn, pokes)

        await self._database.run("note delivered EDUs", work)
        return {}

    async def _failed(
        self, queue: DestinationQueue, transaction: OutgoingTransaction, error: SynreplError
    ) -> None:
        """Leave a destination alone, as long as its failures say."""
        if queue.is_void:
            return
        queue.has_pokes = queue.has_pokes or bool(transaction.pokes)
        queue.has_messages = queue.has_messages or bool(transaction.recorded.messages)
        status = error.status if isinstance(error, RequestRefusedByServer) else None
        is_refused = status in _CONTENT_STATUSES
        if is_refused:
            await self._refused(queue, transaction, error)
        else:
            self.outcomes[
                "backed off" if isinstance(error, DestinationBackedOff) else "failed"
            ] += 1
        away = await self._away(queue, error, status)
        if not queue.is_void:
            queue.goes_away(away, self._registry.fanned(queue), keeps_events=is_refused)

    async def _refused(
        self, queue: DestinationQueue, transaction: OutgoingTransaction, error: SynreplError
    ) -> None:
        """A transaction was refused as a whole: divide it, or give up the one thing in it."""
        self.outcomes["refused"] += 1
        if len(transaction.edus) > len(transaction.recorded.messages):
            return  # it is sent again without the EDUs that nobody keeps
        if queue.refused():
            self.sent["refused events"] += len(transaction.pdus)
            self._log.warn("given up: {error}", error=error)
            await self._forget_edus(queue, transaction)

    async def _away(self, queue: DestinationQueue, error: SynreplError, status: int | None) -> Away:
        now, reason = self._scheduler.seconds(), str(error.facts.get("reason", error))[:300]
        if isinstance(error, DestinationBackedOff):
            return Away(now + float(str(error.facts["retry_s"])), reason, is_shared=True)
        is_counted = status is not None and is_failure(status)
        if is_counted or isinstance(error, DestinationAway | AddressRefused):
            try:
                failure = (await self._failures.failures([queue.name])).get(queue.name)
            except SynreplError:
                failure = None
            if failure is not None and failure.retry_at_ms / 1000 > now:
                return Away(failure.retry_at_ms / 1000, reason, is_shared=True)
        return Away(now + OWN_BACK_OFF.delay_s(queue.failures + 1, self._scheduler.random), reason)


def _check_owned(queue: DestinationQueue) -> None:
    """Check that no other process may send to a destination.

    :raises NotOwned:
    """
    if queue.is_void:
        raise NotOwned(destination=queue.name)
