"""The stream ordering and the topological ordering of a room's events.

The stream ordering is the order in which this server received events; it serves clients that follow
live. The topological ordering puts an event after its prev events and breaks ties by the stream
ordering; it serves clients that paginate backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from synrepl.rooms.event import Event

#: The largest depth; larger values are clamped to it.
#: https://spec.matrix.org/v1.16/rooms/v1/#event-format ("depth").
MAX_DEPTH = (1 << 63) - 1


class EventOrdering(NamedTuple):
    """The position of an event in its room; compares in topological order.

    :ivar topological: larger than that of each prev event that was known on arrival
    :ivar stream: its number in the stream ordering; negative, counting down from −1, for backfilled
        events
    """

    topological: int
    stream: int


class StreamOrder:
    """Assigns stream orderings.

    :param newest: the last number given to a live event
    :param oldest: the last number given to a backfilled event; at most 0
    """

    __slots__ = ("_newest", "_oldest")

    def __init__(self, newest: int = 0, oldest: int = 0) -> None:
        self._newest, self._oldest = newest, oldest

    @property
    def newest(self) -> int:
        """The last number given to a live event."""
        return self._newest

    def next(self) -> int:
        """The number of a new live event: larger than all before."""
        self._newest += 1
        return self._newest

    def next_older(self) -> int:
        """The number of a backfilled event: smaller than all before.

        It is for stores; :class:`~synrepl.rooms.room.Room` numbers events as they arrive.
        """
        self._oldest -= 1
        return self._oldest


def topological_ordering(depth: int, parents: Collection[int], all_known: bool = True) -> int:
    """The topological ordering of an event.

    It is one more than the largest of its prev events, which is what an honest ``depth`` is. A server
    may write any depth, so it is used only when some prev events are missing.

    :param depth: of the event
    :param parents: the topological orderings of the known prev events
    :param all_known: whether all prev events are known
    """
    follows = max(parents, default=0) + 1
    if not all_known:
        follows = max(follows, depth)
    return min(follows, MAX_DEPTH)


class SortedEvents(NamedTuple):
    """Events in topological order.

    :ivar events: each comes after its dependencies
    :ivar in_cycles: events that cannot be sorted because they are part of, or depend on, a cycle.
        Cycles are possible only in versions where servers choose event IDs
    """

    events: list[Event]
    in_cycles: list[Event]


def topological_sort(
    events: Iterable[Event],
    tie_break: Callable[[Event], tuple[int, int | str]] = lambda event: (
        event.depth,
        event.event_id,
    ),
    dependencies: Callable[[Event], Iterable[str]] = lambda event: event.prev_event_ids,
) -> SortedEvents:
    """Sort events so that each comes after its dependencies.

    :param events: of one room; of several with the same ID, the first is used
    :param tie_break: sort key among events that are ready
    :param dependencies: the IDs that an event depends on; by default its prev events
    """
    by_id: dict[str, Event] = {}
    for event in events:
        by_id.setdefault(event.event_id, event)
    remaining: dict[str, int] = {}
    dependents: dict[str, list[str]] = {}
    for event_id, event in by_id.items():
        here = {each for each in dependencies(event) if each in by_id}
        remaining[event_id] = len(here)
        for each in here:
            dependents.setdefault(each, []).append(event_id)
    ready = [(tie_break(by_id[each]), each) for each, count in remaining.items() if not count]
    heapify(ready)
    done: list[Event] = []
    while ready:
        _, event_id = heappop(ready)
        done.append(by_id.pop(event_id))
        for each in dependents.get(event_id, ()):
            remaining[each] -= 1
            if not remaining[each]:
                heappush(ready, (tie_break(by_id[each]), each))
    return SortedEvents(done, list(by_id.values()))
