"""Judges a batch of events of one room over its tables, as functions of one transaction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from synrepl.rooms import (
    Check,
    Event,
    ForwardExtremities,
    Judged,
    OtherRoom,
    RoomVersion,
    StateKey,
    UnknownEvents,
    WaitingEvent,
    WaitingEvents,
    auth_dependencies,
    auth_event_keys,
    judge,
    judge_outlier,
    parse_event,
)
from synrepl.rooms import Delta as StateDelta
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.persisting.batch_states import GroupNumbers, StateWriter
from synrepl.storage.rooms.persisting.event_rows import EventRows
from synrepl.storage.rooms.persisting.limits import (
    EVENT_REFUSALS,
    RoomLimits,
    RoomNotPartial,
    check_extremities,
)
from synrepl.storage.rooms.persisting.room_memory import HISTORY_VISIBILITY, RoomMemory
from synrepl.storage.rooms.persisting.view import StoredRoomView
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.states.state_handle import EventAt, StoredState
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import (
    StoredHeads,
    read_heads,
)
from synrepl.storage.rooms.tables.incoming import (
    EventOutcome,
    IncomingEvent,
    PersistedEvent,
    check_storable,
)
from synrepl.storage.rooms.tables.numbers import OpenedRoom, take_numbers
from synrepl.storage.rooms.tables.partial_rooms import partial_room
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.storage.rooms.tables.pending_rows import PendingRows
from synrepl.storage.rooms.tables.waiting import StoredWaiting, waiting_for

#: Waiting events that are judged in the same transaction as the events they waited for.
MAX_RELEASED = 2_000

#: Maximum number of states whose entries are prefetched.
MAX_PREFETCHED_STATES = 8

_PARTIAL = int(EventFlags.PARTIAL)
_OUTGOING = int(EventFlags.OUTGOING)
_AFTER_GAP = int(EventFlags.AFTER_GAP)


class RoomBatch:
    """Takes in events of one room in their order, as :class:`~synrepl.rooms.Room` does in memory.

    The caller holds the room's lock. Nothing is written before :mod:`~.batch_rows` does.

    :param memory: of the room; changed as events are judged
    """

    def __init__(
        self,
        txn: Transaction,
        opened: OpenedRoom,
        version: RoomVersion,
        memory: RoomMemory,
        limits: RoomLimits,
    ) -> None:
        self.txn = txn
        self.room = opened.room
        self.version = version
        self.memory = memory
        self.now_ms = opened.now_ms
        self.rows = PendingRows()
        self._event_nos = deque(opened.event_nos)
        #: Draws the numbers of new groups, ascending.
        self.group_numbers = GroupNumbers(txn, opened.group_nos)
        writer = GroupWriter(
            txn,
            self.room,
            self.rows,
            memory.groups,
            self.group_numbers.take,
            memory.keys.get,
            memory.ids.get,
        )
        self.limits = limits
        self.view = StoredRoomView(txn, self.room, version, memory, writer, limits.max_resolved)
        self.states = StateWriter(txn, self.view, writer, self.rows)
        self.event_rows = EventRows(self.view, self.states)
        self.judged: dict[str, PendingEvent] = {}
        self.order: list[str] = []
        self._load_heads()
        self.stored_waiting: dict[str, StoredWaiting] = {}
        self.waiting = WaitingEvents(limit=1 << 30, max_bytes=1 << 40)
        self.waiting_backfilled: set[str] = set()
        self._ready: list[IncomingEvent] = []
        self.has_ready = False

    def _load_heads(self) -> None:
        memory, room_no = self.memory, self.room.room_no
        if memory.heads is None:
            memory.heads = read_heads(self.txn, room_no)
            memory.began_at = 0 if memory.heads is None else memory.heads.stream_id
        if memory.extremities is None:
            memory.extremities = (
                ForwardExtremities() if memory.heads is None else memory.read_extremities(self.txn)
            )
        self.extremities = memory.extremities
        self.old_ends = memory.extremities.event_ids
        self.old_followed = set(memory.extremities.missing_prev_events)
        self.is_new = memory.heads is None
        if memory.heads is None:
            first = self.states.first_group()
            memory.heads = StoredHeads(room_no, 0, 0, 0, 0, first, 0, 0, 0, 0, 0, 0)
        self.heads = memory.heads
        self.partial = self.heads.partial
        self._update_view()

    def _update_view(self) -> None:
        self.view.forward_extremities = self.extremities.event_ids
        self.view.has_partial = self.partial > 0
        self.view.is_new = not self.heads.events and not self.heads.outliers and not self.order

    # -- what is read at once -------------------------------------------------------------

    def prefetch(self, incoming: Sequence[IncomingEvent], released_by: Sequence[str] = ()) -> None:
        """Read what judging a batch is likely to need, in a statement of each kind.

        :param released_by: events that are here, and that stored events wait for
        """
        if self.heads.waiting:
            self._load_waiting([*released_by, *[each.event.event_id for each in incoming]])
        # The rules read nothing of an outlier but what it cites.
        outliers = [each.event for each in incoming if each.outlier]
        whole = [each.event for each in (*incoming, *self._ready) if not each.outlier]
        whole += [waiting.event for waiting in self.waiting]
        events = [*outliers, *whole]
        if len(events) == 1 and self.memory.parsed.keys() >= set(auth_dependencies(events[0])):
            return  # what one event needs beyond what it cites, judging it reads as quickly
        ids: dict[str, None] = {}
        for event in whole:
            ids.update(dict.fromkeys(event.prev_event_ids))
        for event in events:
            ids[event.event_id] = None
            ids.update(dict.fromkeys(auth_dependencies(event)))
            if event.redacts is not None and "\0" not in event.redacts:
                ids[event.redacts] = None
        found = self.view.rows(ids)
        cited = {each for event in events for each in auth_dependencies(event) if each in found}
        self.view.known_events(cited)
        own = [(each.type, each.state_key) for each in events if each.state_key is not None]
        self.view.slots([key for key in own if _is_storable(key)])
        self.states.prefetch_types({event.type for event in events if "\0" not in event.type})
        if not whole:
            return
        keys: dict[StateKey, None] = {HISTORY_VISIBILITY: None}
        for event in whole:
            keys.update(dict.fromkeys(auth_event_keys(event)))
            if event.state_key is not None:
                keys[event.type, event.state_key] = None
        bases = dict[int, StoredState]()
        parents = [each for event in whole for each in event.prev_event_ids]
        for each in (*parents, *self.extremities.event_ids):
            at = self.memory.at.get(each)
            if at is not None and at.state_after is not None:
                bases.setdefault(at.state_after.base, at.state_after)
        few = list(bases.values())[:MAX_PREFETCHED_STATES]
        self.view.state_entries(few, [key for key in keys if _is_storable(key)])

    def _load_waiting(self, event_ids: Sequence[str]) -> None:
        """Take in the stored events that wait for some events, oldest first."""
        stored = waiting_for(self.txn, self.room.room_no, event_ids, MAX_RELEASED + 1)
        self.has_ready = len(stored) > MAX_RELEASED
        parsed = [(each, parse_event(each.raw, self.version)) for each in stored[:MAX_RELEASED]]
        self.view.rows({each for _, event in parsed for each in _dependencies(event)})
        for each, event in parsed:
            self.stored_waiting[each.event_id] = each
            if each.backfilled:
                self.waiting_backfilled.add(each.event_id)
            missing = self.missing_for(event)
            if missing:
                self.waiting.hold(WaitingEvent(event, each.live, missing))
            else:
                self._ready.append(IncomingEvent(event, each.live, each.backfilled))

    def take_in_ready(self) -> None:
        """Judge the stored events that wait for nothing any more."""
        ready, self._ready = self._ready, []
        for incoming in ready:
            self.take_in(incoming)

    # -- one event ------------------------------------------------------------------------

    def take_in(self, incoming: IncomingEvent) -> PersistedEvent:
        """Judge an event and those that waited for it, or let it wait."""
        event_id = incoming.event.event_id
        try:
            self._check(incoming.event)
            if incoming.outlier:
                return self._take_in_outlier(incoming)
            return self._take_in(incoming)
        except EVENT_REFUSALS as error:
            return PersistedEvent(event_id, EventOutcome.REFUSED, error=error)

    def take_in_at(self, incoming: IncomingEvent, state: StoredState) -> PersistedEvent:
        """Judge an event that is not here at a state that another server reported, and those that waited for it.

        :param state: the full state, stored as a group
        """
        event = incoming.event
        try:
            self._check(event)
            made = self._judge(self._first_received(event), incoming, state, ())
        except EVENT_REFUSALS as error:
            return PersistedEvent(event.event_id, EventOutcome.REFUSED, error=error)
        self.waiting.forget(event.event_id)
        self._release(event.event_id)
        return made

    def _check(self, event: Event) -> None:
        check_storable(event)
        self.view.load([event.event_id])
        if (
            event.version is not self.version
            or event.room_id != self.room.room_id
            or event.event_id in self.view.elsewhere
        ):
            raise OtherRoom(
                event_id=event.event_id, room_id=event.room_id, expected=self.room.room_id
            )

    def _take_in(self, incoming: IncomingEvent) -> PersistedEvent:
        event = incoming.event
        event_id = event.event_id
        row = self.memory.rows.get(event_id)
        if row is not None and not row.is_outlier:
            return PersistedEvent(
                event_id, EventOutcome.KNOWN, row.event_no, row.stream_id, row.topological
            )
        with_state = incoming.state_before is not None
        if event_id in self.waiting and not with_state:
            return self._waits(event_id)
        first = self._first_received(event)
        if with_state:
            self._check_partial(incoming)
            state, left_out = self._given_state(incoming)
            reported = None if incoming.partial else left_out
            made = self._judge(first, incoming, state, reported)
            self.waiting.forget(event_id)
        else:
            missing = self.missing_for(first)
            if missing:
                self.waiting.hold(WaitingEvent(first, incoming.live, missing))
                if incoming.backfilled:
                    self.waiting_backfilled.add(event_id)
                return self._waits(event_id)
            if incoming.live:
                ends, most = self.extremities, self.limits.max_extremities
                check_extremities(first, ends, self.view.graph_node, self.waiting, most)
            made = self._judge(first, incoming, None)
        self._release(event_id)
        return made

    def _check_partial(self, incoming: IncomingEvent) -> None:
        """Check that the room may have partial state.

        :raises RoomNotPartial: it may not
        """
        if not incoming.partial or self.partial:
            return
        room = self.room
        if partial_room(self.txn, room.room_no) is None:
            raise RoomNotPartial(event_id=incoming.event.event_id, room_id=room.room_id)

    def _take_in_outlier(self, incoming: IncomingEvent) -> PersistedEvent:
        event = self._first_received(incoming.event)
        row = self.memory.rows.get(event.event_id)
        if row is not None:
            return PersistedEvent(
                event.event_id, EventOutcome.KNOWN, row.event_no, row.stream_id, row.topological
            )
        judged: Judged[StoredState] = judge_outlier(event, self.view)
        made = self._keep(judged, incoming)
        self._release(event.event_id)
        return made

    def _first_received(self, event: Event) -> Event:
        """The event with this ID that came first."""
        event_id = event.event_id
        if event_id in self.memory.rows:
            return self.view.known_events([event_id]).events[event_id]
        return self.waiting.get(event_id) or event

    def missing_for(self, event: Event) -> set[str]:
        """What must be here before an event can be judged."""
        self.view.load(_dependencies(event))
        here = self.memory.rows
        missing = {each for each in auth_dependencies(event) if each not in here}
        for each in event.prev_event_ids:
            if each not in here or not here[each].can_be_followed:
                missing.add(each)
        return missing

    def _waits(self, event_id: str) -> PersistedEvent:
        missing = next(each.missing for each in self.waiting if each.event.event_id == event_id)
        return PersistedEvent(event_id, EventOutcome.WAITING, missing=sorted(missing))

    def _given_state(self, incoming: IncomingEvent) -> tuple[StoredState, list[int]]:
        """A state that another server reported, without events that are finally rejected.

        :returns: with those of them that are judged again while the room is partial
        """
        state = incoming.state_before or {}
        here = self.view.rows(set(state.values()))
        missing = sorted({each for each in state.values() if each not in here})
        if missing:
            raise UnknownEvents(
                missing=", ".join(missing[:5]),
                room_id=self.room.room_id,
                event_id=incoming.event.event_id,
            )
        final = {each for each, row in here.items() if row.is_rejected and not row.flags & _PARTIAL}
        kept = {key: each for key, each in state.items() if each not in final}
        left_out = [here[each].event_no for each in sorted(final) if here[each].is_judged_again]
        return self.memory.empty.with_delta(StateDelta(kept)), left_out

    def _judge(
        self,
        event: Event,
        incoming: IncomingEvent,
        state: StoredState | None,
        left_out: Sequence[int] | None = None,
    ) -> PersistedEvent:
        judged: Judged[StoredState] = judge(
            event,
            self.view,
            state,
            partial=incoming.partial or None,
            live=incoming.live and (state is None or incoming.checked_by_room),
            cache=self.memory.resolutions,
        )
        if incoming.soft_failure is not None and judged.passed_all_checks:
            judged = replace(judged, failed=Check.CURRENT_STATE, soft_failure=incoming.soft_failure)
        return self._keep(judged, incoming, left_out)

    def _release(self, event_id: str) -> None:
        """Judge the events that waited only for this one, and those that waited for them in turn."""
        here = deque([event_id])
        while here:
            done = here.popleft()
            with_state = not self.memory.rows[done].is_outlier
            for event, live, _ in self.waiting.arrived(done, with_state):
                backfilled = event.event_id in self.waiting_backfilled
                with suppress(*EVENT_REFUSALS):  # it can be sent again
                    self._judge(event, IncomingEvent(event, live, backfilled), None)
                    here.append(event.event_id)

    # -- outcomes ------------------------------------------------------------------------

    def _keep(
        self,
        judged: Judged[StoredState],
        incoming: IncomingEvent,
        left_out: Sequence[int] | None = None,
    ) -> PersistedEvent:
        event = judged.event
        event_id = event.event_id
        old = self.memory.rows.get(event_id)
        event_no = self._next_event_no() if old is None else old.event_no
        row = self.event_rows.row(judged, event_no, old, self.partial > 0)
        if incoming.outgoing:
            row = row._replace(flags=row.flags | _OUTGOING)
        if not incoming.backfilled and not row.is_outlier and self._is_after_gap(event):
            row = row._replace(flags=row.flags | _AFTER_GAP)
        if old is not None and old.is_rejected != row.is_rejected:
            # Resolutions depend on which events are rejected.
            self.memory.resolutions.clear()
        pending = self.judged.get(event_id)
        was_outlier = old is not None if pending is None else pending.was_outlier
        self.judged[event_id] = PendingEvent(
            row,
            event,
            incoming.backfilled,
            was_outlier,
            judged.refusal or judged.soft_failure,
            left_out,
        )
        self.order = [each for each in self.order if each != event_id] if pending else self.order
        self.order.append(event_id)
        at = EventAt(judged.state_after, judged.partial, judged.topological)
        self.view.keep(row, event, at)
        self.partial += judged.partial
        if judged.state_before is not None:
            was_here = self.memory.comes_back(event)
            passed = judged.passed_all_checks
            self.extremities.add(
                event_id, judged, self.view.graph_node, is_followed=was_here and passed
            )
        self._update_view()
        return self.judged[event_id].outcome()

    def _is_after_gap(self, event: Event) -> bool:
        """Whether events before it are not here."""
        backward = self.memory.backward
        return any(each in backward for each in event.prev_event_ids)

    def _next_event_no(self) -> int:
        if not self._event_nos:
            self._event_nos.extend(take_numbers(self.txn, 64, 0)[0])
        return self._event_nos.popleft()

    def pending(self) -> Iterator[PendingEvent]:
        """What was judged, in that order."""
        for event_id in self.order:
            yield self.judged[event_id]


def _is_storable(key: StateKey) -> bool:
    return "\0" not in key[0] and "\0" not in key[1]


def _dependencies(event: Event) -> tuple[str, ...]:
    return (*event.prev_event_ids, *auth_dependencies(event))
