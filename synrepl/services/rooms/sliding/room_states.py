"""What is told of the states of the rooms of an answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from synrepl.positions.vector import PositionVector
from synrepl.rooms import StateKey
from synrepl.services.rooms.sliding.required_state import RequiredState, StatePattern
from synrepl.services.rooms.sliding.room_lists import LEFT
from synrepl.services.rooms.sliding.room_reading import ReadingKind, ReadingOfRoom
from synrepl.services.rooms.sliding.room_timelines import Parts
from synrepl.services.rooms.timelines.states_at import take_back
from synrepl.services.rooms.timelines.update_reader import STRIPPED_TYPES
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.timelines.cited_members import cited_members
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.timelines.room_summaries import StoredSummary, room_summaries
from synrepl.storage.rooms.timelines.selected_entries import selected_entries, state_keys_of

#: The entries that name a room, by what they are called in an answer.
NAMING: Mapping[str, StateKey] = {"name": ("m.room.name", ""), "avatar": ("m.room.avatar", "")}

_NAMES = frozenset(NAMING.values())


@dataclass(slots=True)
class RoomState:
    """What is told of one room; events by number.

    :ivar entries: by key
    :ivar naming: events by ``name`` and ``avatar``, None for what was removed; what has not changed is left out
    :ivar heroes: membership events by user
    :ivar members: membership events that a client need not be told again
    """

    entries: dict[StateKey, int] = field(default_factory=dict)
    removed: list[StateKey] = field(default_factory=list)
    naming: dict[str, int | None] = field(default_factory=dict)
    summary: StoredSummary | None = None
    heroes: dict[str, int] = field(default_factory=dict)
    stripped: list[int] = field(default_factory=list)
    members: set[int] = field(default_factory=set)

    def event_nos(self) -> set[int]:
        """All events that are shown, but for stripped ones."""
        named = {each for each in self.naming.values() if each is not None}
        return {*self.entries.values(), *self.heroes.values(), *named}


class StatesOfRooms:
    """Reads what is told of states, in a transaction.

    :param members: numbers of membership events that the client has
    """

    def __init__(
        self, txn: Transaction, user: str, upto: PositionVector, members: Collection[int]
    ) -> None:
        self._txn = txn
        self._user = user
        self._upto = upto
        self._members = members

    def read(self, rooms: Sequence[ReadingOfRoom], parts: Parts) -> dict[int, RoomState]:
        """What is told, by number of the room."""
        summaries = room_summaries(
            self._txn, [each.room.room_no for each in rooms if _has_summary(each)]
        )
        lazy = self._lazy_members(rooms, parts)
        wanted = {
            each.room.room_no: RequiredState(
                self._patterns(each, lazy, summaries.get(each.room.room_no))
            )
            for each in rooms
        }
        current = selected_entries(
            self._txn,
            [(number, *pattern) for number, each in wanted.items() for pattern in each.plain],
        )
        seen = [
            each.room
            for each in rooms
            if wanted[each.room.room_no].plain and each.kind is not ReadingKind.STRIPPED
        ]
        take_back(
            self._txn, seen, current, self._upto, lambda number, key: wanted[number].matches(key)
        )
        self._add_cited([e for e in rooms if e.room.is_partial], lazy, parts, current)
        found: dict[int, RoomState] = {}
        for each in rooms:
            number = each.room.room_no
            state, entries = RoomState(), current.get(number, {})
            if each.kind is ReadingKind.STRIPPED:
                state.stripped = list(entries.values())
            elif each.kind is ReadingKind.WHOLE:
                self._tell_whole(state, each, entries)
            elif each.kind is ReadingKind.CHANGES:
                self._tell_changes(state, each, entries, is_gap=parts[number].is_limited)
            self._tell_members(state, each, entries, lazy.get(number, ()))
            state.summary = summaries.get(number)
            if state.summary is not None:
                users = [(MEMBER, user) for user in state.summary.heroes(self._user) or ()]
                state.heroes = {key[1]: entries[key] for key in users if key in entries}
            found[number] = state
        return found

    # -- what is read -----------------------------------------------------------------

    def _patterns(
        self,
        reading: ReadingOfRoom,
        lazy: Mapping[int, Collection[str]],
        summary: StoredSummary | None,
    ) -> frozenset[StatePattern]:
        me: StatePattern = (MEMBER, self._user)
        if reading.kind is ReadingKind.STRIPPED:
            return frozenset([me, *((kind, "") for kind in STRIPPED_TYPES)])
        if reading.is_outside:
            return frozenset([me])
        found: set[StatePattern] = set()
        required = reading.asked.matched.rule.required
        record = reading.asked.record
        if reading.kind is ReadingKind.WHOLE:
            found |= required.patterns | _NAMES
        elif reading.kind is ReadingKind.CHANGES and record and not record.knows(required):
            found |= required.patterns
        heroes = None if summary is None else summary.heroes(self._user)
        users = {*lazy.get(reading.room.room_no, ()), *(heroes or ())}
        return frozenset(found | {(MEMBER, user) for user in users})

    def _lazy_members(
        self, rooms: Sequence[ReadingOfRoom], parts: Parts
    ) -> dict[int, Collection[str]]:
        """The users whose memberships are needed to show timelines, where they are loaded lazily."""
        lazy = [
            each.room.room_no
            for each in rooms
            if each.asked.matched.rule.required.lazy_members and not each.is_outside
        ]
        slots = {
            (number, event.slot)
            for number in lazy
            for event in parts[number].events
            if event.type == MEMBER and event.slot is not None
        }
        keys = state_keys_of(self._txn, slots)
        return {
            number: {
                user
                for event in parts[number].events
                for user in (event.sender, keys.get((number, event.slot or 0)))
                if user is not None
            }
            for number in lazy
        }

    def _add_cited(
        self,
        partial: Sequence[ReadingOfRoom],
        lazy: Mapping[int, Collection[str]],
        parts: Parts,
        states: dict[int, dict[StateKey, int]],
    ) -> None:
        """Add the memberships of senders that are in no state yet, where they are loaded lazily.

        :param partial: the rooms that are partial
        """
        shown = {
            event.event_no
            for each in partial
            if each.room.room_no in lazy
            for event in parts[each.room.room_no].events
        }
        for (number, user), event_no in cited_members(self._txn, shown).items():
            states.setdefault(number, {}).setdefault((MEMBER, user), event_no)

    # -- what is told -----------------------------------------------------------------

    def _tell_whole(
        self, state: RoomState, reading: ReadingOfRoom, entries: Mapping[StateKey, int]
    ) -> None:
        required = reading.asked.matched.rule.required
        state.entries = {key: no for key, no in entries.items() if required.matches(key)}
        state.naming = {name: entries[key] for name, key in NAMING.items() if key in entries}

    def _tell_changes(
        self,
        state: RoomState,
        reading: ReadingOfRoom,
        entries: Mapping[StateKey, int],
        *,
        is_gap: bool,
    ) -> None:
        required = reading.asked.matched.rule.required
        final = final_changes(reading)
        for key, event_no in final.items():
            is_member = required.lazy_members and key[0] == MEMBER and not is_gap
            if not (is_member or required.matches(key)):
                continue
            if event_no is None:
                state.removed.append(key)
            else:
                state.entries[key] = event_no
        state.naming = {name: final[key] for name, key in NAMING.items() if key in final}
        record = reading.asked.record
        if record is None or record.knows(required):
            return
        known = record.known if isinstance(record.known, RequiredState) else RequiredState()
        for key, event_no in entries.items():
            if key not in final and required.matches(key) and not known.matches(key):
                state.entries[key] = event_no

    def _tell_members(
        self,
        state: RoomState,
        reading: ReadingOfRoom,
        entries: Mapping[StateKey, int],
        users: Iterable[str],
    ) -> None:
        """Add the members that are loaded lazily, unless the client has them."""
        if not reading.asked.matched.rule.required.lazy_members:
            return
        for key in [(MEMBER, user) for user in users]:
            event_no = entries.get(key)
            if event_no is None or key in state.entries:
                continue
            if reading.kind is ReadingKind.WHOLE or event_no not in self._members:
                state.entries[key] = event_no
        state.members = {no for key, no in state.entries.items() if key[0] == MEMBER}


def final_changes(reading: ReadingOfRoom) -> dict[StateKey, int | None]:
    """The entries that changed, as they are now."""
    return {key: event_no for _, key, event_no in reading.changes.changes}


def _has_summary(reading: ReadingOfRoom) -> bool:
    """Whether the number of members, or those that the room is named by, may have changed."""
    if reading.room.membership in LEFT or reading.kind is ReadingKind.LABELS:
        return False
    if reading.room.is_partial:  # what is known of its members says nothing about it
        return False
    if reading.kind is ReadingKind.STRIPPED:
        return False
    return reading.kind is ReadingKind.WHOLE or any(
        key[0] == MEMBER or key in _SHOWN_NAMES for _, key, _ in reading.changes.changes
    )


_SHOWN_NAMES = frozenset({("m.room.name", ""), ("m.room.canonical_alias", "")})
