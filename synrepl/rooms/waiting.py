"""A bounded queue of events that wait for missing prev events or auth events."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from synrepl.rooms.event import Event

#: Maximum number of waiting events per room.
MAX_WAITING = 10_000

#: Maximum size of waiting events per room, in bytes.
MAX_WAITING_BYTES = 64 << 20


class WaitingEvent(NamedTuple):
    """An event that waits.

    :ivar live: see :meth:`synrepl.rooms.room.Room.receive`
    :ivar missing: the events that it still waits for
    """

    event: Event
    live: bool
    missing: set[str]


class WaitingEvents:
    """Waiting events, indexed by the events they wait for.

    :param limit: maximum number; beyond it, the one that has waited longest is dropped
    :param max_bytes: maximum total size, with the same consequence
    """

    __slots__ = ("_by_id", "_by_missing", "_bytes", "_limit", "_max_bytes")

    def __init__(self, limit: int, max_bytes: int = MAX_WAITING_BYTES) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_id: dict[str, WaitingEvent] = {}
        self._by_missing: dict[str, dict[str, None]] = {}

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def event_ids(self) -> Collection[str]:
        """IDs of the waiting events, oldest first."""
        return self._by_id.keys()

    def __iter__(self) -> Iterator[WaitingEvent]:
        """The waiting events, oldest first."""
        return iter(self._by_id.values())

    @property
    def missing(self) -> set[str]:
        """Events that some wait for and that do not wait themselves."""
        return {each for each in self._by_missing if each not in self._by_id}

    def get(self, event_id: str) -> Event | None:
        """A waiting event; None if it does not wait."""
        waiting = self._by_id.get(event_id)
        return None if waiting is None else waiting.event

    def hold(self, waiting: WaitingEvent) -> None:
        """Add an event that does not wait yet."""
        event_id = waiting.event.event_id
        self._by_id[event_id] = waiting
        self._bytes += len(waiting.event.raw)
        for each in waiting.missing:
            self._by_missing.setdefault(each, {})[event_id] = None
        while len(self._by_id) > self._limit or self._bytes > self._max_bytes:
            self.forget(next(iter(self._by_id)))

    def forget(self, event_id: str) -> None:
        """Drop a waiting event."""
        waiting = self._by_id.pop(event_id, None)
        if waiting is None:
            return
        self._bytes -= len(waiting.event.raw)
        for each in waiting.missing:
            others = self._by_missing[each]
            del others[event_id]
            if not others:
                del self._by_missing[each]

    def arrived(self, event_id: str, with_state: bool) -> list[WaitingEvent]:
        """Remove and return the events that waited only for this one.

        :param with_state: whether the state at the event is known. Events that have it as an auth event do
            not need that; events that have it as a prev event do
        """
        ready: list[WaitingEvent] = []
        others = self._by_missing.get(event_id, {})
        for each in list(others):
            waiting = self._by_id[each]
            if with_state or event_id not in waiting.event.prev_event_ids:
                del others[each]
                waiting.missing.discard(event_id)
                if not waiting.missing:
                    del self._by_id[each]
                    self._bytes -= len(waiting.event.raw)
                    ready.append(waiting)
        if not others:
            self._by_missing.pop(event_id, None)
        return ready
