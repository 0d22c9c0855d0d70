"""Writes what destinations have got, and transactions that do not follow from it, in few transactions of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.clock import Promise, Scheduler
from synrepl.core.errors import SynreplError, Unavailable
from synrepl.core.log import Logger
from synrepl.core.retry import BackOff, Retry
from synrepl.services.federation.sending.destination_queue import DestinationQueue
from synrepl.services.federation.sending.registry import DestinationRegistry
from synrepl.storage.database import Database, Transaction
from synrepl.storage.federation.destination_partitions import (
    PartitionsLost,
    enter_partitions,
    write_positions,
)
from synrepl.storage.federation.destination_queues import (
    StoredQueue,
    delete_queues,
    write_queues,
)

#: Seconds between two checkpoints.
CHECKPOINT_S = 1.0

_BACK_OFF = BackOff(0.2, 10.0)


class NotOwned(Unavailable):
    """this process does not send to {destination} any more"""


class _Writes(NamedTuple):
    """What one transaction writes.

    :ivar epochs: of the partitions that it is about
    :ivar records: queues whose transaction is recorded, with what waits for it
    :ivar rows: rows to write, also those of ``records``
    :ivar gone: queues whose row is deleted
    :ivar positions: of partitions
    """

    epochs: Mapping[int, int]
    records: Mapping[str, Promise[None]]
    rows: Sequence[tuple[DestinationQueue, StoredQueue]]
    gone: Sequence[DestinationQueue]
    positions: Mapping[int, int]

    def work(self, txn: Transaction) -> None:
        """Write everything, if the partitions are still owned."""
        enter_partitions(txn, self.epochs)
        write_queues(txn, [row for _, row in self.rows])
        delete_queues(txn, [queue.name for queue in self.gone])
        write_positions(txn, self.positions)


class QueueJournal:
    """The only one that writes rows of queues and positions of partitions, one transaction after the other.

    A *record* makes sure that a transaction is sent again as it was. A *checkpoint* moves the positions of
    partitions on, and gives destinations that would hold them back a row of their own.

    :param lost: called when another process has taken over partitions
    :ivar rows_written: number of rows of destinations that were written
    :ivar last_error: why nothing can be written now; None: nothing is wrong
    """

    def __init__(
        self,
        scheduler: Scheduler,
        database: Database,
        registry: DestinationRegistry,
        lost: Callable[[], object],
        log: Logger,
    ) -> None:
        self._scheduler = scheduler
        self._database = database
        self._registry = registry
        self._lost = lost
        self._log = log
        self._requests: dict[str, tuple[DestinationQueue, Promise[None]]] = {}
        self._is_due = False
        self._is_writing = False
        self._idle: list[Promise[None]] = []
        self.rows_written = 0
        self.last_error: SynreplError | None = None

    async def record(self, queue: DestinationQueue) -> None:
        """Record the transaction that a queue has in flight; returns when that is committed.

        :raises NotOwned: the partition was lost: the transaction must not be sent
        """
        promise: Promise[None] = self._scheduler.promise()
        self._requests[queue.name] = queue, promise
        self._start()
        await promise

    def checkpoint(self) -> None:
        """Write what has changed, soon."""
        self._is_due = True
        self._start()

    async def run(self) -> None:
        """Make a checkpoint every second, until the scheduler stops."""
        while True:
            await self._scheduler.sleep(CHECKPOINT_S)
            if self._registry.unfinished or self._has_advanced():
                self.checkpoint()

    async def finish(self) -> None:
        """Make a last checkpoint; returns when it is committed, or cannot be."""
        self.checkpoint()
        promise: Promise[None] = self._scheduler.promise()
        self._idle.append(promise)
        await promise

    def _has_advanced(self) -> bool:
        partitions = self._registry.partitions.values()
        return any(each.fanned > each.stored_position for each in partitions)

    # -- writing ----------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._scheduler.spawn("write queues of destinations", self._write())

    async def _write(self) -> None:
        try:
            while self._requests or self._is_due:
                await self._scheduler.sleep(0)  # others of this turn come along
                writes = self._collect()
                if writes.rows or writes.gone or writes.positions:
                    await self._commit(writes)
        finally:
            self._is_writing = False
            idle, self._idle = self._idle, []
            for promise in idle:
                promise.callback(None)

    async def _commit(self, writes: _Writes) -> None:
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while True:
            try:
                await self._database.run("write queues of destinations", writes.work)
            except PartitionsLost as error:
                self._log.warn("{error}", error=error)
                self._lost()
                self._fail(writes)
                return
            except SynreplError as error:
                if self.last_error is None:
                    self._log.warn("cannot write queues of destinations: {error}", error=error)
                self.last_error = error
                if self._idle or not self._is_owned(writes):  # it stops, or has lost the partitions
                    self._fail(writes)
                    return
                await self._scheduler.sleep(retry.failed())
            else:
                self.last_error = None
                self._committed(writes)
                return

    def _is_owned(self, writes: _Writes) -> bool:
        owned = self._registry.partitions
        return all(
            number in owned and owned[number].epoch == epoch
            for number, epoch in writes.epochs.items()
        )

    def _fail(self, writes: _Writes) -> None:
        for name, promise in writes.records.items():
            promise.errback(NotOwned(destination=name))

    def _committed(self, writes: _Writes) -> None:
        self.rows_written += len(writes.rows)
        for queue, row in writes.rows:
            queue.stored = row
            if not row.is_exact:
                queue.must_record = False
        for queue in writes.gone:
            queue.stored, queue.must_record = None, False
        for number, position in writes.positions.items():
            partition = self._registry.partitions.get(number)
            if partition is not None and partition.epoch == writes.epochs[number]:
                partition.stored_position = max(partition.stored_position, position)
        recorded = {queue.name: queue for queue, _ in writes.rows}
        for name, promise in writes.records.items():
            queue = recorded[name]
            if queue.is_void:
                promise.errback(NotOwned(destination=name))
            else:
                queue.is_recorded = True
                promise.callback(None)

    # -- what is to be written ---------------------------------------------------------------------

    def _collect(self) -> _Writes:
        requests, self._requests = self._requests, {}
        records: dict[str, Promise[None]] = {}
        rows: list[tuple[DestinationQueue, StoredQueue]] = []
        for name, (queue, promise) in requests.items():
            if queue.is_void:
                promise.errback(NotOwned(destination=name))
                continue
            records[name] = promise
            position = queue.position(self._registry.fanned(queue))
            row = StoredQueue(name, queue.partition, position, False, queue.in_flight)
            rows.append((queue, row))
            self._registry.unfinished[name] = queue
        gone: list[DestinationQueue] = []
        positions: dict[int, int] = {}
        if self._is_due:
            self._is_due = False
            positions = self._checkpoint(records, rows, gone)
        numbers = {queue.partition for queue, _ in rows}
        numbers.update(queue.partition for queue in gone)
        numbers.update(positions)
        return _Writes(self._registry.epochs(numbers), records, rows, gone, positions)

    def _checkpoint(
        self,
        records: Mapping[str, object],
        rows: list[tuple[DestinationQueue, StoredQueue]],
        gone: list[DestinationQueue],
    ) -> dict[int, int]:
        """Add the rows of a checkpoint; returns the positions of partitions that move on."""
        partitions = self._registry.partitions
        positions = {number: each.fanned for number, each in partitions.items()}
        idle: list[DestinationQueue] = []
        for queue in list(self._registry.unfinished.values()):
            if queue.name in records:
                continue
            fanned = partitions[queue.partition].fanned
            position = queue.position(fanned)
            if queue.away is not None:
                row = queue.row(fanned, is_exact=queue.is_position_exact)
                if row == queue.stored:
                    del self._registry.unfinished[queue.name]
                else:
                    # From now on: a transaction that begins before this is committed is recorded after it.
                    queue.must_record = row.is_exact
                    rows.append((queue, row))
            elif not queue.has_work and not queue.is_busy:
                idle.append(queue)
            elif queue.must_record and queue.stored is not None and queue.stored.is_exact:
                pass  # its row stays right until a transaction is recorded
            elif queue.stored is not None or position == queue.checked_position:
                row = queue.row(fanned, is_exact=False)
                if row != queue.stored:
                    rows.append((queue, row))
            else:
                queue.checked_position = position
                positions[queue.partition] = min(positions[queue.partition], position)
        for queue in idle:
            stored = queue.stored
            if stored is None:
                del self._registry.unfinished[queue.name]
            elif max(stored.events, default=0) <= positions[queue.partition]:
                gone.append(queue)
        return {
            number: position
            for number, position in positions.items()
            if position > partitions[number].stored_position
        }
