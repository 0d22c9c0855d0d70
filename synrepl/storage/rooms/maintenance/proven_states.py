"""States of groups with digests that are computed from their contents, for proofs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from synrepl.rooms import StateKey, UnknownStateGroup
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import StateDigest
from synrepl.storage.rooms.states.state_groups import (
    CorruptState,
    SlotState,
    StoredGroup,
    chain_of,
    read_chains,
    state_in,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of

#: Names of slots and events that are kept.
MAX_NAMES = 200_000

#: Rows of groups that are kept.
MAX_ROWS = 4_000


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
    """Reads states of a room, each checked against its digest."""

    def __init__(self, txn: Transaction, room: RoomRow) -> None:
        self._txn = txn
        self._room_no = room.room_no
        self._digests = DigestOfStates(txn, room)
        self._rows: dict[int, StoredGroup] = {}

    def rows(self, groups: Collection[int]) -> dict[int, StoredGroup]:
        """The rows of groups; those that are not here are left out."""
        missing = [each for each in groups if each not in self._rows]
        if missing:
            if len(self._rows) > MAX_ROWS:
                self._rows.clear()
                missing = [*groups]
            self._rows.update(read_chains(self._txn, self._room_no, missing))
        return {each: self._rows[each] for each in groups if each in self._rows}

    def row(self, group: int) -> StoredGroup:
        """The row of a group.

        :raises UnknownStateGroup: it is not here
        """
        found = self.rows([group])
        if group not in found:
            raise UnknownStateGroup(group=group)
        return found[group]

    def chain(self, group: int) -> list[int]:
        """The groups that a group is put together from, itself first.

        :raises UnknownStateGroup: :raises BrokenChain: one of them is not here or damaged
        """
        self.rows([group])
        return [each.group_no for each in chain_of(group, self._rows)]

    def state(self, group: int) -> dict[int, int]:
        """The state of a group, in numbers.

        :raises UnknownStateGroup: :raises BrokenChain: it, or one of its chain, is not here or damaged
        :raises CorruptState: it has not the size or the digest that was stored
        :raises NumberWithoutRow: a slot or an event of it is not here
        """
        stored = self.row(group)
        state = state_in(group, self._rows)
        reason = None
        if len(state) != stored.size:
            reason = f"it has {len(state)} entries, and {stored.size} were stored"
        elif self._digests.digest(state) != stored.digest:
            reason = "its entries do not fit its digest"
        if reason is not None:
            raise CorruptState(group=group, room_no=self._room_no, reason=reason)
        return state
