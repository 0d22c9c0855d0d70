"""States of a batch: slots, types and groups for what was judged, and the new current state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from synrepl.rooms import Delta, Event, Judged, StateKey, lookup_state_after, run
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.view import StoredRoomView
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.states.state_handle import NO_GROUP, StoredState
from synrepl.storage.rooms.states.state_line import LinePlace
from synrepl.storage.rooms.tables.numbers import take_numbers, type_numbers
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable

#: Groups that a state is compared with, to be stored as a delta to the closest.
MAX_CANDIDATES = 3

_KEYS_TABLE = RoomTable("synrepl._room_keys", "room_no, slot, type, state_key")


class GroupNumbers:
    """Gives out numbers of groups, ascending; draws more when they run out."""

    def __init__(self, txn: Transaction, numbers: Iterable[int]) -> None:
        self._txn = txn
        self._numbers = deque(numbers)

    def take(self) -> int:
        """The next number."""
        if not self._numbers:
            self._numbers.extend(take_numbers(self._txn, 0, 64)[1])
        return self._numbers.popleft()


class StateWriter:
    """Numbers what states consist of, and makes groups for them.

    :param groups: makes groups; it has the memory of the view
    """

    def __init__(
        self, txn: Transaction, view: StoredRoomView, groups: GroupWriter, rows: PendingRows
    ) -> None:
        self._txn = txn
        self._view = view
        self._groups = groups
        self._rows = rows
        self._memory = view.memory
        self.slots = view.room.slots

    def prefetch_types(self, types: Collection[str]) -> None:
        """Give types their numbers, in one or two statements."""
        missing = [each for each in types if each not in self._memory.types]
        if missing:
            self._memory.types.update(type_numbers(self._txn, missing, make=True))

    def types(self, types: Collection[str]) -> Mapping[str, int]:
        """The numbers of types."""
        self.prefetch_types(types)
        return self._memory.types

    def slot_of(self, event: Event) -> int | None:
        """The slot that an event sets, a new one if needed; None for a message."""
        if event.state_key is None:
            return None
        return self._slot((event.type, event.state_key))

    def _slot(self, key: StateKey) -> int:
        known = self._view.slots([key])
        slot = known.get(key)
        if slot is None:
            slot, self.slots = self.slots, self.slots + 1
            self._memory.name_slot(slot, key)
            self._rows.add(_KEYS_TABLE, (self._view.room.room_no, slot, *key))
        return slot

    def first_group(self) -> int:
        """The group of the empty state of a new room."""
        group = self._groups.make_first()
        self._memory.empty.group = group
        return group

    def groups_of(
        self,
        judged: Judged[StoredState],
        slot: int | None,
        event_no: int,
        parents: Sequence[StoredState],
    ) -> tuple[int, int]:
        """The groups before and after an event that was judged.

        :param slot: that the event sets
        :param parents: the states after its prev events
        """
        before, after = judged.state_before, judged.state_after
        assert before is not None
        assert after is not None
        group_before = self.group_of(before, parents)
        if after is before:
            return group_before, group_before
        if after.group is None:
            assert slot is not None
            assert judged.event.state_key is not None
            key = judged.event.type, judged.event.state_key
            (old,) = self._view.state_entries([before], [key])[0]
            old_no = None if old is None else self._view.event_nos([old])[old]
            after.group = self._groups.make(group_before, {slot: event_no}, {slot: old_no})
            self._memory.handles.setdefault(after.group, after)
        return group_before, after.group

    def group_of(self, state: StoredState, near: Iterable[StoredState]) -> int:
        """The group of a state, a new one if needed.

        :param near: states that it may be close to
        """
        if state.group is not None:
            return state.group
        if state.base == NO_GROUP and not state.overlay:
            state.group = self._empty_group()
            return state.group
        candidates = self._candidates(state, near)
        deltas = [self._view.state_differences([each, state])[0] for each in candidates]
        closest = min(range(len(deltas)), key=lambda number: len(deltas[number]))
        base = candidates[closest].group
        assert base is not None
        state.group = self._groups.make(base, self.numbered(deltas[closest]))
        self._memory.handles.setdefault(state.group, state)
        return state.group

    def _candidates(self, state: StoredState, near: Iterable[StoredState]) -> Sequence[StoredState]:
        """States with a group; those with the same base, which are the quickest to compare, first."""
        found = {each.group: each for each in near if each.group is not None}
        heads = self._memory.heads
        if heads is not None:
            found.setdefault(heads.current_group, self._memory.handle(heads.current_group))
        return sorted(found.values(), key=lambda each: each.base != state.base)[:MAX_CANDIDATES]

    def _empty_group(self) -> int:
        self._txn.execute(
            "SELECT group_no FROM synrepl._state_groups WHERE room_no = %s AND size = 0 LIMIT 1",
            (self._view.room.room_no,),
        )
        found = self._txn.fetchone_or_none()
        if found is not None:
            return int(found[0])
        heads = self._memory.heads
        assert heads is not None
        return self._groups.make(
            heads.current_group, dict.fromkeys(self._groups.state(heads.current_group))
        )

    def numbered(self, delta: Delta) -> dict[int, int | None]:
        """A delta in slots and event numbers."""
        numbers = self._view.event_nos(list(delta.entries.values()))
        change: dict[int, int | None] = {
            self._slot(key): numbers[event_id] for key, event_id in delta.entries.items()
        }
        change.update({self._slot(key): None for key in delta.removed})
        return change

    def current_state(self, event_ids: Collection[str]) -> tuple[int, Delta]:
        """The current state as a group, and what changes by it.

        :param event_ids: the forward extremities
        """
        memory = self._memory
        assert memory.heads is not None
        old = memory.handle(memory.heads.current_group)
        new: StoredState = run(
            lookup_state_after(self._view.version, sorted(event_ids), memory.resolutions),
            self._view,
        )
        if new is old or (new.group is not None and new.group == old.group):
            return memory.heads.current_group, Delta({})
        self._view.rows(event_ids)
        ends = [memory.at[each].state_after for each in sorted(event_ids)]
        group = self.group_of(new, [each for each in ends if each is not None])
        if group == old.group:
            return group, Delta({})
        return group, self._view.state_differences([old, new])[0]

    def line_place(self, group: int) -> LinePlace:
        """Where a group is along the state lines."""
        places = self._memory.groups.places
        if group not in places:
            self._groups.read([group])
        return places[group]

    def finish(self) -> None:
        """Add the rows of state lines."""
        self._groups.finish()
