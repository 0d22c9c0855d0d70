"""Auth chains of stored events: whole, their difference, and the subgraph between conflicted events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from threading import Lock

from synrepl.core.errors import InputError
from synrepl.rooms import BitSetChains, DifferingEvents, room_version
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.rooms.reading.event_access import (
    check_named,
    require_events,
    require_same_room,
)
from synrepl.storage.rooms.tables.auth_chain_rows import chain_events
from synrepl.storage.rooms.tables.numbers import RoomRow, room_by_number
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Maximum number of events in the answer to a request for auth chains.
MAX_CHAIN = 100_000

#: Rooms, and events of one room, whose auth chains a process keeps.
MAX_CHAIN_ROOMS = 50
MAX_CHAIN_EVENTS = 50_000

#: Shared events of states whose chains are read together.
_PAGE = 1_024


class ChainTooLong(InputError):
    """the auth chain has more than {limit} events; ask for the chains of fewer events"""


class ChainMemory:
    """The auth chains of several rooms, the room that was used least recently forgotten first.

    A chain never changes as long as its room has the same epoch. A request takes the chains of its room out
    and puts them back; another one for the same room, in another thread at the same time, begins with none.
    """

    def __init__(
        self, max_rooms: int = MAX_CHAIN_ROOMS, max_events: int = MAX_CHAIN_EVENTS
    ) -> None:
        self._max_rooms = max_rooms
        self._max_events = max_events
        self._rooms: OrderedDict[tuple[int, int], BitSetChains] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._rooms)

    def take(self, room: RoomRow) -> BitSetChains:
        """The chains of a room, which are forgotten until they are put back."""
        with self._lock:
            return self._rooms.pop((room.room_no, room.epoch), None) or BitSetChains()

    def put_back(self, room: RoomRow, chains: BitSetChains) -> None:
        """Remember chains, unless they are too many."""
        with self._lock:
            if len(chains) <= self._max_events:
                self._rooms[room.room_no, room.epoch] = chains
            while len(self._rooms) > self._max_rooms:
                self._rooms.popitem(last=False)


def auth_difference(
    txn: Transaction, memory: ChainMemory, room: RoomRow, states: Sequence[Collection[str]]
) -> set[str]:
    """The events in the full auth chains of some states, but not of all.

    :param states: for each state (at least one), its events
    :raises EventNotStored: :raises EventInOtherRoom: one of them is not in the room
    """
    shared = set(states[0]).intersection(*states)
    differing = DifferingEvents.of_states([set(state) - shared for state in states])
    chains = memory.take(room)
    _load(txn, room, differing.events(), chains)
    found = chains.difference(differing, _loaded_pages(txn, room, sorted(shared), chains))
    memory.put_back(room, chains)
    return found


def conflicted_subgraph(
    txn: Transaction, memory: ChainMemory, room: RoomRow, conflicted: Collection[str]
) -> set[str]:
    """Some events, and all events on an auth chain path from one of them to another.

    :raises EventNotStored: :raises EventInOtherRoom: one of them is not in the room
    """
    chains = memory.take(room)
    _load(txn, room, conflicted, chains)
    found = chains.subgraph(conflicted)
    memory.put_back(room, chains)
    return found


def _loaded_pages(
    txn: Transaction, room: RoomRow, event_ids: Sequence[str], chains: BitSetChains
) -> Iterator[str]:
    """Events whose chains are read when they are needed."""
    for at in range(0, len(event_ids), _PAGE):
        page = event_ids[at : at + _PAGE]
        _load(txn, room, page, chains)
        yield from page


def _load(
    txn: Transaction, room: RoomRow, event_ids: Collection[str], chains: BitSetChains
) -> None:
    rows = require_events(txn, [each for each in event_ids if each not in chains])
    for row in rows:
        if row.room_no != room.room_no:
            require_same_room(room_by_number(txn, row.room_no), row, room.room_id)
    version = room_version(room.version)
    for event in chain_events(txn, room, version, [row.event_no for row in rows], chains):
        chains.add(event)


# As for the chains of a resolution: what has an OFFSET is run for each event, by its number.
_CHAIN = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE chain (event_no) AS ("
            " SELECT unnest(e.auth_nos) FROM synrepl._room_events e"
            "  WHERE e.event_no = ANY (%s::bigint[])"
            " UNION SELECT unnest(e.auth_nos) FROM chain CROSS JOIN LATERAL (SELECT e.auth_nos"
            "  FROM synrepl._room_events e WHERE e.event_no = chain.event_no OFFSET 0) AS e)"
            " SELECT e.* FROM (SELECT event_no FROM chain LIMIT %s) AS c CROSS JOIN LATERAL ("
            "  SELECT e.event_id, e.event_no, e.auth_nos FROM synrepl._room_events e"
            "  WHERE e.event_no = c.event_no OFFSET 0) AS e"
        )
    ]
)


def auth_chain(txn: Transaction, event_ids: Sequence[str], limit: int = MAX_CHAIN) -> list[str]:
    """The union of the auth chains of some events; one of them is in it only if another one depends on it.

    ``m.room.create`` is part of it also where the room ID implies it.

    :returns: IDs, auth events before those that cite them
    :raises TooManyNamed: :raises EventNotStored: :raises ChainTooLong:
    """
    check_named("events", event_ids)
    starts = [row.event_no for row in require_events(txn, event_ids)]
    txn.execute(_CHAIN, (array_text(starts), limit + 1))
    rows = {int(number): (str(event_id), cited) for event_id, number, cited in txn.fetchall()}
    if len(rows) > limit:
        raise ChainTooLong(limit=limit)
    return [rows[number][0] for number in _in_order(rows)]


def _in_order(rows: dict[int, tuple[str, Sequence[int]]]) -> list[int]:
    """Numbers of events, those that others cite first."""
    ordered: dict[int, None] = {}
    seen: set[int] = set()
    path = [(number, False) for number in sorted(rows, reverse=True)]
    while path:
        number, is_done = path.pop()
        if is_done:
            ordered[number] = None
        elif number not in seen:
            seen.add(number)
            path.append((number, True))
            path.extend([(each, False) for each in rows[number][1] if each in rows])
    return list(ordered)
