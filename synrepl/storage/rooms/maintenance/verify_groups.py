"""Checks the state groups of a room: the digest of each, computed from its entries, against the stored one.

A group's digest is computed from that of the group that it is a delta to, in the time of the delta: which entries the
delta replaces is looked up in the chain. So the states are never put together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from synrepl.rooms import BrokenChain, StateKey, UnknownStateGroup
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.findings import CheckedPage, RoomFinding, RoomProblem
from synrepl.storage.rooms.states.state_digest import StateDigest
from synrepl.storage.rooms.states.state_groups import SlotChange, StoredGroup, chain_of, read_chains
from synrepl.storage.rooms.tables.numbers import RoomRow

#: Where the groups begin.
FIRST_GROUPS = (False, 0)

#: Groups and names that are kept from page to page.
MAX_KNOWN = 20_000
MAX_KNOWN_NAMES = 200_000


class _Digested(NamedTuple):
    """A group with its entries by slot, None where one is removed.

    :ivar digest: computed from the entries; None if some of them, or of its chain's, are damaged
    """

    delta: SlotChange
    prev_group: int | None
    digest: StateDigest | None
    size: int


class NamedEvent(NamedTuple):
    """An event as an entry of a state names it."""

    event_id: str
    room_no: int
    slot: int | None


class EntryNames:
    """Texts of entries, read in bulk and kept within a bound."""

    def __init__(self, room_no: int) -> None:
        self._room_no = room_no
        self.keys: dict[int, StateKey] = {}
        self.events: dict[int, NamedEvent] = {}

    def read(self, txn: Transaction, slots: Collection[int], numbers: Collection[int]) -> None:
        """Read what is not known; those that are not here are left out."""
        if len(self.keys) > MAX_KNOWN_NAMES or len(self.events) > MAX_KNOWN_NAMES:
            self.keys.clear()
            self.events.clear()
        new_slots = [each for each in slots if each not in self.keys]
        if new_slots:
            txn.execute(
                "SELECT slot, type, state_key FROM synrepl._room_keys"
                " WHERE room_no = %s AND slot = ANY (%s::int[])",
                (self._room_no, new_slots),
            )
            self.keys.update({slot: (kind, key) for slot, kind, key in txn.fetchall()})
        new_numbers = [each for each in numbers if each not in self.events]
        if new_numbers:
            txn.execute(
                "SELECT event_no, event_id, room_no, slot FROM synrepl._room_events"
                " WHERE event_no = ANY (%s::bigint[])",
                (new_numbers,),
            )
            self.events.update({row[0]: NamedEvent._make(row[1:]) for row in txn.fetchall()})

    def entry(self, slot: int, number: int) -> tuple[StateKey, str] | None:
        """The texts of an entry; None if they are not here. They must have been read."""
        key, event = self.keys.get(slot), self.events.get(number)
        return None if key is None or event is None else (key, event.event_id)


class GroupVerifier:
    """Checks the groups of a room, page after page."""

    def __init__(self, room: RoomRow) -> None:
        self._room = room
        self._names = EntryNames(room.room_no)
        self._known: dict[int, _Digested] = {}

    def page(self, txn: Transaction, after: tuple[bool, int], limit: int) -> CheckedPage:
        """Check a page of groups.

        :param after: :data:`FIRST_GROUPS`, or where the page before ended
        """
        txn.execute(
            "SELECT group_no FROM synrepl._state_groups WHERE room_no = %s AND group_no > %s"
            " ORDER BY group_no LIMIT %s",
            (self._room.room_no, after[1], limit),
        )
        groups = [int(group) for (group,) in txn.fetchall()]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        rows = read_chains(txn, self._room.room_no, groups)
        self._names.read(
            txn,
            {slot for row in rows.values() for slot in row.changes},
            {no for row in rows.values() for no in row.changes.values() if no is not None},
        )
        findings = [each for group in groups for each in self._check(txn, group, rows)]
        return CheckedPage(
            findings, len(groups), (False, groups[-1]) if len(groups) == limit else None
        )

    def _check(
        self, txn: Transaction, group: int, rows: dict[int, StoredGroup]
    ) -> Iterator[RoomFinding]:
        row = rows[group]
        yield from self._check_entries(row)
        try:
            chain = list(chain_of(group, rows))
        except (UnknownStateGroup, BrokenChain) as error:
            problem = (
                RoomProblem.GROUP_WITHOUT_ROW
                if isinstance(error, UnknownStateGroup)
                else RoomProblem.CORRUPT_GROUP
            )
            yield self._finding(problem, group, str(error))
            return
        found = self._digested(txn, chain)
        if found.digest is None:
            detail = "its digest cannot be computed, because entries are missing"
            yield self._finding(RoomProblem.CORRUPT_GROUP, group, detail)
        elif found.size != row.size:
            detail = f"it has {found.size} entries, and {row.size} were stored"
            yield self._finding(RoomProblem.CORRUPT_GROUP, group, detail)
        elif found.digest.digest != row.digest:
            detail = (
                f"the digest of its entries is {found.digest.digest.hex()},"
                f" and {bytes(row.digest).hex()} was stored"
            )
            yield self._finding(RoomProblem.CORRUPT_GROUP, group, detail)

    def _check_entries(self, row: StoredGroup) -> Iterator[RoomFinding]:
        group = row.group_no
        for slot in row.changes:
            if slot not in self._names.keys:
                yield self._finding(RoomProblem.DANGLING, group, f"slot {slot} has no state key")
        for slot, number in row.changes.items():
            if number is None:
                continue
            event = self._names.events.get(number)
            if event is None:
                detail = f"event {number} is not in the store"
                yield self._finding(RoomProblem.DANGLING, group, detail)
            elif event.room_no != self._room.room_no:
                detail = f"event {event.event_id} is of another room"
                yield self._finding(RoomProblem.CROSS_ROOM, group, detail)
            elif event.slot != slot:
                detail = f"event {event.event_id} is no event of slot {slot}"
                yield self._finding(RoomProblem.CORRUPT_GROUP, group, detail)

    def _digested(self, txn: Transaction, chain: Sequence[StoredGroup]) -> _Digested:
        known = self._known
        made: _Digested | None = None
        for row in reversed(chain):
            made = known.get(row.group_no)
            if made is None:
                made = known[row.group_no] = self._make(txn, row)
        assert made is not None
        return made

    def _make(self, txn: Transaction, row: StoredGroup) -> _Digested:
        """A group's digest; that of the group below is known."""
        delta = row.changes
        below = None if row.prev_group is None else self._known[row.prev_group]
        old = {slot: self._entry(row.prev_group, slot) for slot in delta}
        self._names.read(
            txn,
            delta,
            {each for each in (*old.values(), *delta.values()) if each is not None},
        )
        base = StateDigest(self._room.digest_key) if below is None else below.digest
        size = (0 if below is None else below.size) + sum(
            (number is not None) - (old[slot] is not None) for slot, number in delta.items()
        )
        gone = [self._names.entry(slot, no) for slot, no in old.items() if no is not None]
        new = [self._names.entry(slot, no) for slot, no in delta.items() if no is not None]
        named = [each for each in (*gone, *new) if each is not None]
        if base is None or len(named) < len(gone) + len(new):
            return _Digested(delta, row.prev_group, None, size)
        digest = base.removed(each for each in gone if each).added(each for each in new if each)
        return _Digested(delta, row.prev_group, digest, size)

    def _entry(self, group: int | None, slot: int) -> int | None:
        """An entry of a group, from its chain."""
        while group is not None:
            known = self._known[group]
            if slot in known.delta:
                return known.delta[slot]
            group = known.prev_group
        return None

    def _finding(self, problem: RoomProblem, group: int, detail: str) -> RoomFinding:
        return RoomFinding(problem, self._room.room_id, f"state group {group}", detail)
