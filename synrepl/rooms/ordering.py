"""The two orders of a room's events: as they came, and as they follow one another.

Source: "Event ordering" of the seed on room event storage. The stream order says when this server
received an event, and serves clients that are up to date; the topological order looks at causes first
and at the stream order second, and serves whoever reads a room backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from synrepl.rooms.event import Event

#: The largest depth that there is; whoever says more means this.
#: https://spec.matrix.org/v1.16/rooms/v1/#event-format ("depth").
MAX_DEPTH = (1 << 63) - 1


class EventOrdering(NamedTuple):
    """Where an event stands in its room: compares as the topological order.

    :ivar topological: larger than that of what it follows, as far as that was known when it came
    :ivar stream: when this server received it; counts down from −1 for what is older than what
        the server had first
    """

    topological: int
    stream: int


class StreamOrder:
    """Gives out places in the stream order.

    :param newest: the last that was given to an event as it came
    :param oldest: the last that was given to an older one, at most 0
    """

    __slots__ = ("_newest", "_oldest")

    def __init__(self, newest: int = 0, oldest: int = 0) -> None:
        self._newest, self._oldest = newest, oldest

    @property
    def newest(self) -> int:
        """The last that was given to an event as it came."""
        return self._newest

    def next(self) -> int:
        """For an event as it comes: more than any before."""
        self._newest += 1
        return self._newest

    def next_older(self) -> int:
        """For an event from before those that are here: less than any before.

        Whoever stores events takes it for what was fetched backwards;
        :class:`~synrepl.rooms.room.Room` numbers events as they come.
        """
        self._oldest -= 1
        return self._oldest


def topological_ordering(depth: int, parents: Collection[int], all_known: bool = True) -> int:
    """An event's topological number.

    It is one more than the largest of the events that it follows, which is what an honest ``depth``
    says. A server may write any depth, so that counts only while some of those events are
    missing here.

    :param depth: as the event has it
    :param parents: the topological numbers of those it follows, as far as they are known
    :param all_known: whether that is all of them
    """
    follows = max(parents, default=0) + 1
    if not all_known:
        follows = max(follows, depth)
    return min(follows, MAX_DEPTH)


class SortedEvents(NamedTuple):
    """Events in an order in which none comes before one that it follows.

    :ivar events: in that order
    :ivar in_cycles: what cannot be sorted, since it follows itself in the end. Only where servers
        make up event IDs can there be any
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
    """Sort events so that each comes after those of them that it leans on.

    :param events: of one room; of several with the same ID, the first is taken
    :param tie_break: which comes first where that leaves a choice
    :param dependencies: by default the events that it follows
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
