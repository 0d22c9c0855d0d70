"""Persists a partial join: what its answer brings, the join, and the job that completes the room, in one transaction.

Source: seed "How do faster joins work?", "Overview" and "Joining after a partial join".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.rooms import (
    Event,
    IncompleteAnswer,
    PartialJoin,
    StateKey,
    auth_dependencies,
    check_send_join_response,
    topological_sort,
)
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.room_memory import RoomMemories
from synrepl.storage.rooms.tables.events import EventFlags, StoredEvent, refusal_of
from synrepl.storage.rooms.tables.incoming import EventOutcome, IncomingEvent, PersistedEvent
from synrepl.storage.rooms.tables.numbers import OpenedRoom, RoomRow
from synrepl.storage.rooms.tables.partial_rooms import (
    MAX_ROOM_SERVERS,
    PartialRoomRow,
    add_partial_room,
    is_abandoned,
    partial_room,
    resume_abandoned,
)
from synrepl.storage.short_work import Opening
from synrepl.streams.row import Json
from synrepl.streams.synapse.caches import CACHES, CachesRow
from synrepl.streams.synapse.un_partial_stated_room import IS_PARTIAL_CACHE

#: Types of the events that a state must have, if the room has them.
_ESSENTIAL = ("m.room.create", "m.room.power_levels", "m.room.join_rules")


class JoinRejected(Refused):
    """the join of room {room_id} is not allowed by the state that came with it: {reason}; join through another server"""


class PartialJoinAnswer(NamedTuple):
    """A partial join to persist.

    :ivar join: the answer, whose events have passed checks 1 to 3
    :ivar joined_via: the server that answered
    :ivar device_lists_stream_id: the position of the stream ``device_lists`` before the join was sent
    """

    join: PartialJoin
    joined_via: str
    device_lists_stream_id: int = 0


class PartialJoinRun(PersistRun):
    """One run of persisting a partial join, as a work function.

    A room that is partial stays so, with the servers and the job that it has. One that has its full state becomes
    partial again, in a new epoch, unless everything that the join follows is here.

    :ivar is_partial: whether the room is partial
    """

    def __init__(
        self,
        answer: PartialJoinAnswer,
        memories: RoomMemories,
        room_nos: Mapping[str, int],
        limits: RoomLimits,
    ) -> None:
        """
        :raises IncompleteAnswer: the answer lacks essential state, or the servers in the room
        """
        join, state, chain, servers = answer.join
        self._answer, self._join = answer, join
        self._state = _by_key(join, state)
        auth_chain = list(chain)
        check_send_join_response(join, self._state.values(), auth_chain, servers)
        self._outliers = _sorted([*auth_chain, *self._state.values()])
        super().__init__(
            join.room_id,
            join.version.name,
            [*(IncomingEvent(each, outlier=True) for each in self._outliers), IncomingEvent(join)],
            memories,
            room_nos,
            limits,
            reserves_early=False,
        )
        self.is_partial = False

    def opening(self, outbox: Outbox) -> Opening | None:
        """None: it is never short."""
        return None

    def _open(self, txn: Transaction, new_ids: Sequence[str]) -> OpenedRoom:
        """Lock the room, which is partial again if it was when its last users left."""
        opened = super()._open(txn, new_ids)
        self.is_partial = is_abandoned(txn, opened.room.room_no)
        return self._partial_again(txn, opened) if self.is_partial else opened

    def _partial_again(self, txn: Transaction, opened: OpenedRoom) -> OpenedRoom:
        room = opened.room._replace(epoch=opened.room.epoch + 1)
        self._add_partial_room(txn, room)
        resume_abandoned(txn, room.room_no)
        return opened._replace(room=room)

    def _persist(self, txn: Transaction, outbox: Outbox, opened: OpenedRoom) -> PersistRun:
        """Persist it; other processes drop what they have cached of whether the room is partial."""
        run = super()._persist(txn, outbox, opened)
        if self.is_partial:
            key: list[Json] = [self._join.room_id]
            outbox.append(CACHES, [CachesRow(IS_PARTIAL_CACHE, key, opened.now_ms)])
        return run

    def _arrived(self, batch: RoomBatch) -> Sequence[IncomingEvent]:
        """The answer's events, with the partial state before the join if that cannot be derived."""
        rows = batch.view.rows([self._join.event_id, *self._join.prev_event_ids])
        known = rows.get(self._join.event_id)
        outliers = [IncomingEvent(each, outlier=True) for each in self._outliers]
        is_here = known is not None and not known.is_outlier
        parents = [rows.get(each) for each in self._join.prev_event_ids]
        if is_here or all(each is not None and not each.is_outlier for each in parents):
            return [*outliers, IncomingEvent(self._join)]
        self._make_partial(batch)
        entries = {key: each.event_id for key, each in self._state.items()}
        return [*outliers, IncomingEvent(self._join, state_before=entries, partial=True)]

    def _make_partial(self, batch: RoomBatch) -> None:
        room_no = batch.room.room_no
        if partial_room(batch.txn, room_no) is not None:
            return
        room = batch.room._replace(epoch=batch.room.epoch + 1)
        self._add_partial_room(batch.txn, room)
        batch.memory.epoch = room.epoch

    def _add_partial_room(self, txn: Transaction, room: RoomRow) -> None:
        _, joined_via, device_lists_stream_id = self._answer
        row = PartialRoomRow(
            room.room_no, room.epoch, device_lists_stream_id, self._join.event_id, joined_via
        )
        add_partial_room(txn, row, sorted(self._answer.join.servers)[:MAX_ROOM_SERVERS])

    def _check(self, batch: RoomBatch, given: Sequence[PersistedEvent]) -> None:
        """Check the outcomes.

        :raises IncompleteAnswer: essential state was rejected
        :raises JoinRejected: the join was
        :raises SynreplError: an event was refused
        """
        for each in given:
            if each.error is not None:
                raise each.error
        rows, room_id = batch.memory.rows, self._join.room_id
        for kind in _ESSENTIAL:
            event = self._state.get((kind, ""))
            row = None if event is None else rows[event.event_id]
            if row is not None and row.is_rejected:
                reason = f"is of no use: its {kind} {row.event_id} is rejected ({_reason(row)})"
                raise IncompleteAnswer(room_id=room_id, reason=reason)
        if given[-1].outcome is EventOutcome.WAITING:
            raise JoinRejected(room_id=room_id, reason="events that it cites did not come with it")
        joined = rows[self._join.event_id]
        if not joined.passed_all_checks:
            raise JoinRejected(room_id=room_id, reason=_reason(joined))
        self.is_partial = self.is_partial or bool(joined.flags & EventFlags.PARTIAL)


def _by_key(join: Event, state: Iterable[Event]) -> Mapping[StateKey, Event]:
    """The state of an answer.

    :raises IncompleteAnswer: it is none
    """
    found: dict[StateKey, Event] = {}
    for event in state:
        if event.state_key is None:
            reason = f"has {event.event_id} as part of a state, and that is no state event"
            raise IncompleteAnswer(room_id=join.room_id, reason=reason)
        other = found.setdefault((event.type, event.state_key), event)
        if other.event_id != event.event_id:
            reason = f"has two events for one key of a state, {other.event_id} and {event.event_id}"
            raise IncompleteAnswer(room_id=join.room_id, reason=reason)
    return found


def _reason(row: StoredEvent) -> str:
    return "" if row.refusal is None else refusal_of(row.refusal)[1].sentence


def _sorted(events: Sequence[Event]) -> list[Event]:
    """Events with their auth events first; those in a cycle last, which are refused."""
    order = topological_sort(events, dependencies=auth_dependencies)
    return [*order.events, *order.in_cycles]
