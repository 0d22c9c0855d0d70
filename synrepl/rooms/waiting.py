"""Events that wait for others, in bounded number."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from synrepl.rooms.event import Event

#: How many events of a room may wait, at most.
MAX_WAITING = 10_000

#: How many bytes they may have together.
MAX_WAITING_BYTES = 64 << 20


class WaitingEvent(NamedTuple):
    """An event that waits.

    :ivar live: see :meth:`synrepl.rooms.room.Room.receive`
    :ivar missing: for what it waits still
    """

    event: Event
    live: bool
    missing: set[str]


class WaitingEvents:
    """Events by what they wait for.

    :param limit: when there are more, the one that has waited longest is forgotten
    :param max_bytes: the same for the bytes of all of them
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
        """Those that wait, longest first."""
        return self._by_id.keys()

    def __iter__(self) -> Iterator[WaitingEvent]:
        """Longest first."""
        return iter(self._by_id.values())

    @property
    def missing(self) -> set[str]:
        """What some of them wait for and does not wait itself."""
        return {each for each in self._by_missing if each not in self._by_id}

    def get(self, event_id: str) -> Event | None:
        """An event that waits."""
        waiting = self._by_id.get(event_id)
        return None if waiting is None else waiting.event

    def hold(self, waiting: WaitingEvent) -> None:
        """Let an event wait that does not yet."""
        event_id = waiting.event.event_id
        self._by_id[event_id] = waiting
        self._bytes += len(waiting.event.raw)
        for each in waiting.missing:
            self._by_missing.setdefault(each, {})[event_id] = None
        while len(self._by_id) > self._limit or self._bytes > self._max_bytes:
            self.forget(next(iter(self._by_id)))

    def forget(self, event_id: str) -> None:
        """As if it had never come."""
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
        """Those that waited for an event and now for nothing more; they wait no longer.

        :param with_state: whether the state at the event is known. Who cites it can do without;
            who follows it cannot
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
