"""What a process keeps about a room between transactions, with bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence

from synrepl.rooms import (
    BitSetChains,
    Event,
    ForwardExtremities,
    ResolutionCache,
    RoomVersion,
    Slots,
    StateKey,
    auth_dependencies,
    auth_event_keys,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.group_writer import GroupMemory
from synrepl.storage.rooms.states.state_handle import (
    NO_GROUP,
    REMOVED,
    EventAt,
    StoredState,
    empty_overlay,
)
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

#: Entries of a state to which an entry is added in the thread of the reactor: from time to time a group is stored whole.
MAX_SHORT_STATE = 1_000

#: Rooms that a process remembers.
MAX_ROOMS = 200

#: The key of the state entry by which the audience of each event is determined.
HISTORY_VISIBILITY: StateKey = ("m.room.history_visibility", "")

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
        #: The newest stream ordering when it was read; what came later is of this process.
        self.began_at = 0
        #: Where the next events are along the main line; None if it was not read yet.
        self.places: EventPlaces | None = None
        self.extremities: ForwardExtremities | None = None
        #: Missing prev events, with the numbers of the events that follow them.
        self.backward: dict[str, set[int]] = {}
        #: Those of them that were here before, and were purged.
        self.purged: set[str] = set()
        self.types: dict[str, int] = {}
        self.slots: dict[StateKey, int] = {}
        #: Whether no other key has a slot.
        self.knows_all_slots = False
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
        at = self.at.get(followed)
        return ends.event_ids == {followed} and at is not None and not at.partial

    def has_what_judging_needs(self, event: Event, version: RoomVersion) -> bool:
        """Whether an event that follows the only forward extremity can be judged and written without reading, quickly.

        That is never said of a redaction, which needs its target.
        """
        heads, places = self.heads, self.places
        at = [self.at.get(each) for each in event.prev_event_ids]
        if heads is None or heads.unapplied or places is None or len(at) != 1 or at[0] is None:
            return False
        if event.redacts is not None or event.version is not version:
            return False
        state = at[0].state_after
        if state is None or state.group is None or event.type not in self.types:
            return False
        if not places.has_next(state.group, at[0].topological + 1):
            return False
        keys = (*auth_event_keys(event), HISTORY_VISIBILITY)
        if event.state_key is not None:
            key = event.type, event.state_key
            if not self._can_set(state, key):
                return False
            keys = (*keys, key)
        entries = self.known_entries(state, keys)
        if entries is None:
            return False
        needed = (*auth_dependencies(event), *[each for each in entries if each is not None])
        parsed, rows = self.parsed, self.rows
        return all(each in parsed and each in rows for each in needed)

    def _can_set(self, state: StoredState, key: StateKey) -> bool:
        """Whether the group of a state with another entry follows the head of the main line, and is not large."""
        groups, heads = self.groups, self.heads
        place, stored = groups.places.get(state.group or 0), groups.groups.get(state.group or 0)
        line = None if groups.main_line is None else groups.lines.get(groups.main_line)
        if place is None or stored is None or line is None or heads is None:
            return False
        is_at_head = place.line_no == line.line_no and place.pos == line.head == state.group
        return (
            is_at_head
            and stored.size <= MAX_SHORT_STATE
            and self.handles.get(heads.current_group) is state
            and (key in self.slots or self.knows_all_slots)
        )

    def known_entries(
        self, state: StoredState, keys: Sequence[StateKey]
    ) -> Sequence[str | None] | None:
        """Entries of a state, if they are all in memory."""
        found = state.overlay.several(keys)
        if None not in found and REMOVED not in found:
            return found
        is_empty = state.base == NO_GROUP
        below = self.entries.get(state.base, {})
        entries: list[str | None] = []
        for key, entry in zip(keys, found, strict=True):
            if entry is not None:
                entries.append(entry if entry != REMOVED else None)
            elif is_empty:
                entries.append(None)
            elif key in below:
                entries.append(below[key])
            else:
                return None
        return entries

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
        self.knows_all_slots = False
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
