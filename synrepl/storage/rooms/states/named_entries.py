"""What is cached of states: the key and event ID that a number stands for, with its hash, and some whole states.

An event number never changes its meaning as long as a room has the same epoch, so what was read once
serves any number of states. With the hash of each entry, a state is checked against its digest in the time
of a sum.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from threading import Lock
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import entry_hash
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Entries of all rooms that a process keeps; each takes about 700 bytes, and 60 in each whole state.
MAX_NAMED_ENTRIES = 60_000

#: Whole states of one room that a process keeps.
MAX_WHOLE_STATES = 64


class NamedEntry(NamedTuple):
    """A state event.

    :ivar hash: of the entry, as part of a digest
    """

    slot: int
    key: StateKey
    event_id: str
    hash: int


class WholeState(NamedTuple):
    """A state that was compared with its digest. Nobody may change it.

    :ivar entries: by slot
    :ivar ids: the same as event IDs by key
    :ivar total: sum of the hashes of the entries; see :func:`.digest_of_total`
    """

    entries: Mapping[int, NamedEntry]
    ids: Mapping[StateKey, str]
    total: int


#: The state of a room before its first event.
NO_ENTRIES = WholeState({}, {}, 0)


class NamedEntries:
    """Entries and whole states of several rooms, the room that was used least recently forgotten first.

    Work functions of several threads share it.

    :param max_entries: maximum number of entries; whole states have at most four times as many in all
    """

    def __init__(self, max_entries: int = MAX_NAMED_ENTRIES) -> None:
        self._max_entries, self._max_state_entries = max_entries, 4 * max_entries
        self._lock = Lock()
        self._rooms: OrderedDict[tuple[int, int], dict[int, NamedEntry]] = OrderedDict()
        self._count = 0
        #: By room and group; the last one was used last.
        self._states: OrderedDict[tuple[int, int], OrderedDict[int, WholeState]] = OrderedDict()
        self._state_entries = 0

    def __len__(self) -> int:
        return self._count

    @property
    def state_entries(self) -> int:
        """Number of entries of the whole states that are kept."""
        return self._state_entries

    def read(
        self, txn: Transaction, room: RoomRow, event_nos: Collection[int]
    ) -> Mapping[int, NamedEntry]:
        """The entries of some state events, by number; there may be others.

        :raises NumberWithoutRow: one is not a state event of the room
        """
        place = room.room_no, room.epoch
        with self._lock:
            known = self._rooms.get(place, {})
            missing = set(event_nos).difference(known)
            if place in self._rooms:
                self._rooms.move_to_end(place)
        if not missing:
            return known
        found = named_entries(txn, room, missing)
        with self._lock:
            known = self._rooms.setdefault(place, {})
            before = len(known)
            # Another dictionary, because other threads may be reading this one.
            known = self._rooms[place] = {**known, **found}
            self._count += len(known) - before
            self._trim(place)
        return known

    def whole_states(self, room: RoomRow) -> Mapping[int, WholeState]:
        """The states of a room that are kept, by group."""
        with self._lock:
            return dict(self._states.get((room.room_no, room.epoch), ()))

    def keep(self, room: RoomRow, group: int, state: WholeState) -> None:
        """Keep a state that was used, in the place of those that were not used for long.

        :param state: was compared with the group's digest
        """
        size, place = len(state.entries), (room.room_no, room.epoch)
        if not 0 < size <= self._max_state_entries:
            return
        with self._lock:
            states = self._states.setdefault(place, OrderedDict())
            self._states.move_to_end(place)
            before = states.pop(group, NO_ENTRIES)
            states[group] = state
            self._state_entries += size - len(before.entries)
            while len(states) > MAX_WHOLE_STATES:
                self._drop(states)
            while self._state_entries > self._max_state_entries:
                oldest = next(iter(self._states))
                self._drop(self._states[oldest])
                if not self._states[oldest]:
                    del self._states[oldest]

    def forget(self, room: RoomRow) -> None:
        """Forget a room, because it is not what it was."""
        place = room.room_no, room.epoch
        with self._lock:
            self._count -= len(self._rooms.pop(place, ()))
            states = self._states.pop(place, OrderedDict())
            while states:
                self._drop(states)

    def _drop(self, states: OrderedDict[int, WholeState]) -> None:
        _, state = states.popitem(last=False)
        self._state_entries -= len(state.entries)

    def _trim(self, newest: tuple[int, int]) -> None:
        while self._count > self._max_entries and len(self._rooms) > 1:
            oldest = next(each for each in self._rooms if each != newest)
            self._count -= len(self._rooms.pop(oldest))
        if self._count > self._max_entries:
            kept = list(self._rooms[newest].items())[-self._max_entries // 2 :]
            self._rooms[newest] = dict(kept)
            self._count = len(kept)


def named_entries(
    txn: Transaction, room: RoomRow, event_nos: Collection[int]
) -> dict[int, NamedEntry]:
    """The entries of some state events, by number.

    :raises NumberWithoutRow: one is not a state event of the room
    """
    if not event_nos:
        return {}
    txn.execute(
        "SELECT e.event_no, e.slot, k.type, k.state_key, e.event_id"
        " FROM synrepl._room_events e JOIN synrepl._room_keys k USING (room_no, slot)"
        " WHERE e.event_no = ANY (%s::bigint[]) AND e.room_no = %s",
        (array_text(event_nos), room.room_no),
    )
    found: dict[int, NamedEntry] = {}
    for event_no, slot, kind, state_key, event_id in txn.fetchall():
        key = kind, state_key
        found[event_no] = NamedEntry(
            slot, key, event_id, entry_hash(room.digest_key, (key, event_id))
        )
    for number in event_nos:
        if number not in found:
            raise NumberWithoutRow(what="state event", number=number, room_no=room.room_no)
    return found
