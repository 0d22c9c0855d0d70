"""States of groups with digests that are computed from their contents, for proofs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import StateDigest
from synrepl.storage.rooms.states.state_groups import (
    CorruptState,
    SlotState,
    StoredGroup,
    read_chains,
    state_in,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of

#: Names of slots and events that are kept.
MAX_NAMES = 200_000


class DigestOfStates:
    """Computes digests of whole states, each from the one before, in the time of their difference.

    The difference is that of the two contents, so a digest does not depend on how the states are stored.
    """

    def __init__(self, txn: Transaction, room: RoomRow) -> None:
        self._txn = txn
        self._room_no = room.room_no
        self._last: Mapping[int, int] = {}
        self._digest = StateDigest(room.digest_key)
        self._keys: dict[int, StateKey] = {}
        self._ids: dict[int, str] = {}

    def digest(self, state: SlotState) -> bytes:
        """The digest of a state.

        :raises NumberWithoutRow: a slot or an event of it is not here
        """
        gone = self._last.items() - state.items()
        new = state.items() - self._last.items()
        self._name(gone)
        self._name(new)
        digest = self._digest.removed(self._named(gone)).added(self._named(new))
        self._last, self._digest = dict(state), digest
        return digest.digest

    def _name(self, entries: Collection[tuple[int, int]]) -> None:
        if len(self._keys) > MAX_NAMES or len(self._ids) > MAX_NAMES:
            self._keys.clear()
            self._ids.clear()
        slots = {slot for slot, _ in entries} - self._keys.keys()
        numbers = {number for _, number in entries} - self._ids.keys()
        self._keys.update(keys_of(self._txn, self._room_no, slots))
        self._ids.update(event_ids_of(self._txn, self._room_no, numbers))

    def _named(self, entries: Iterable[tuple[int, int]]) -> list[tuple[StateKey, str]]:
        return [(self._keys[slot], self._ids[number]) for slot, number in entries]


class ProvenStates:
    """Reads states of a room, each checked against its digest.

    :param max_groups: rows of groups that are kept between reads
    """

    def __init__(self, txn: Transaction, room: RoomRow, max_groups: int = 4_000) -> None:
        self._txn = txn
        self._room_no = room.room_no
        self._max_groups = max_groups
        self._digests = DigestOfStates(txn, room)
        self.groups: OrderedDict[int, StoredGroup] = OrderedDict()

    def read(self, groups: Collection[int]) -> None:
        """Read groups with their chains in one statement; those that are not here are left out."""
        missing = [each for each in groups if each not in self.groups]
        if missing:
            self.groups.update(read_chains(self._txn, self._room_no, missing))

    def forget(self) -> None:
        """Read rows again from now on."""
        self.groups.clear()

    def state(self, group: int) -> dict[int, int]:
        """The state of a group, in numbers.

        :raises UnknownStateGroup: :raises BrokenChain: it, or one of its chain, is not here or damaged
        :raises CorruptState: it has not the size or the digest that was stored
        :raises NumberWithoutRow: a slot or an event of it is not here
        """
        if len(self.groups) > self._max_groups:
            self.groups.clear()
        self.read([group])
        state = state_in(group, self.groups)
        stored = self.groups[group]
        reason = None
        if len(state) != stored.size:
            reason = f"it has {len(state)} entries, and {stored.size} were stored"
        elif self._digests.digest(state) != stored.digest:
            reason = "its entries do not fit its digest"
        if reason is not None:
            raise CorruptState(group=group, room_no=self._room_no, reason=reason)
        return state
