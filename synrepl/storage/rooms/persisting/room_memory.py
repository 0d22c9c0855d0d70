"""What a process keeps about a room between transactions, with bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from synrepl.rooms import (
    BitSetChains,
    Event,
    ForwardExtremities,
    ResolutionCache,
    Slots,
    StateKey,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.group_writer import GroupMemory
from synrepl.storage.rooms.states.state_handle import NO_GROUP, EventAt, StoredState, empty_overlay
from synrepl.storage.rooms.tables.events import StoredEvent
from synrepl.storage.rooms.tables.heads import (
    StoredHeads,
    backward_extremities,
    forward_extremities,
)
from synrepl.storage.rooms.visibility.event_places import EventPlaces

#: Per room: events with their JSON, events without it, state entries, and auth chains.
MAX_PARSED = 1_000
MAX_ROWS = 5_000
MAX_ENTRIES = 20_000
MAX_CHAINS = 50_000

#: Rooms that a process remembers.
MAX_ROOMS = 200

_RULES = frozenset({"m.room.create", "m.room.power_levels", "m.room.join_rules"})


class RoomMemory:
    """What is known about a room as of one revision.

    A transaction takes it out of :class:`RoomMemories`, changes it as it goes, and it is put back only when
    the transaction is known to be committed. So nothing in it can come from one that was not.
    """

    def __init__(self, room_no: int, epoch: int, revision: int) -> None:
        self.room_no = room_no
        self.epoch = epoch
        self.revision = revision
        self.groups = GroupMemory()
        self.heads: StoredHeads | None = None
        #: Where the next events are along the main line; None if it was not read yet.
        self.places: EventPlaces | None = None
        self.extremities: ForwardExtremities | None = None
        #: Missing prev events, with the numbers of the events that follow them.
        self.backward: dict[str, set[int]] = {}
        #: Those of them that were here before, and were purged.
        self.purged: set[str] = set()
        self.types: dict[str, int] = {}
        self.slots: dict[StateKey, int] = {}
        self.keys: dict[int, StateKey] = {}
        #: Keys that the room has given no slot.
        self.absent_keys: set[StateKey] = set()
        self.numbers: dict[str, int] = {}
        self.ids: dict[int, str] = {}
        self.rows: dict[str, StoredEvent] = {}
        self.parsed: dict[str, Event] = {}
        self.rejected: set[str] = set()
        self.at: dict[str, EventAt] = {}
        #: By group: its handle.
        self.handles: dict[int, StoredState] = {}
        #: By base group: entries that were looked up; None where there is none.
        self.entries: dict[int, dict[StateKey, str | None]] = {}
        self.chains = BitSetChains()
        self.resolutions = ResolutionCache[StoredState]()
        self.overlay_slots = Slots()
        self.empty = StoredState(NO_GROUP, empty_overlay(self.overlay_slots))

    def name_event(self, event_no: int, event_id: str) -> None:
        """Remember an event's number."""
        self.numbers[event_id] = event_no
        self.ids[event_no] = event_id

    def read_extremities(self, txn: Transaction) -> ForwardExtremities:
        """Read the forward and backward extremities."""
        ends = forward_extremities(txn, self.room_no)
        followed = set()
        for each in backward_extremities(txn, self.room_no):
            self.backward.setdefault(each.missing_id, set()).add(each.child_no)
            if each.is_followed:
                followed.add(each.missing_id)
            if each.was_purged:
                self.purged.add(each.missing_id)
        for number, event_id in ends.items():
            self.name_event(number, event_id)
        return ForwardExtremities(ends.values(), followed)

    def is_followed_by(self, event: Event) -> bool:
        """Whether an event follows the only forward extremity, and no event can be waiting for it."""
        ends, heads = self.extremities, self.heads
        if ends is None or heads is None or heads.waiting or len(event.prev_event_ids) != 1:
            return False
        (followed,) = event.prev_event_ids
        return ends.event_ids == {followed} and followed in self.at

    def comes_back(self, event: Event) -> bool:
        """Whether an event was here before it was purged; what it follows was here, too.

        :param event: one whose missing prev events are backward extremities already
        """
        was_here = event.event_id in self.purged
        if was_here:
            self.purged.update(each for each in event.prev_event_ids if each in self.backward)
        return was_here

    def name_slot(self, slot: int, key: StateKey) -> None:
        """Remember a key's slot."""
        self.slots[key] = slot
        self.absent_keys.discard(key)
        self.keys[slot] = key

    def handle(self, group: int) -> StoredState:
        """The handle of a group's state; always the same one."""
        found = self.handles.get(group)
        if found is None:
            found = StoredState(group, empty_overlay(self.overlay_slots), group)
            self.handles[group] = found
        return found

    def trim(self, needed: Collection[str]) -> None:
        """Keep within the bounds; call it between transactions.

        :param needed: events that the next ones are likely to follow
        """
        too_many = (
            len(self.rows) > MAX_ROWS
            or len(self.at) > MAX_ROWS
            or sum(map(len, self.entries.values())) > MAX_ENTRIES
            or len(self.overlay_slots.keys) > MAX_ENTRIES
            or len(self.absent_keys) > MAX_ENTRIES
        )
        if too_many:
            self._start_over(needed)
        if len(self.parsed) > MAX_PARSED:
            # Events cite state events; a message is needed again only where it is redacted.
            kept = [each for each in self.parsed.items() if each[1].state_key is not None]
            rules = [each for each in kept if each[1].type in _RULES][-MAX_PARSED // 4 :]
            self.parsed = dict([*rules, *kept[-MAX_PARSED // 2 :]])
        if len(self.chains) > MAX_CHAINS:
            self.chains = BitSetChains()
        self.groups.trim(
            {each.group for each in self._handles_of(needed) if each.group is not None}
        )

    def _start_over(self, needed: Collection[str]) -> None:
        """Forget all states and rows but those at a few events."""
        heads = {each: self.at[each] for each in needed if each in self.at}
        rows = {each: self.rows[each] for each in needed if each in self.rows}
        self.handles.clear()
        self.entries.clear()
        self.resolutions.clear()
        self.overlay_slots = Slots()
        self.empty = StoredState(NO_GROUP, empty_overlay(self.overlay_slots))
        self.slots.clear()
        self.absent_keys.clear()
        self.keys.clear()
        self.rows = rows
        self.numbers = {each.event_id: each.event_no for each in rows.values()}
        self.ids = {each.event_no: each.event_id for each in rows.values()}
        self.rejected = {each.event_id for each in rows.values() if each.is_rejected}
        self.parsed.clear()
        self.at = {
            event_id: at._replace(state_after=self._again(at.state_after))
            for event_id, at in heads.items()
        }

    def _again(self, state: StoredState | None) -> StoredState | None:
        if state is None or state.group is None:
            return None if state is None else state
        return self.handle(state.group)

    def _handles_of(self, event_ids: Iterable[str]) -> list[StoredState]:
        found = [self.at[each].state_after for each in event_ids if each in self.at]
        return [each for each in found if each is not None]


class RoomMemories:
    """The rooms that a process remembers, the least recently used forgotten first."""

    def __init__(self, max_rooms: int = MAX_ROOMS) -> None:
        self._max_rooms = max_rooms
        self._rooms: OrderedDict[str, RoomMemory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rooms)

    def take(self, room_id: str, room_no: int, epoch: int, revision: int) -> RoomMemory:
        """What is remembered about a room, which is forgotten until it is put back.

        If it is of another revision, or of a room that was forgotten and came again, nothing is.
        """
        found = self._rooms.pop(room_id, None)
        if found is None or (found.room_no, found.epoch, found.revision) != (
            room_no,
            epoch,
            revision,
        ):
            return RoomMemory(room_no, epoch, revision)
        return found

    def remembered(self, room_id: str) -> RoomMemory | None:
        """What is remembered about a room, without taking it."""
        return self._rooms.get(room_id)

    def put_back(self, room_id: str, memory: RoomMemory) -> None:
        """Remember a room after a commit."""
        self._rooms[room_id] = memory
        self._rooms.move_to_end(room_id)
        while len(self._rooms) > self._max_rooms:
            self._rooms.popitem(last=False)
