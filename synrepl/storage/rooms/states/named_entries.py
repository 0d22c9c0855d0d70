"""The entries of states by name: which key and event ID a number stands for, cached with its hash.

An event number never changes its meaning as long as a room has the same epoch, so what was read once
serves any number of states. With the hash of each entry, a state of 10,000 entries is checked against its digest
in milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from threading import Lock
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import digest_of_hashes, entry_hash
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text

#: Entries of all rooms that a process keeps; each takes about 700 bytes.
MAX_NAMED_ENTRIES = 60_000


class NamedEntry(NamedTuple):
    """A state event.

    :ivar hash: of the entry, as part of a digest
    """

    slot: int
    key: StateKey
    event_id: str
    hash: int


class NamedEntries:
    """Entries of several rooms, the room that was used least recently forgotten first.

    Work functions of several threads share it.

    :param max_entries: maximum number of entries
    """

    def __init__(self, max_entries: int = MAX_NAMED_ENTRIES) -> None:
        self._max_entries = max_entries
        self._lock = Lock()
        self._rooms: OrderedDict[tuple[int, int], dict[int, NamedEntry]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def read(
        self, txn: Transaction, room: RoomRow, event_nos: Collection[int]
    ) -> Mapping[int, NamedEntry]:
        """The entries of some state events, by number; there may be others.

        :raises NumberWithoutRow: one is not a state event of the room
        """
        place = room.room_no, room.epoch
        with self._lock:
            known = self._rooms.get(place, {})
            missing = [each for each in event_nos if each not in known]
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

    def forget(self, room: RoomRow) -> None:
        """Forget a room, because it is not what it was."""
        with self._lock:
            self._count -= len(self._rooms.pop((room.room_no, room.epoch), ()))

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


def digest_of_entries(entries: Iterable[NamedEntry]) -> bytes:
    """The digest of a state, by the hashes of its entries."""
    return digest_of_hashes(each.hash for each in entries)
