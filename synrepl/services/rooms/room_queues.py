"""The batches of each room that wait for their turn: in order, one at a time, limited in number and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.semaphore import Semaphore


class RoomQueueFull(Unavailable):
    """{batches} batches with {size} bytes of events already wait to be persisted in room {room_id}; try again later"""


class QueueLimits(NamedTuple):
    """What may wait in one room. A batch is taken whatever its size if no other one waits.

    :ivar batches: number of batches, with the one that is being persisted
    :ivar size: bytes of their events
    """

    batches: int = 50
    size: int = 32 * 2**20


DEFAULT_QUEUE_LIMITS = QueueLimits()


class _RoomQueue:
    """The batches of one room."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.turn = Semaphore(scheduler, 1)
        self.batches = 0
        self.size = 0


class RoomQueues:
    """Lets one batch of a room after another be persisted.

    :ivar refused: number of batches that a limit refused, by the limit's name in the configuration
    """

    def __init__(self, scheduler: Scheduler, limits: QueueLimits) -> None:
        self._scheduler = scheduler
        self._limits = limits
        self._rooms: dict[str, _RoomQueue] = {}
        self.refused: Counter[str] = Counter(max_queued=0, max_queued_bytes=0)

    @property
    def batches(self) -> int:
        """Number of batches in all rooms."""
        return sum(each.batches for each in self._rooms.values())

    @property
    def size(self) -> int:
        """Bytes of the events of all batches."""
        return sum(each.size for each in self._rooms.values())

    @contextmanager
    def entered(self, sizes: Mapping[str, int]) -> Iterator[Sequence[Semaphore]]:
        """Count a batch in the queues of some rooms as long as the block lasts.

        :param sizes: bytes of its events, by room
        :returns: what admits one batch of the room at a time, in the order of ``sizes``
        :raises RoomQueueFull: the queue of one of them is full; then no queue has the batch
        """
        for room_id, size in sizes.items():
            self._check(room_id, size)
        for room_id, size in sizes.items():
            queue = self._rooms.setdefault(room_id, _RoomQueue(self._scheduler))
            queue.batches += 1
            queue.size += size
        try:
            yield [self._rooms[room_id].turn for room_id in sizes]
        finally:
            for room_id, size in sizes.items():
                queue = self._rooms[room_id]
                queue.batches -= 1
                queue.size -= size
                if not queue.batches:
                    del self._rooms[room_id]

    def _check(self, room_id: str, size: int) -> None:
        queue = self._rooms.get(room_id)
        if queue is None:
            return
        if queue.batches >= self._limits.batches:
            self.refused["max_queued"] += 1
        elif queue.size + size > self._limits.size:
            self.refused["max_queued_bytes"] += 1
        else:
            return
        raise RoomQueueFull(room_id=room_id, batches=queue.batches, size=queue.size)
