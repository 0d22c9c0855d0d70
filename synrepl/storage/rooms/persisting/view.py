"""A stored room as the rules see it: answers from memory, and from tables in one statement a request."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from synrepl.rooms import (
    AuthChainFacts,
    Delta,
    DifferingEvents,
    Event,
    KnownEvents,
    RoomHeads,
    RoomVersion,
    StateKey,
    auth_dependencies,
    delta,
    topological_ordering,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.limits import MAX_RESOLVED, ResolutionTooLarge
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.states.state_handle import NO_GROUP, REMOVED, EventAt, StoredState
from synrepl.storage.rooms.tables.auth_chain_rows import chain_events
from synrepl.storage.rooms.tables.events import (
    EventFlags,
    StoredEvent,
    events_by_id,
    parsed_events,
    unpassed_ancestors,
)
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of, slots_of

#: State entries whose auth chains are likely to contain what others disagree about.
_SPINE = (
    ("m.room.power_levels", ""),
    ("m.room.create", ""),
    ("m.room.join_rules", ""),
)

#: Entries of a state that are read together when all of it may be needed.
_SHARED_PAGE = 1_024


class GraphNode(NamedTuple):
    """See :class:`~synrepl.rooms.extremities.ReferringEvent`."""

    prev_event_ids: Sequence[str]
    passed_all_checks: bool


_PASSED = GraphNode((), True)


class StoredRoomView:
    """Implements :class:`~synrepl.rooms.RoomView` over a transaction and the memory of the room.

    The caller holds the room's lock, or reads from one snapshot; so everything is as of one revision.

    :param groups: reads state groups; it has the same memory
    """

    def __init__(
        self,
        txn: Transaction,
        room: RoomRow,
        version: RoomVersion,
        memory: RoomMemory,
        groups: GroupWriter,
        max_resolved: int = MAX_RESOLVED,
    ) -> None:
        self.room = room
        self.version = version
        self.memory = memory
        self._txn = txn
        self._groups = groups
        self._max_resolved = max_resolved
        self._absent: set[str] = set()
        # Then a new member, say, needs no look into the table.
        memory.knows_all_slots = len(memory.slots) == room.slots
        #: Events that are in another room, as is possible where servers choose IDs.
        self.elsewhere: set[str] = set()
        #: Events of this transaction that are not in the tables yet.
        self.unsaved: dict[str, Event] = {}
        self.has_partial = False
        self.forward_extremities: frozenset[str] = frozenset()
        self.is_new = False

    # What the rules ask for

    def known_events(self, event_ids: Collection[str], /) -> KnownEvents:
        """Events with their JSON."""
        memory = self.memory
        missing = [each for each in event_ids if each not in memory.parsed]
        if missing:
            rows = list(self.rows(missing).values())
            memory.parsed.update(parsed_events(self._txn, self.version, rows))
        return KnownEvents(memory.parsed, memory.rejected)

    def states_at(self, event_ids: Collection[str], /) -> Mapping[str, EventAt]:
        """The room at some events."""
        self.load(event_ids)
        return self.memory.at

    def heads(self) -> RoomHeads[StoredState]:
        """The current end of the room."""
        return RoomHeads(
            None if self.is_new else self.room.room_id,
            self.memory.empty,
            self.forward_extremities,
            self.has_partial,
        )

    def state_entries(
        self, states: Sequence[StoredState], keys: Sequence[StateKey], /
    ) -> Sequence[Sequence[str | None]]:
        """Entries of several states, in at most three statements."""
        if len(states) == 1:
            known_entries = self.memory.known_entries(states[0], keys)
            if known_entries is not None:
                return [known_entries]
        return self._entries(states, [keys] * len(states))

    def _entries(
        self, states: Sequence[StoredState], keys_of_each: Sequence[Sequence[StateKey]]
    ) -> list[list[str | None]]:
        """Entries of several states, of each for keys of its own."""
        found = [
            list(state.overlay.several(keys))
            for state, keys in zip(states, keys_of_each, strict=True)
        ]
        wanted: dict[int, dict[StateKey, None]] = {}
        for state, keys, entries in zip(states, keys_of_each, found, strict=True):
            if state.base == NO_GROUP:
                continue
            known = self.memory.entries.setdefault(state.base, {})
            for key, entry in zip(keys, entries, strict=True):
                if entry is None and key not in known:
                    wanted.setdefault(state.base, {})[key] = None
        if wanted:
            self._read_entries(wanted)
        for state, keys, entries in zip(states, keys_of_each, found, strict=True):
            known = self.memory.entries.get(state.base, {})
            for place, key in enumerate(keys):
                entry = entries[place]
                if entry is None:
                    entries[place] = known.get(key)
                elif entry == REMOVED:
                    entries[place] = None
        return found

    def state_differences(self, states: Sequence[StoredState], /) -> Sequence[Delta]:
        """The deltas from the first of some states to each of the others.

        The cost goes with what differs, and with the distance of their groups.
        """
        first, *others = states
        bases = {state.base for state in states}
        slots: dict[int, set[int]] = {}
        if first.base != NO_GROUP and len(bases) > 1:
            slots = self._groups.differing_slots(first.base, bases - {first.base, NO_GROUP})
        self._keys(set().union(*slots.values()))
        touched = [sorted(self._touched(first, other, slots)) for other in others]
        every = sorted(set().union(*touched))
        # Of each state only what may differ: all keys of all states are very many after a netsplit.
        keys_of_each = [every, *touched]
        before, *after = [
            dict(zip(keys, entries, strict=True))
            for keys, entries in zip(keys_of_each, self._entries(states, keys_of_each), strict=True)
        ]
        return [_delta(before, found, keys) for found, keys in zip(after, touched, strict=True)]

    def auth_chain_facts(
        self,
        differing: DifferingEvents,
        state: StoredState,
        keys: Collection[StateKey],
        with_subgraph: bool,
        /,
    ) -> AuthChainFacts:
        """The auth chain data for a resolution.

        :raises ResolutionTooLarge: it would have too many events
        """
        chains = self.memory.chains
        conflicted = differing.events()
        self._check_resolution(conflicted)
        levels = self.state_entries([state], _SPINE)[0]
        self._load_chains([*conflicted, *[each for each in levels if each is not None]])
        difference = chains.difference(differing, self._shared(state, set(keys)))
        subgraph = chains.subgraph(conflicted) if with_subgraph else frozenset()
        self._check_resolution(conflicted.union(difference, subgraph))
        return AuthChainFacts(difference, subgraph, chains.power_levels)

    def check_conflict(self, event_ids: Collection[str], /) -> None:
        """Check the number of events of a resolution without auth chain data.

        :raises ResolutionTooLarge: it would have too many events
        """
        self._check_resolution(event_ids)

    # For the persister only

    def rows(self, event_ids: Collection[str]) -> dict[str, StoredEvent]:
        """Rows of those events that are in this room; the others are left out."""
        self.load(event_ids)
        memory = self.memory
        return {each: memory.rows[each] for each in event_ids if each in memory.rows}

    def load(self, event_ids: Collection[str]) -> None:
        """Read rows of events into memory, those of this room that are not there."""
        memory = self.memory
        rows, absent = memory.rows, self._absent
        for each in event_ids:
            if each not in rows and each not in absent:
                break
        else:
            return
        missing = [
            each for each in dict.fromkeys(event_ids) if each not in rows and each not in absent
        ]
        if missing:
            for event_id, row in events_by_id(self._txn, missing).items():
                if row.room_no == self.room.room_no:
                    self._remember(event_id, row)
                else:
                    self.elsewhere.add(event_id)
            self._absent.update([each for each in missing if each not in memory.rows])

    def note_absent(self, event_ids: Collection[str]) -> None:
        """Remember that events are in no room."""
        self._absent.update(event_ids)

    def keep(self, row: StoredEvent, event: Event, at: EventAt) -> None:
        """Add an event that was judged in this transaction, or that has another verdict now."""
        memory = self.memory
        self._absent.discard(row.event_id)
        memory.rows[row.event_id] = row
        memory.name_event(row.event_no, row.event_id)
        memory.parsed[row.event_id] = event
        memory.at[row.event_id] = at
        self.unsaved[row.event_id] = event
        if row.is_rejected:
            memory.rejected.add(row.event_id)
        else:
            memory.rejected.discard(row.event_id)

    def state_events(self, state: StoredState, keys: Sequence[StateKey]) -> dict[StateKey, Event]:
        """The events of some entries of a state."""
        (entries,) = self.state_entries([state], keys)
        ids = [each for each in entries if each is not None]
        events = self.known_events(ids).events
        return {
            key: events[each]
            for key, each in zip(keys, entries, strict=True)
            if each is not None and each in events
        }

    def graph_node(self, event_id: str) -> GraphNode | None:
        """An event with its state, as forward extremities need it; None for any other."""
        self.load([event_id])
        row = self.memory.rows.get(event_id)
        if row is None or row.is_outlier:
            return None
        if row.passed_all_checks:
            return _PASSED
        # The events below it, at once, however long a chain of refused events is.
        if event_id not in self.unsaved:
            for each in unpassed_ancestors(self._txn, [row.event_no]).values():
                if each.event_id not in self.memory.rows:
                    self._remember(each.event_id, each)
        return GraphNode(self.known_events([event_id]).events[event_id].prev_event_ids, False)

    def slots(self, keys: Collection[StateKey]) -> Mapping[StateKey, int]:
        """The slots of keys, as far as the room has given them out."""
        memory = self.memory
        missing = [
            each for each in keys if each not in memory.slots and each not in memory.absent_keys
        ]
        if missing:
            if not memory.knows_all_slots:
                for key, slot in slots_of(self._txn, self.room.room_no, missing).items():
                    memory.name_slot(slot, key)
            memory.absent_keys.update([each for each in missing if each not in memory.slots])
        return memory.slots

    def event_nos(self, event_ids: Collection[str]) -> Mapping[str, int]:
        """The numbers of events of this room."""
        missing = [each for each in event_ids if each not in self.memory.numbers]
        if missing:
            self.load(missing)
        return self.memory.numbers

    # Internals

    def _check_resolution(self, events: Collection[str]) -> None:
        if len(events) > self._max_resolved:
            raise ResolutionTooLarge(
                room_id=self.room.room_id, count=len(events), limit=self._max_resolved
            )

    def _remember(self, event_id: str, row: StoredEvent) -> None:
        memory = self.memory
        memory.rows[event_id] = row
        memory.name_event(row.event_no, event_id)
        if row.is_rejected:
            memory.rejected.add(event_id)
        state = None if row.group_after is None else memory.handle(row.group_after)
        topological = row.topological
        if topological is None:
            topological = topological_ordering(row.depth, (), all_known=False)
        memory.at[event_id] = EventAt(state, bool(row.flags & EventFlags.PARTIAL), topological)

    def _read_entries(self, wanted: Mapping[int, Iterable[StateKey]]) -> None:
        slots = self.slots({key for keys in wanted.values() for key in keys})
        pairs = [(base, key) for base, keys in wanted.items() for key in keys]
        there = [(base, slots[key]) for base, key in pairs if key in slots]
        self._groups.read(list(wanted))
        numbers = dict(zip(there, self._groups.entries(there), strict=True))
        ids = self._ids([each for each in numbers.values() if each is not None])
        for base, key in pairs:
            number = numbers.get((base, slots[key])) if key in slots else None
            self.memory.entries[base][key] = None if number is None else ids[number]

    def _ids(self, numbers: Collection[int]) -> Mapping[int, str]:
        missing = [each for each in numbers if each not in self.memory.ids]
        if missing:
            for number, event_id in event_ids_of(self._txn, self.room.room_no, missing).items():
                self.memory.name_event(number, event_id)
        return self.memory.ids

    def _keys(self, slots: Collection[int]) -> Mapping[int, StateKey]:
        missing = [each for each in slots if each not in self.memory.keys]
        if missing:
            for slot, key in keys_of(self._txn, self.room.room_no, missing).items():
                self.memory.name_slot(slot, key)
        return self.memory.keys

    def _touched(
        self, first: StoredState, other: StoredState, slots: Mapping[int, Collection[int]]
    ) -> set[StateKey]:
        """The keys in which two states may differ. Groups may differ from that of the first in ``slots``."""
        if first is other:
            return set()
        if first.base == other.base:
            change = delta(first.overlay, other.overlay)
            return {*change.entries, *change.removed}
        touched: set[StateKey] = set()
        if NO_GROUP in (first.base, other.base):
            for state in (first, other):
                touched.update(self._whole(state))
        else:
            differing = slots[other.base]
            keys = self._keys(differing)
            touched.update([keys[slot] for slot in differing])
        touched.update(first.overlay, other.overlay)
        return touched

    def _whole(self, state: StoredState) -> dict[StateKey, str]:
        """A whole state, which only a few requests need."""
        whole: dict[StateKey, str] = {}
        if state.base != NO_GROUP:
            numbers = self._groups.state(state.base)
            keys, ids = self._keys(numbers), self._ids(set(numbers.values()))
            whole = {keys[slot]: ids[number] for slot, number in numbers.items()}
        whole.update(state.overlay)
        return {key: entry for key, entry in whole.items() if entry != REMOVED}

    def _shared(self, state: StoredState, keys: set[StateKey]) -> Iterator[str]:
        """The entries of a state but for some keys; first those that are likely to suffice."""
        spine = [key for key in _SPINE if key not in keys]
        first = [each for each in self.state_entries([state], spine)[0] if each is not None]
        self._load_chains(first)
        yield from first
        seen = {*spine, *keys}
        rest = [each for key, each in self._whole(state).items() if key not in seen]
        for at in range(0, len(rest), _SHARED_PAGE):
            page = rest[at : at + _SHARED_PAGE]
            self._load_chains(page)
            yield from page

    def _load_chains(self, event_ids: Iterable[str]) -> None:
        """Add events with their auth chains to the chains in memory."""
        chains = self.memory.chains
        stored: set[str] = set()
        path = [(each, False) for each in event_ids if each not in chains]
        new: dict[str, Event] = {}
        seen: set[str] = set()
        while path:
            event_id, is_done = path.pop()
            event = self.unsaved.get(event_id)
            if is_done and event is not None:
                new[event_id] = event
            elif event_id in seen or event_id in chains:
                continue
            elif event is None:
                stored.add(event_id)
            else:
                seen.add(event_id)
                path.append((event_id, True))
                path.extend([(each, False) for each in auth_dependencies(event)])
        if stored:
            numbers = self.event_nos(stored)
            known = [numbers[each] for each in stored if each in numbers]
            for each in chain_events(self._txn, self.room, self.version, known, chains):
                chains.add(each)
        for event in new.values():
            chains.add(event)


def _delta(
    before: Mapping[StateKey, str | None],
    after: Mapping[StateKey, str | None],
    keys: Collection[StateKey],
) -> Delta:
    """What differs between two states in some keys."""
    entries: dict[StateKey, str] = {}
    removed: set[StateKey] = set()
    for key in sorted(keys):
        entry = after[key]
        if entry == before[key]:
            continue
        if entry is None:
            removed.add(key)
        else:
            entries[key] = entry
    return Delta(entries, frozenset(removed))
