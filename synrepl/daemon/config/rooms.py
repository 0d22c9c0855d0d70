"""The ``rooms`` section of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from synrepl.daemon.config import values
from synrepl.daemon.config.decode import Section, Unfit
from synrepl.services.rooms.room_queues import DEFAULT_QUEUE_LIMITS, QueueLimits
from synrepl.storage.rooms.persisting.limits import MAX_EXTREMITIES, MAX_RESOLVED, RoomLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsConfig(Section):
    """The room store. Without this section, a process has none.

    :ivar writers: the processes that persist events; each room is assigned to one of them. The same list
        in every process. ``synrepl rooms writers --set`` sets another one while everything runs
    :ivar max_rooms: maximum number of rooms of which a process keeps something in memory
    :ivar max_waiting: maximum number of events of a room that wait for others
    :ivar max_extremities: number of forward extremities of a room beyond which a new event is refused unless
        it follows one of them
    :ivar max_resolved: maximum number of events in a resolution of states
    :ivar max_queued: maximum number of batches of a room that wait to be persisted
    :ivar max_queued_bytes: maximum size of their events
    """

    writers: tuple[values.WriterName, ...] = ("master",)
    max_rooms: values.Count = 200
    max_waiting: values.Count = 10_000
    max_extremities: values.Count = MAX_EXTREMITIES
    max_resolved: values.Count = MAX_RESOLVED
    max_queued: values.Count = DEFAULT_QUEUE_LIMITS.batches
    max_queued_bytes: values.Size = DEFAULT_QUEUE_LIMITS.size

    @property
    def limits(self) -> RoomLimits:
        """The limits of each room."""
        return RoomLimits(self.max_waiting, self.max_extremities, self.max_resolved)

    @property
    def queue_limits(self) -> QueueLimits:
        """The limits of what waits to be persisted in each room."""
        return QueueLimits(self.max_queued, self.max_queued_bytes)

    def faults(self) -> Iterator[Unfit]:
        if not self.writers:
            yield Unfit(key="writers", reason="name at least one process")
        for name in sorted({name for name in self.writers if self.writers.count(name) > 1}):
            yield Unfit(key="writers", reason=f"{name!r} appears twice")
