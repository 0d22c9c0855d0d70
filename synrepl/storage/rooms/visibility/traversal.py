"""Walks through a room's graph for other servers: ``/backfill`` and ``/get_missing_events``.

Sources: https://spec.matrix.org/v1.16/server-server-api/#backfilling-and-retrieving-missing-events. Only
events with their state are part of the graph here: outliers, and events that are not known, end it.
Rejected events are walked through, and not returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.rooms import EventOrdering
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.numbers import require_room
from synrepl.storage.rooms.visibility.event_visibility import ServedEvent, seen_by_server

#: Events in an answer, and IDs in a request, at most.
MAX_BACKFILL = 100
MAX_MISSING_EVENTS = 20
MAX_FROM_EVENTS = 100

#: Rejected events that a walk passes at most, for each event that it may return.
_PASSED = 10


class TooManyEventsNamed(InputError):
    """{count} events were named; at most {limit} may be"""


class BadMinDepth(InputError):
    """the minimum depth must not be below 0, and is {depth}"""


def backfill(
    txn: Transaction, room_id: str, server: str, event_ids: Collection[str], limit: int
) -> Sequence[ServedEvent]:
    """Some events and those before them, newest in the topological ordering first.

    :param event_ids: unknown ones are ignored
    :param limit: at most :data:`MAX_BACKFILL` are returned, whatever it is
    :raises UnknownRoom: the room is not in the store
    :raises TooManyEventsNamed: more than :data:`MAX_FROM_EVENTS`
    """
    _check_count(event_ids)
    room = require_room(txn, room_id)
    graph = _Graph(txn, room.room_no)
    walk = _Walk(graph, lambda node: (-node.ordering.topological, -node.ordering.stream))
    most = max(0, min(limit, MAX_BACKFILL))
    found = walk.take(graph.by_id(event_ids), most)
    served = seen_by_server(txn, room, server, found)
    return [served[each] for each in found if each in served]


def missing_events(
    txn: Transaction,
    room_id: str,
    server: str,
    earliest: Collection[str],
    latest: Collection[str],
    limit: int = 10,
    min_depth: int = 0,
) -> Sequence[ServedEvent]:
    """The events between some that a server has, breadth first from the latest, in topological order.

    :param earliest: the server has them; the walk ends there. They are not returned
    :param latest: it has them, too, and lacks what they follow. They are not returned
    :param limit: at most :data:`MAX_MISSING_EVENTS` are returned, whatever it is
    :param min_depth: events of less depth are not returned, and the walk ends there
    :raises UnknownRoom: the room is not in the store
    :raises TooManyEventsNamed: more than :data:`MAX_FROM_EVENTS` of either
    :raises BadMinDepth: it is below 0
    """
    _check_count(earliest)
    _check_count(latest)
    if min_depth < 0:
        raise BadMinDepth(depth=min_depth)
    room = require_room(txn, room_id)
    graph = _Graph(txn, room.room_no)
    have = graph.by_id({*earliest, *latest})
    newest = [node for node in have if node.event_id in latest]
    walk = _Walk(graph, lambda node: (0, 0), min_depth)
    walk.pass_over(have)
    most = max(0, min(limit, MAX_MISSING_EVENTS))
    starts = [prev for node in newest for prev in node.prev_nos]
    found = walk.take(graph.by_number(starts).values(), most)
    ordered = sorted(found, key=lambda each: graph.known[each].ordering)
    served = seen_by_server(txn, room, server, ordered)
    return [served[each] for each in ordered if each in served]


def _check_count(event_ids: Collection[str]) -> None:
    if len(event_ids) > MAX_FROM_EVENTS:
        raise TooManyEventsNamed(count=len(event_ids), limit=MAX_FROM_EVENTS)


class _Node(NamedTuple):
    """An event of the graph."""

    event_no: int
    event_id: str
    ordering: EventOrdering
    depth: int
    is_rejected: bool
    prev_nos: Sequence[int]


class _Graph:
    """The events of a room that were read so far.

    An event is mostly followed by its neighbours in the topological ordering, so these are read with it.
    """

    def __init__(self, txn: Transaction, room_no: int) -> None:
        self._txn, self._room_no = txn, room_no
        self.known: dict[int, _Node] = {}

    def by_id(self, event_ids: Collection[str]) -> list[_Node]:
        """Events by ID."""
        storable = [each for each in event_ids if "\0" not in each]
        rows = self._read("e.event_id = ANY (%s::text[])", (storable,))
        return self._add(rows)

    def by_number(self, numbers: Iterable[int], ahead: int = 0) -> dict[int, _Node]:
        """Events by number.

        :param ahead: how many of those before them to read, too, if any of them was not read yet
        """
        wanted = list(numbers)
        missing = [each for each in wanted if each not in self.known]
        if missing:
            nodes = self._add(self._read("e.event_no = ANY (%s::bigint[])", (missing,)))
            if ahead and nodes:
                self._read_before(max(node.ordering for node in nodes), ahead)
        return {each: self.known[each] for each in wanted if each in self.known}

    def _read_before(self, ordering: EventOrdering, count: int) -> None:
        self._add(
            self._read(
                "(e.topological, e.stream_id) < (%s, %s)"
                " ORDER BY e.topological DESC, e.stream_id DESC LIMIT %s",
                (*ordering, count),
            )
        )

    def _read(self, condition: str, params: tuple[object, ...]) -> list[_Node]:
        self._txn.execute(
            "SELECT e.event_no, e.event_id, e.topological, e.stream_id, e.depth, e.flags, e.prev_nos"
            " FROM synrepl._room_events e"
            f" WHERE e.room_no = %s AND e.stream_id IS NOT NULL AND {condition}",
            (self._room_no, *params),
        )
        return [
            _Node(
                row[0],
                row[1],
                EventOrdering(row[2], row[3]),
                row[4],
                bool(row[5] & EventFlags.REJECTED),
                row[6],
            )
            for row in self._txn.fetchall()
        ]

    def _add(self, nodes: Iterable[_Node]) -> list[_Node]:
        added = list(nodes)
        self.known.update((node.event_no, node) for node in added)
        return added


class _Walk:
    """A walk to ever older events.

    :param rank: what is smallest goes first; what is equal, in the order in which it was reached
    """

    def __init__(
        self, graph: _Graph, rank: Callable[[_Node], tuple[int, int]], min_depth: int = 0
    ) -> None:
        self._graph, self._rank, self._min_depth = graph, rank, min_depth
        self._reached: set[int] = set()

    def pass_over(self, nodes: Iterable[_Node]) -> None:
        """Neither return some events nor go on from them."""
        self._reached.update(node.event_no for node in nodes)

    def take(self, starts: Iterable[_Node], limit: int) -> list[int]:
        """The numbers of the first events of the walk."""
        found: list[int] = []
        heap: list[tuple[tuple[int, int], int, _Node]] = []
        self._push(heap, sorted(starts, key=lambda node: node.ordering, reverse=True))
        for _ in range(limit * _PASSED):
            if not heap or len(found) >= limit:
                break
            node = heappop(heap)[-1]
            if not node.is_rejected:
                found.append(node.event_no)
            prevs = self._graph.by_number(node.prev_nos, ahead=2 * limit)
            self._push(heap, (prevs[each] for each in node.prev_nos if each in prevs))
        return found

    def _push(self, heap: list[tuple[tuple[int, int], int, _Node]], nodes: Iterable[_Node]) -> None:
        for node in nodes:
            if node.event_no not in self._reached and node.depth >= self._min_depth:
                self._reached.add(node.event_no)
                heappush(heap, (self._rank(node), len(self._reached), node))
