"""The destinations of this process: those in the partitions that it owns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from synrepl.federation.partitions import partition_of
from synrepl.services.federation.sending.destination_queue import DestinationQueue
from synrepl.storage.federation.destination_partitions import ClaimedPartition
from synrepl.storage.federation.destination_queues import StoredQueue
from synrepl.storage.federation.event_servers import EventServers

#: Rooms of which it is remembered which queues their events go to.
MAX_ROOMS = 5_000


class OwnedPartition:
    """A partition that this process owns.

    :ivar epoch: of the claim
    :ivar stored_position: the position in the database
    :ivar fanned: events were passed to the destinations up to here
    :ivar single_upto: see :class:`.DestinationQueue`
    :ivar device_lists_position: see the migration
    """

    __slots__ = (
        "device_lists_position",
        "epoch",
        "fanned",
        "number",
        "single_upto",
        "stored_position",
    )

    def __init__(self, claim: ClaimedPartition, settled: int) -> None:
        self.number = claim.partition
        self.epoch = claim.epoch
        self.stored_position = self.fanned = claim.position
        self.single_upto = settled
        self.device_lists_position = claim.device_lists_position


class DestinationRegistry:
    """Queues by name, made when they are needed first.

    :param own: the name of this server
    :ivar partitions: those that are owned, by number
    :ivar unfinished: queues that a checkpoint has to look at
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self.partitions: dict[int, OwnedPartition] = {}
        self.unfinished: dict[str, DestinationQueue] = {}
        #: None: its partition is not owned.
        self._queues: dict[str, DestinationQueue | None] = {}
        self._targets: OrderedDict[int, tuple[frozenset[str], Sequence[DestinationQueue]]] = (
            OrderedDict()
        )

    def __iter__(self) -> Iterator[DestinationQueue]:
        return (queue for queue in self._queues.values() if queue is not None)

    # -- partitions -----------------------------------------------------------------------------

    def claimed(
        self, partitions: Iterable[OwnedPartition], stored: Iterable[StoredQueue]
    ) -> Sequence[DestinationQueue]:
        """Take over partitions; returns the queues that have a row."""
        for each in partitions:
            self.partitions[each.number] = each
        self._forget_others()
        restored = []
        for row in stored:
            queue = self.queue(row.destination)
            if queue is not None:
                queue.restore(row)
                restored.append(queue)
        return restored

    def lose_all(self) -> None:
        """Nothing is owned any more."""
        for queue in self:
            queue.is_void = True
        self.partitions.clear()
        self.unfinished.clear()
        self._queues.clear()
        self._targets.clear()

    def _forget_others(self) -> None:
        self._targets.clear()
        self._queues = {name: each for name, each in self._queues.items() if each is not None}

    # -- queues -----------------------------------------------------------------------------------

    def queue(self, name: str) -> DestinationQueue | None:
        """The queue of a destination; None if another process sends to it, and for this server itself."""
        try:
            return self._queues[name]
        except KeyError:
            made = self._queues[name] = self._make(name)
            return made

    def _make(self, name: str) -> DestinationQueue | None:
        number = partition_of(name)
        partition = self.partitions.get(number)
        # PostgreSQL could not hold its row, and no such server can be reached.
        if partition is None or name == self._own or not name or "\0" in name:
            return None
        return DestinationQueue(name, number, partition.single_upto)

    def queues(self, names: Iterable[str]) -> Sequence[DestinationQueue]:
        """The queues of those of some destinations that this process sends to."""
        found = map(self.queue, names)
        return [each for each in found if each is not None]

    def fanned(self, queue: DestinationQueue) -> int:
        """The position up to which events were passed to the destinations of a queue's partition."""
        return self.partitions[queue.partition].fanned

    def targets(self, servers: EventServers) -> Iterator[DestinationQueue]:
        """The queues that an event goes to."""
        known = self._targets.get(servers.room_no)
        if known is None or known[0] is not servers.in_room:
            known = servers.in_room, self.queues(servers.in_room)
            self._targets[servers.room_no] = known
            if len(self._targets) > MAX_ROOMS:
                self._targets.popitem(last=False)
        for queue in known[1]:
            if queue.name != servers.except_for:
                yield queue
        yield from self.queues(servers.besides)

    # -- positions ---------------------------------------------------------------------------------

    def epochs(self, numbers: Collection[int]) -> Mapping[int, int]:
        """The epochs of some partitions."""
        return {number: self.partitions[number].epoch for number in numbers}
