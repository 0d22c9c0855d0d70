"""Sends to the destinations of this process: everything that is wired together for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.core.tokens import Token
from synrepl.federation.partitions import partition_of
from synrepl.services.federation.sending.destination_queue import Away, DestinationQueue
from synrepl.services.federation.sending.device_list_fan_out import DeviceListFanOut
from synrepl.services.federation.sending.dispatcher import (
    DEFAULT_SENDING_LIMITS,
    Dispatcher,
    SendingLimits,
)
from synrepl.services.federation.sending.edu_feed import EduFeed
from synrepl.services.federation.sending.event_fan_out import EventFanOut
from synrepl.services.federation.sending.journal import QueueJournal
from synrepl.services.federation.sending.known_servers import KnownServers
from synrepl.services.federation.sending.ownership import PartitionOwner, assigned_partitions
from synrepl.services.federation.sending.registry import DestinationRegistry, OwnedPartition
from synrepl.services.federation.sending.settled_bound import SettledBound
from synrepl.services.federation.sending.transactions import (
    KnowsFailures,
    SendsTransactions,
    TransactionSender,
)
from synrepl.services.sources import LINEAR
from synrepl.storage.database import Database, DatabaseSession, Transaction
from synrepl.storage.federation.destination_partitions import ClaimedPartition
from synrepl.storage.federation.destination_queues import (
    StoredQueue,
    read_queues,
    transaction_prefix,
)
from synrepl.storage.federation.destinations import read_failures
from synrepl.storage.federation.outgoing_messages import destinations_with_edus
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS

#: Seconds for which an orderly stop waits for transactions that are under way.
STOP_S = 5.0

#: Seconds between two looks for messages to devices, device lists and servers that are up of which nothing was heard.
LOOK_AGAIN_S = 60.0

#: Destinations whose failures are looked up at once.
_LOOKED_UP = 1_000

_BACK_OFF = BackOff(0.5, 10.0)


class FederationSender:
    """Sends events and EDUs to those destinations that belong to this process.

    :param instance: this process
    :param senders: the processes that send, the same in all
    :param own: the name of this server
    :param open_session: opens a connection for locks
    :param known: returns the linear position of ``events`` that the process knows
    :param has_device_lists: whether the catalogue has the stream ``device_lists``
    :ivar edus: observes facts, and makes EDUs of them
    :ivar servers: the servers in rooms
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        store: FactStore,
        open_session: Callable[[], Awaitable[DatabaseSession]],
        instance: str,
        senders: Sequence[str],
        own: str,
        client: SendsTransactions,
        failures: KnowsFailures,
        known: Callable[[], Token],
        log: Logger,
        limits: SendingLimits = DEFAULT_SENDING_LIMITS,
        *,
        has_device_lists: bool = True,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._failures = failures
        self._log = log
        self._has_device_lists = has_device_lists
        self._is_stopped = False
        self.registry = DestinationRegistry(own)
        self.settled = SettledBound(store, EVENTS, known)
        self.journal = QueueJournal(scheduler, database, self.registry, self._lost, log)
        self.transactions = TransactionSender(
            scheduler, database, own, self.registry, self.journal, client, failures, log
        )
        self.dispatcher = Dispatcher(
            scheduler, self.registry, self.transactions, failures, log, limits
        )
        self.events = EventFanOut(
            scheduler, database, own, self.registry, self.settled, self.dispatcher.wake, log
        )
        self.devices = DeviceListFanOut(
            scheduler,
            database,
            own,
            self.registry,
            SettledBound(store, DEVICE_LISTS, lambda: 0),
            self._wake_for_pokes,
            log,
        )
        self.servers = KnownServers(database)
        self.edus = EduFeed(
            scheduler,
            own,
            self.registry,
            self.servers,
            self.dispatcher.wake,
            self.devices.changed,
            self.has_edus,
            log,
        )
        self.owner = PartitionOwner(
            scheduler,
            open_session,
            instance,
            assigned_partitions(instance, senders),
            self.settled.upto,
            self._claimed,
            self._lost,
            log,
        )

    # -- from start to stop ------------------------------------------------------------------------

    def start(self) -> None:
        """Claim partitions, and send."""
        spawn = self._scheduler.spawn
        spawn("own destinations", self.owner.run())
        spawn("follow events to send", self.events.run())
        spawn("record what is sent", self.journal.run())
        spawn("look again", self._look_again())
        if self._has_device_lists:
            spawn("follow device lists", self.devices.run())

    async def stop(self) -> None:
        """Finish what is under way, and give the partitions back."""
        self._is_stopped = True
        self.events.stop()
        is_quiet = await self.dispatcher.stop(STOP_S)
        await self.journal.finish()
        await self.owner.stop(is_quiet=is_quiet)

    async def _claimed(self, claims: Sequence[ClaimedPartition], settled: Token) -> None:
        """Continue where the previous owners were."""
        retry = Retry(_BACK_OFF, self._scheduler.random)
        numbers = [each.partition for each in claims]

        def work(txn: Transaction) -> tuple[str, Sequence[StoredQueue]]:
            return transaction_prefix(txn), read_queues(txn, numbers)

        while not self._is_stopped and all(number in self.owner.epochs for number in numbers):
            try:
                prefix, rows = await self._database.run("read queues", work, read_only=True)
                away = await self._away(rows)
                break
            except SynreplError as error:
                self._log.warn("queues of destinations cannot be read: {error}", error=error)
                await self._scheduler.sleep(retry.failed())
        else:
            return
        owned = [each for each in claims if self.owner.epochs.get(each.partition) == each.epoch]
        self.transactions.prefix = prefix
        restored = self.registry.claimed([OwnedPartition(each, settled) for each in owned], rows)
        for queue in restored:
            queue.away = away.get(queue.name)
            if queue.away is None:
                self.dispatcher.wake(queue)
            else:
                self.dispatcher.leave_alone(queue)
        self._log.info(
            "sending to {count} of the destination partitions; {behind} destinations are behind",
            count=len(self.registry.partitions),
            behind=len(restored),
        )
        self.events.advanced(settled)
        self.devices.changed()
        self.has_edus(None)

    async def _away(self, rows: Sequence[StoredQueue]) -> dict[str, Away]:
        """Those of some destinations that are away."""
        found: dict[str, Away] = {}
        now = self._scheduler.seconds()
        for start in range(0, len(rows), _LOOKED_UP):
            names = [row.destination for row in rows[start : start + _LOOKED_UP]]
            for name, failure in (await self._failures.failures(names)).items():
                # Even if its time has come: it takes turns with the others.
                until = max(now, failure.retry_at_ms / 1000)
                found[name] = Away(until, failure.reason, is_shared=True)
        return found

    def _lost(self) -> None:
        self.dispatcher.lose_all()
        self.registry.lose_all()

    # -- what is heard ------------------------------------------------------------------------------

    def moved(self, stream: str, writer: str, position: Token) -> None:
        """The process has applied a stream up to a position."""
        if stream == EVENTS.name:
            self.events.advanced(position)

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        """A position of this master has moved; see :class:`.PositionListener`."""
        self.moved(stream.name, writer, new)

    def linear_advanced(
        self, stream: Stream, prev: Token, new: Token, facts: Sequence[Fact] | None
    ) -> None:
        """The linear position of this master has moved."""
        self.moved(stream.name, LINEAR, new)

    def server_is_up(self, server: str) -> None:
        """A server that was away may be back: nothing keeps it from being tried."""
        self.dispatcher.is_up(server)

    def has_edus(self, destinations: Collection[str] | None) -> None:
        """There may be messages to devices, or device lists, for destinations; None: for any."""
        if destinations is None:
            self._scheduler.spawn("look for EDUs", self._look())
        else:
            for queue in self.registry.queues(destinations):
                queue.has_messages = True
                self.dispatcher.wake(queue)

    def _wake_for_pokes(self, destinations: Collection[str]) -> None:
        for queue in self.registry.queues(destinations):
            queue.has_pokes = True
            self.dispatcher.wake(queue)

    async def _look_again(self) -> None:
        while True:
            await self._scheduler.sleep(LOOK_AGAIN_S)
            await self._look()
            await self._look_for_reset()

    async def _look_for_reset(self) -> None:
        """Try destinations that are not to be left alone any more, as somebody has decided in the database."""
        names = [q.name for q in self.registry if q.away is not None and q.away.is_shared]
        if not names:
            return
        try:
            failing = await self._database.run(
                "look for servers that are up",
                lambda txn: read_failures(txn, names),
                read_only=True,
            )
        except SynreplError:  # the next time
            return
        for name in names:
            if name not in failing:
                self.server_is_up(name)

    async def _look(self) -> None:
        """Find destinations with messages to devices, or device lists."""
        if not self.registry.partitions:
            return
        try:
            messages, pokes = await self._database.run(
                "look for EDUs", destinations_with_edus, read_only=True
            )
        except SynreplError as error:
            self._log.warn("EDUs cannot be looked for: {error}", error=error)
            return
        self.has_edus(messages)
        self._wake_for_pokes(pokes)

    # -- status -----------------------------------------------------------------------------------

    def owns(self, destination: str) -> bool:
        """Whether this process sends to a destination."""
        return partition_of(destination) in self.registry.partitions

    def status(self) -> dict[str, Any]:
        """What is sent, and what waits, as JSON."""
        now = self._scheduler.seconds()
        busy: list[DestinationQueue] = [q for q in self.registry if q.has_work or q.away]
        away = [each for each in busy if each.away is not None]
        since = [each.waiting_since for each in busy if each.away is None and each.waiting_since]
        return {
            "partitions": len(self.registry.partitions),
            "missing_partitions": self.owner.missing,
            "sending": self.dispatcher.active,
            "waiting": self.dispatcher.waiting,
            "away": len(away),
            "pending_events": sum(len(each.pending) for each in busy),
            "pending_edus": sum(len(each.edus) for each in busy if each.edus is not None),
            "oldest_s": round(max((now - each for each in since), default=0.0), 3),
            "passed_on": self.events.passed_on,
            "position": min(
                (each.fanned for each in self.registry.partitions.values()), default=None
            ),
            "sent": dict(self.transactions.sent),
            "transactions": dict(self.transactions.outcomes),
            "edus": dict(self.edus.counts),
            "rows_written": self.journal.rows_written,
            "error": self._error(),
        }

    def _error(self) -> str | None:
        errors = (self.journal.last_error, self.events.last_error, self.dispatcher.last_error)
        return next((str(each) for each in errors if each is not None), None)
