"""Where an entry of a state comes from: found by walking back through the graph to what decided it."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.rooms import ResolutionDecision, ResolutionTrace, StateKey, lookup_resolution, run
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.reading.event_access import require_event, require_full
from synrepl.storage.rooms.reading.explanations import EntryPlace, StateExplanation, StateOrigin
from synrepl.storage.rooms.states.state_groups import chain_of, read_chains
from synrepl.storage.rooms.states.state_line import read_places
from synrepl.storage.rooms.states.state_look_ups import entries_at_groups
from synrepl.storage.rooms.tables.events import StoredEvent, events_by_number
from synrepl.storage.rooms.tables.numbers import RoomRow, room_by_number, slots_of

#: Events that a walk passes, at most, in all and in one statement.
MAX_WALK = 50_000
_STRIDE = 10_000


class _Found(NamedTuple):
    """Where a walk ended."""

    origin: StateOrigin
    event: StoredEvent
    walked: int
    decision: ResolutionDecision | None = None


def explain_state(
    txn: Transaction, event_id: str, key: StateKey, *, before: bool = False
) -> StateExplanation:
    """Where the entry of a key in the state at an event comes from.

    :param before: in the state before the event instead of the one after it
    :raises EventNotStored: :raises EventIsOutlier: it is not known
    :raises CorruptState: :raises NumberWithoutRow: what is stored is damaged
    """
    event = require_event(txn, event_id)
    require_full(event, rejected=True, partial=True)
    room = room_by_number(txn, event.room_no)
    group = event.group_before if before else event.group_after
    assert group is not None
    slot = slots_of(txn, room.room_no, [key] if "\0" not in "".join(key) else []).get(key)
    if slot is None:
        place = EntryPlace(group, None, None, None, False)
        beginning = StateOrigin.BEGINNING
        return StateExplanation(event_id, before, key, None, place, beginning, event_id, None, 0)
    entry = entries_at_groups(txn, room, [group], {key: slot})[0].get(key)
    found = _EntryWalk(txn, room, key, slot, entry).from_event(event, before)
    return StateExplanation(
        event_id,
        before,
        key,
        entry,
        _place(txn, room, group, slot),
        found.origin,
        found.event.event_id,
        found.decision,
        found.walked,
    )


def _place(txn: Transaction, room: RoomRow, group: int, slot: int) -> EntryPlace:
    known = read_chains(txn, room.room_no, [group])
    stored_in = next(
        (each.group_no for each in chain_of(group, known) if slot in each.changes),
        None,
    )
    place = read_places(txn, room, [group]).get(group)
    if place is None:
        return EntryPlace(group, stored_in, None, None, False)
    return EntryPlace(group, stored_in, place.line_no, place.pos, slot in place.overlay)


class _EntryWalk:
    """Follows an entry back to the event that set it, or to the branches that disagreed about it."""

    def __init__(
        self, txn: Transaction, room: RoomRow, key: StateKey, slot: int, entry: str | None
    ) -> None:
        self._txn = txn
        self._room = room
        self._key = key
        self._slot = slot
        self._entry = entry
        self._entry_no = 0 if entry is None else require_event(txn, entry).event_no

    def from_event(self, event: StoredEvent, before: bool) -> _Found:
        """Walk from the state after (or before) an event."""
        walked = 0
        while True:
            if not before:
                walked, event = self._straight(event, walked)
                if event.event_no == self._entry_no and event.group_before != event.group_after:
                    return _Found(StateOrigin.EVENT, event, walked)
                if walked >= MAX_WALK:
                    return _Found(StateOrigin.FURTHER_BACK, event, walked)
            walked += 1
            step = self._before(event, walked)
            if isinstance(step, _Found):
                return step
            event, before = step, False

    def _straight(self, event: StoredEvent, walked: int) -> tuple[int, StoredEvent]:
        """Go back while there is one prev event, to the event that set the entry or to a fork."""
        while walked < MAX_WALK:
            self._txn.execute(
                "WITH RECURSIVE walk (event_no, prev_nos, group_before, step) AS ("
                " SELECT event_no, prev_nos, group_before, 0 FROM synrepl._room_events"
                "  WHERE event_no = %s"
                " UNION ALL SELECT p.event_no, p.prev_nos, p.group_before, w.step + 1"
                "  FROM walk w JOIN synrepl._room_events p ON p.event_no = w.prev_nos[1]"
                "  WHERE cardinality(w.prev_nos) = 1 AND w.group_before = p.group_after"
                "   AND w.event_no <> %s AND w.step < %s)"
                " SELECT event_no, step FROM walk ORDER BY step DESC LIMIT 1",
                (event.event_no, self._entry_no, _STRIDE),
            )
            number, steps = self._txn.fetchone()
            walked += steps
            event = events_by_number(self._txn, [number])[number]
            if steps < _STRIDE:
                break
        return walked, event

    def _before(self, event: StoredEvent, walked: int) -> StoredEvent | _Found:
        """What decided the entry before an event: one of its prev events, or a resolution."""
        parents = list(events_by_number(self._txn, event.prev_nos).values())
        self._txn.execute(
            "SELECT FROM synrepl._backward_extremities WHERE room_no = %s AND child_no = %s LIMIT 1",
            (self._room.room_no, event.event_no),
        )
        if self._txn.fetchone_or_none() is not None:
            return _Found(StateOrigin.REPORTED, event, walked)
        if not parents:
            return _Found(StateOrigin.BEGINNING, event, walked)
        groups = [each.group_after for each in parents if each.group_after is not None]
        keys = {self._key: self._slot}
        entries = [
            state.get(self._key) for state in entries_at_groups(self._txn, self._room, groups, keys)
        ]
        if all(each == self._entry for each in entries):
            # The branches agree, so any of them leads to what set it; the oldest is the shortest way.
            return min(parents, key=lambda each: each.event_no)
        if len(set(groups)) == 1:
            # There was nothing to resolve, so the state did not come from the prev events.
            return _Found(StateOrigin.REPORTED, event, walked)
        decision = self._resolved(parents)
        origin = StateOrigin.REPORTED if decision is None else StateOrigin.RESOLUTION
        return _Found(origin, event, walked, decision)

    def _resolved(self, parents: list[StoredEvent]) -> ResolutionDecision | None:
        """Resolve the states after some events again, and look at what happened to the key.

        :returns: None if the entry is another one, so it did not come from a resolution
        """
        version, view = read_view(self._txn, self._room)
        states = [view.memory.handle(each) for each in self._groups(parents)]
        trace = ResolutionTrace()
        resolved = run(lookup_resolution(version, states, trace), view)
        entry = view.state_entries([resolved], [self._key])[0][0]
        return trace.decision(self._key, self._entry) if entry == self._entry else None

    @staticmethod
    def _groups(parents: list[StoredEvent]) -> list[int]:
        return list(
            dict.fromkeys(each.group_after for each in parents if each.group_after is not None)
        )
