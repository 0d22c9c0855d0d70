"""Judges events of a partial room again, at the full states before them.

The outcomes are kept beside what is stored, and change nothing that anybody sees until the room becomes complete. So
the rules look at a view in which events that were judged again have their new verdicts and states, and the others those that
they had. Source: seed "How do faster joins work?", "Fixing the approximation with a resync".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from synrepl.rooms import Delta, Event, Judged, RoomVersion, StateKey, judge, judge_outlier
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.rejudge_order import EventToJudge
from synrepl.storage.rooms.persisting.batch_states import GroupNumbers, StateWriter
from synrepl.storage.rooms.persisting.event_rows import EventRows
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.persisting.view import StoredRoomView
from synrepl.storage.rooms.states.group_writer import GroupWriter
from synrepl.storage.rooms.states.state_handle import EventAt, StoredState
from synrepl.storage.rooms.tables.events import EventFlags, StoredEvent, events_by_number
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import RoomRow, event_ids_of, keys_of
from synrepl.storage.rooms.tables.pending_rows import PendingRows, array_text

#: Flags that an event keeps, or gets by being judged.
_KEPT = int(EventFlags.OUTLIER | EventFlags.REJECTED | EventFlags.SOFT_FAILED | EventFlags.ERASED)


class RejudgedView(StoredRoomView):
    """A room with the new verdicts and states of the events that were judged again."""

    def __init__(
        self,
        txn: Transaction,
        room: RoomRow,
        version: RoomVersion,
        memory: RoomMemory,
        groups: GroupWriter,
        max_resolved: int,
    ) -> None:
        super().__init__(txn, room, version, memory, groups, max_resolved)
        #: Events that were not judged again when this transaction began.
        self._unjudged: set[int] = set()

    def load(self, event_ids: Collection[str]) -> None:
        """Read rows of events into memory, with their new outcomes."""
        super().load(event_ids)
        rows = self.memory.rows
        pending = [
            rows[each]
            for each in event_ids
            if each in rows
            and rows[each].is_judged_again
            and rows[each].event_no not in self._unjudged
        ]
        if pending:
            self._read_outcomes(pending)

    def _read_outcomes(self, pending: Sequence[StoredEvent]) -> None:
        self._txn.execute(
            "SELECT event_no, full_flags, full_before, full_after FROM synrepl._resync_events"
            " WHERE event_no = ANY (%s::bigint[]) AND full_flags IS NOT NULL",
            (array_text([each.event_no for each in pending]),),
        )
        outcomes = {row[0]: row[1:] for row in self._txn.fetchall()}
        memory = self.memory
        for row in pending:
            if row.event_no not in outcomes:
                self._unjudged.add(row.event_no)
                continue
            flags, before, after = outcomes[row.event_no]
            fresh = row._replace(flags=flags, group_before=before, group_after=after)
            memory.rows[row.event_id] = fresh
            state = None if after is None else memory.handle(after)
            memory.at[row.event_id] = memory.at[row.event_id]._replace(
                state_after=state, partial=False
            )
            if fresh.is_rejected:
                memory.rejected.add(row.event_id)
            else:
                memory.rejected.discard(row.event_id)


class RejudgeBatch:
    """Judges some events of a room again in one transaction, whose room is locked.

    :param memory: of earlier batches; as of the revision of the room
    :ivar view: of the room
    :ivar group_numbers: draws the numbers of new groups
    :ivar groups: makes groups of states; :ivar states: decides which
    :ivar rows: rows to be written
    :ivar outcomes: the events that were judged, as rows with their new outcomes
    """

    def __init__(
        self,
        txn: Transaction,
        room: RoomRow,
        version: RoomVersion,
        memory: RoomMemory,
        limits: RoomLimits,
    ) -> None:
        self._txn = txn
        self.room = room
        self.rows = PendingRows()
        self.memory = memory
        self.group_numbers = GroupNumbers(txn, ())
        self.groups = GroupWriter(
            txn,
            room,
            self.rows,
            memory.groups,
            self.group_numbers.take,
            memory.keys.get,
            memory.ids.get,
        )
        self.view = RejudgedView(txn, room, version, memory, self.groups, limits.max_resolved)
        self.states = StateWriter(txn, self.view, self.groups, self.rows)
        if memory.heads is None:
            memory.heads = read_heads(txn, room.room_no)
        self._rows_of = EventRows(self.view, self.states)
        self.outcomes: list[StoredEvent] = []

    def judge(self, events: Sequence[EventToJudge]) -> None:
        """Judge events again, each after those that it depends on."""
        stored = events_by_number(self._txn, [each.event_no for each in events])
        self.view.load([each.event_id for each in stored.values()])
        known = self.view.known_events([each.event_id for each in stored.values()]).events
        for each in events:
            row = stored[each.event_no]
            self._judge(each, row, known[row.event_id])

    def _judge(self, wanted: EventToJudge, row: StoredEvent, event: Event) -> None:
        memory, view = self.memory, self.view
        judged: Judged[StoredState]
        if row.is_outlier:
            judged = judge_outlier(event, view)
        elif wanted.reported_group is None:
            judged = judge(event, view, live=False, cache=memory.resolutions)
        else:
            state = self._reported_state(wanted)
            judged = judge(event, view, state, partial=False, live=False, cache=memory.resolutions)
        made = self._rows_of.row(judged, row.event_no, row)
        fresh = row._replace(
            flags=made.flags & _KEPT,
            refusal=made.refusal,
            audience=made.audience,
            group_before=made.group_before,
            group_after=made.group_after,
        )
        if fresh.is_rejected != (row.event_id in memory.rejected):
            # Resolutions depend on which events are rejected.
            memory.resolutions.clear()
        topological = memory.at[row.event_id].topological
        view.keep(fresh, event, EventAt(judged.state_after, False, topological))
        if fresh.group_after is not None:
            self._stay_near(fresh.group_after)
        self.outcomes.append(fresh)

    def _stay_near(self, group: int) -> None:
        """Make new groups as changes of this one: the current state of the partial room is far from all full states."""
        assert self.memory.heads is not None
        self.memory.heads = self.memory.heads._replace(current_group=group)

    def named_events(self, numbers: Collection[int]) -> list[str]:
        """The IDs of events of the room."""
        return list(event_ids_of(self._txn, self.room.room_no, numbers).values())

    def _reported_state(self, wanted: EventToJudge) -> StoredState:
        """The full state that another server reported, without what is rejected now, and with what is not any more."""
        assert wanted.reported_group is not None
        state = self.memory.handle(wanted.reported_group)
        self._stay_near(wanted.reported_group)
        doubtful = events_by_number(self._txn, [*wanted.doubtful, *wanted.left_out])
        slots = {each.slot for each in doubtful.values() if each.slot is not None}
        keys = keys_of(self._txn, self.room.room_no, slots)
        self.view.load([each.event_id for each in doubtful.values()])
        removed: set[StateKey] = set()
        added: dict[StateKey, str] = {}
        for number, each in doubtful.items():
            if each.slot is None:
                continue
            is_rejected = each.event_id in self.memory.rejected
            if number in wanted.left_out and not is_rejected:
                added[keys[each.slot]] = each.event_id
            elif number in wanted.doubtful and is_rejected:
                removed.add(keys[each.slot])
        return state.with_delta(Delta(added, frozenset(removed - added.keys())))

    def write(self) -> None:
        """Write the outcomes beside what is stored, and the groups of the new states."""
        self.states.finish()
        self.rows.flush(self._txn)
        write_outcomes(self._txn, self.outcomes)
        self.outcomes.clear()
        self._txn.execute(
            "UPDATE synrepl._rooms SET revision = revision + 1 WHERE room_no = %s RETURNING revision",
            (self.room.room_no,),
        )
        (self.memory.revision,) = self._txn.fetchone()


def write_outcomes(txn: Transaction, outcomes: Sequence[StoredEvent]) -> None:
    """Write what became of events that were judged again."""
    if not outcomes:
        return
    columns: list[list[object]] = [
        [each.event_no for each in outcomes],
        [each.group_before for each in outcomes],
        [each.group_after for each in outcomes],
        [each.flags for each in outcomes],
        [each.audience for each in outcomes],
        [each.refusal for each in outcomes],
    ]
    txn.execute(
        "UPDATE synrepl._resync_events r SET full_before = o.before, full_after = o.after,"
        " full_flags = o.flags, full_audience = o.audience, full_refusal = o.refusal"
        " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::smallint[], %s::int[], %s::text[])"
        " AS o (event_no, before, after, flags, audience, refusal) WHERE r.event_no = o.event_no",
        [array_text(column) for column in columns],
    )
