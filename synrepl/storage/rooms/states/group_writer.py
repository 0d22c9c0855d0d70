"""Makes state groups: decides how each is stored, gives it a digest and a place on a state line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_digest import StateDigest
from synrepl.storage.rooms.states.state_groups import (
    GROUPS_TABLE,
    KnownGroups,
    SlotChange,
    StoredGroup,
    chain_of,
    chains_of_groups,
    change_between,
    group_row,
    plan_change,
    read_chains,
    slots_between,
    state_in,
)
from synrepl.storage.rooms.states.state_line import (
    LinePlace,
    LineWriter,
    StoredLine,
    look_up,
    new_line_no,
    read_lines,
    read_places,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of
from synrepl.storage.rooms.tables.pending_rows import PendingRows

#: Maximum number of groups whose rows and places are cached between transactions.
MAX_KEPT_GROUPS = 512


class GroupMemory:
    """What is known about the groups of a room, kept between transactions.

    It is valid for one revision of the room.
    """

    def __init__(self) -> None:
        self.groups: dict[int, StoredGroup] = {}
        self.places: dict[int, LinePlace] = {}
        self.lines: dict[int, StoredLine] = {}
        #: By place: the first group that may have had a long delta there. Without it, groups are larger.
        self.first_at: dict[int, int] = {}
        self.main_line: int | None = None

    def trim(self, needed: Set[int]) -> None:
        """Keep the newest groups, and what some groups need; call it between transactions.

        :param needed: groups that are likely to be the base of the next ones
        """
        # In a room with very many extremities, those that are needed are more than the maximum.
        if len(self.groups) > MAX_KEPT_GROUPS + len(needed):
            likely = [*(needed & self.groups.keys()), *sorted(self.groups)[-MAX_KEPT_GROUPS // 4 :]]
            # A group is kept with its whole chain.
            self.groups = chains_of_groups(likely, self.groups)
        if len(self.places) > MAX_KEPT_GROUPS + len(needed):
            for group in sorted(self.places.keys() - set(needed))[: -MAX_KEPT_GROUPS // 2]:
                del self.places[group]
        if len(self.first_at) > MAX_KEPT_GROUPS:
            for place in list(self.first_at)[: -MAX_KEPT_GROUPS // 2]:
                del self.first_at[place]
        if len(self.lines) > MAX_KEPT_GROUPS:
            self.lines.clear()
            self.places.clear()


class GroupWriter:
    """Makes groups of a room in one transaction.

    The caller holds the room's lock. Nothing is written before the caller flushes ``rows``.

    :param take_group_no: draws the number of a new group; numbers must ascend
    :param key_of: the state key of a slot, if it is known without a statement
    :param id_of: the ID of an event number, if it is known without a statement
    """

    def __init__(
        self,
        txn: Transaction,
        room: RoomRow,
        rows: PendingRows,
        memory: GroupMemory,
        take_group_no: Callable[[], int],
        key_of: Callable[[int], StateKey | None] = lambda slot: None,
        id_of: Callable[[int], str | None] = lambda number: None,
    ) -> None:
        self._txn = txn
        self._room = room
        self._rows = rows
        self._memory = memory
        self._take_group_no = take_group_no
        self._key_of = key_of
        self._id_of = id_of
        self._known = KnownGroups(memory.groups)
        if memory.main_line is None:
            memory.main_line = room.main_line
        self._lines = LineWriter(
            room.room_no,
            memory.main_line,
            memory.lines,
            memory.places,
            lambda: new_line_no(txn),
        )

    def make_first(self) -> int:
        """The first group of a room, which has the empty state; its number."""
        group = self._take_group_no()
        self._lines.first(self._rows, group)
        self._memory.main_line = self._lines.main_line
        digest = StateDigest(self._room.digest_key).digest
        self._store(StoredGroup(group, None, self._room.room_no, 0, 0, digest, {}))
        self._rows.run(
            "UPDATE synrepl._rooms SET main_line = %s WHERE room_no = %s",
            (self._memory.main_line, self._room.room_no),
        )
        return group

    def make(self, base: int, change: SlotChange, before: SlotChange | None = None) -> int:
        """The group that differs from another one by a change; its number.

        :param change: entries that are new or changed, and (None) removed. Entries that ``base`` has
            already are left out; if all are, the result is ``base``
        :param before: the entries of ``base`` in the slots of the change, if the caller knows them
        :raises UnknownStateGroup: ``base``, or one of its chain, is not here
        :raises NumberWithoutRow: a slot or an event of the change is not here
        """
        self.read([base])
        if before is None:
            found = self.entries([(base, slot) for slot in change])
            before = dict(zip(change, found, strict=True))
        change = {slot: number for slot, number in change.items() if before[slot] != number}
        if not change:
            return base
        old = {slot: before[slot] for slot in change}
        size = self._memory.groups[base].size
        size += sum((new is not None) - (old[slot] is not None) for slot, new in change.items())
        digest = (
            self.digest(base)
            .removed(self._named((slot, number) for slot, number in old.items()))
            .added(self._named((slot, number) for slot, number in change.items()))
        )
        group = self._take_group_no()
        prev, place, stored = self._planned(group, base, change, size)
        room_no = self._room.room_no
        self._store(StoredGroup(group, prev, room_no, size, place, digest.digest, stored))
        self._lines.add(self._rows, group, base, change, self.state)
        return group

    def _planned(
        self, group: int, base: int, change: SlotChange, size: int
    ) -> tuple[int | None, int, SlotChange]:
        """How to store a group: what it is a delta to, its place, and what it changes there."""
        place = self._memory.groups[base].place + 1
        plan = plan_change(base, change, size, self._known)
        if plan is None or len(plan.changes) > 2 * len(change):
            # Parallel branches would each repeat the long deltas of their places. They are closer to the
            # branch that came first at a place than to the group that this place refers to.
            first = self._memory.first_at.setdefault(place, group)
            if first != group:
                other = plan_change(first, self._change(first, base, change), size, self._known)
                if other is not None and (plan is None or len(other.changes) < len(plan.changes)):
                    plan = other
        if plan is not None:
            return plan
        self._memory.first_at.clear()
        self._memory.first_at[place] = group
        whole = {**self.state(base), **change}
        return None, 0, {slot: each for slot, each in whole.items() if each is not None}

    def _change(self, first: int, base: int, change: SlotChange) -> SlotChange:
        """What differs between a group and another one, which has a change on top of a third."""
        self.read([first])
        groups = self._memory.groups
        before, after = change_between(first, base, groups)
        lower, upper = list(chain_of(first, groups)), list(chain_of(base, groups))
        found: dict[int, int | None] = {}
        for slot in before.keys() | after.keys() | change.keys():
            new = change[slot] if slot in change else _entry_in(upper, slot)
            if new != _entry_in(lower, slot):
                found[slot] = new
        return found

    def finish(self) -> None:
        """Add the rows of lines; call it once, after the last group."""
        self._lines.finish(self._rows)

    def read(self, groups: Collection[int]) -> None:
        """Read groups with their chains, places and lines, unless they are in memory.

        :raises UnknownStateGroup: one is not here
        """
        memory = self._memory
        if len(groups) == 1:
            (group,) = groups
            place = memory.places.get(group)
            if place is not None and group in memory.groups and place.line_no in memory.lines:
                return
        missing = [each for each in groups if each not in memory.groups]
        if missing:
            memory.groups.update(read_chains(self._txn, self._room.room_no, missing))
            chains_of_groups(missing, memory.groups)  # each in memory has its whole chain there
        placeless = [each for each in groups if each not in memory.places]
        if placeless:
            here = self._room._replace(main_line=memory.main_line)
            memory.places.update(read_places(self._txn, here, placeless))
        lineless = {memory.places[each].line_no for each in groups} - memory.lines.keys()
        if lineless:
            memory.lines.update(read_lines(self._txn, lineless))

    def entries(self, wanted: Iterable[tuple[int, int]]) -> list[int | None]:
        """Entries of groups that were read, each given as a group and a slot, in one statement."""
        places = self._memory.places
        return look_up(
            self._txn,
            [(places[group], slot) for group, slot in wanted],
            self._memory.lines,
            self._lines.pending,
        )

    def state(self, group: int) -> dict[int, int]:
        """The whole state of a group, in numbers."""
        self.read([group])
        return state_in(group, self._memory.groups)

    def differing_slots(self, one: int, others: Collection[int]) -> dict[int, set[int]]:
        """The slots in which a group may differ from each of some others."""
        self.read([one, *others])
        return slots_between(one, others, self._memory.groups)

    def digest(self, group: int) -> StateDigest:
        """The digest of a group's state, to go on from."""
        self.read([group])
        return StateDigest.stored(self._room.digest_key, self._memory.groups[group].digest)

    def _named(self, entries: Iterable[tuple[int, int | None]]) -> list[tuple[StateKey, str]]:
        """Entries with their texts; None where there is none is left out."""
        there = [(slot, number) for slot, number in entries if number is not None]
        known = [
            (key, event_id)
            for slot, number in there
            if (key := self._key_of(slot)) is not None
            and (event_id := self._id_of(number)) is not None
        ]
        if len(known) == len(there):
            return known
        # Those that were made in this transaction are known, and not in the tables yet.
        keys = {slot: self._key_of(slot) for slot, _ in there}
        ids = {number: self._id_of(number) for _, number in there}
        room_no = self._room.room_no
        named_keys = {slot: key for slot, key in keys.items() if key is not None}
        named_ids = {number: event_id for number, event_id in ids.items() if event_id is not None}
        named_keys |= keys_of(self._txn, room_no, keys.keys() - named_keys.keys())
        named_ids |= event_ids_of(self._txn, room_no, ids.keys() - named_ids.keys())
        return [(named_keys[slot], named_ids[number]) for slot, number in there]

    def _store(self, group: StoredGroup) -> None:
        self._memory.groups[group.group_no] = group
        self._rows.add(GROUPS_TABLE, group_row(group))


def _entry_in(chain: Iterable[StoredGroup], slot: int) -> int | None:
    """An entry of a group, from its chain."""
    return next((each.changes[slot] for each in chain if slot in each.changes), None)
