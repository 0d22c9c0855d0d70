"""Writes everything that a batch of events of one room changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synrepl.core.tokens import Token
from synrepl.rooms import Delta
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.batch_facts import FactPlaces, append_facts
from synrepl.storage.rooms.persisting.batch_memberships import membership_changes
from synrepl.storage.rooms.persisting.batch_places import place_row
from synrepl.storage.rooms.persisting.batch_redactions import apply_redactions
from synrepl.storage.rooms.tables.events import (
    EVENTS_TABLE,
    JSON_TABLE,
    StoredEvent,
    event_row,
    json_row,
)
from synrepl.storage.rooms.tables.heads import (
    BACKWARD_TABLE,
    StoredHeads,
    write_current_state,
    write_forward,
    write_heads,
    write_memberships,
    write_state_only,
)
from synrepl.storage.rooms.tables.membership_history import write_past_memberships
from synrepl.storage.rooms.tables.partial_rooms import write_partial_events
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.storage.rooms.tables.pending_rows import PendingRows, array_text
from synrepl.storage.rooms.tables.waiting import (
    WAITING_TABLE,
    drop_oldest_waiting,
    forget_waiting,
)
from synrepl.streams.synapse.backfill import BACKFILL
from synrepl.streams.synapse.events import EVENTS


class RoomBatchWriter:
    """Writes what a batch changes."""

    def __init__(self, batch: RoomBatch, max_waiting: int) -> None:
        self.batch = batch
        self._max_waiting = max_waiting
        still = {each.event.event_id: each for each in batch.waiting}
        self._now_waiting = [each for key, each in still.items() if key not in batch.stored_waiting]
        self._released = [each for each in batch.stored_waiting if each not in still]
        self._waits_for_less = {
            each: sorted(still[each].missing)
            for each, stored in batch.stored_waiting.items()
            if each in still and still[each].missing != set(stored.missing)
        }

    @property
    def changes_something(self) -> bool:
        """Whether there is anything to write."""
        batch = self.batch
        return bool(batch.is_new or batch.order or self._now_waiting or self._released)

    def write(self, outbox: Outbox) -> None:
        """Write all rows but those that need tokens, and append the facts."""
        batch = self.batch
        room_no = batch.room.room_no
        rows = batch.rows
        unapplied = apply_redactions(batch)
        self._link_backfilled()
        ends = batch.extremities.event_ids
        group, change = batch.states.current_state(ends)
        waiting = self._write_waiting(rows)
        pending = list(batch.pending())
        rows.extend(
            JSON_TABLE,
            [json_row(each.row.event_no, each.event) for each in pending if not each.was_outlier],
        )
        if batch.partial:
            write_partial_events(rows, room_no, pending)
        batch.states.finish()
        write_current_state(rows, room_no, batch.states.numbered(change).items())
        numbers = batch.view.event_nos([*ends, *batch.old_ends])
        write_forward(
            rows,
            room_no,
            [numbers[each] for each in batch.old_ends - ends],
            [numbers[each] for each in ends - batch.old_ends],
        )
        self._write_backward(rows)
        batch.states.types({each.row.type for each in pending})
        rows.run(
            "UPDATE synrepl._rooms SET revision = revision + 1, slots = %s WHERE room_no = %s",
            (batch.states.slots, room_no),
        )
        # Positions wait for what is done after tokens are reserved; one more round trip is worse
        # than a few rows.
        if waiting is None or not rows.are_few:
            rows.flush(batch.txn)
        if waiting is None:
            waiting = drop_oldest_waiting(batch.txn, room_no, self._max_waiting)
        places = append_facts(outbox, batch.room.room_id, pending, change, batch.now_ms)
        heads = self._heads(group, waiting, batch.heads.unapplied + unapplied)
        outbox.after_reserving(
            lambda txn, tokens: self._write_numbered(txn, tokens, places, change, heads)
        )

    def _write_numbered(
        self,
        txn: Transaction,
        tokens: Mapping[str, Sequence[Token]],
        places: FactPlaces,
        change: Delta,
        heads: StoredHeads,
    ) -> None:
        """Write the rows that have stream IDs: events, memberships, heads."""
        batch = self.batch
        live = tokens.get(EVENTS.name, ())
        old = tokens.get(BACKFILL.name, ())
        rows = batch.rows
        types = batch.memory.types
        newest = heads.stream_id
        oldest = heads.oldest_stream_id
        for event_id in batch.order:
            pending = batch.judged[event_id]
            row = pending.row
            stream_id = row.stream_id
            if row.event_no in places.live:
                stream_id = newest = EVENTS.stream_id(live[places.live[row.event_no]])
            elif row.event_no in places.backfilled:
                stream_id = oldest = BACKFILL.stream_id(old[places.backfilled[row.event_no]])
            row = place_row(batch, row, stream_id, rows)
            batch.judged[event_id] = PendingEvent(row, *pending[1:])
            batch.memory.rows[event_id] = row
            if pending.was_outlier:
                _update(rows, row, types)
            else:
                rows.add(EVENTS_TABLE, event_row(row, types))
        stream_ids = [EVENTS.stream_id(token) for token in live]
        current, exceptions = membership_changes(batch, change, places, stream_ids)
        write_memberships(rows, heads.room_no, current)
        write_past_memberships(rows, heads.room_no, exceptions)
        heads = heads._replace(stream_id=newest, oldest_stream_id=oldest)
        write_heads(rows, heads, batch.is_new)
        if places.entries and not places.live:
            write_state_only(rows, heads.room_no, max(stream_ids))
        rows.flush(txn)
        batch.memory.heads = heads

    def _link_backfilled(self) -> None:
        """Give the events that follow a new one its number; it is no backward extremity any more."""
        batch = self.batch
        for event_id in batch.order:
            row = batch.judged[event_id].row
            children = batch.memory.backward.get(event_id)
            if children is None or row.is_outlier:
                continue
            del batch.memory.backward[event_id]
            batch.memory.purged.discard(event_id)
            by_number = {each.row.event_no: each for each in batch.judged.values()}
            for child_no in sorted(children):
                child = by_number.get(child_no)
                if child is not None:
                    linked = [*child.row.prev_nos, row.event_no]
                    fresh = child.row._replace(prev_nos=linked)
                    batch.judged[fresh.event_id] = child._replace(row=fresh)
                    batch.memory.rows[fresh.event_id] = fresh
                    children = children - {child_no}
            if children:
                batch.rows.run(
                    "UPDATE synrepl._room_events SET prev_nos = prev_nos || %s::bigint"
                    " WHERE event_no = ANY (%s::bigint[])",
                    (row.event_no, sorted(children)),
                )
                for child_no in children:
                    child_id = batch.memory.ids.get(child_no)
                    if child_id is not None:
                        batch.memory.rows.pop(child_id, None)
            batch.rows.run(
                "DELETE FROM synrepl._backward_extremities WHERE room_no = %s AND missing_id = %s",
                (batch.room.room_no, event_id),
            )

    def _write_backward(self, rows: PendingRows) -> None:
        """Write the backward extremities of new events, and which of all are followed."""
        batch = self.batch
        followed = batch.extremities.missing_prev_events
        new = {each.row.event_no for each in batch.judged.values()}
        for missing_id, children in batch.memory.backward.items():
            for child_no in children & new:
                flags = missing_id in followed, missing_id in batch.memory.purged
                rows.add(BACKWARD_TABLE, (batch.room.room_no, missing_id, child_no, *flags))
        newly = sorted(followed - batch.old_followed)
        if newly:
            rows.run(
                "UPDATE synrepl._backward_extremities SET is_followed = true"
                " WHERE room_no = %s AND missing_id = ANY (%s::text[])",
                (batch.room.room_no, newly),
            )

    def _write_waiting(self, rows: PendingRows) -> int | None:
        """Write what waits; returns the number of waiting events, None if it is to be counted."""
        batch = self.batch
        room_no = batch.room.room_no
        forget_waiting(rows, room_no, self._released)
        for each in self._now_waiting:
            event = each.event
            backfilled = event.event_id in batch.waiting_backfilled
            rows.add(
                WAITING_TABLE,
                (
                    room_no,
                    event.event_id,
                    each.live,
                    backfilled,
                    sorted(each.missing),
                    event.raw,
                ),
            )
        for event_id, missing in self._waits_for_less.items():
            rows.run(
                "UPDATE synrepl._waiting_events SET missing = %s::text[]"
                " WHERE room_no = %s AND event_id = %s",
                (missing, room_no, event_id),
            )
        return None if self._now_waiting else batch.heads.waiting - len(self._released)

    def _heads(self, group: int, waiting: int, unapplied: int) -> StoredHeads:
        batch = self.batch
        old = batch.heads
        judged = list(batch.judged.values())
        full = [each.row for each in judged if not each.row.is_outlier]
        was_outlier = sum(each.was_outlier for each in judged if not each.row.is_outlier)
        outliers = sum(each.row.is_outlier and not each.was_outlier for each in judged)
        return old._replace(
            extremities=len(batch.extremities.event_ids),
            topological=max([old.topological, *(each.topological or 0 for each in full)]),
            current_group=group,
            events=old.events + len(full),
            outliers=old.outliers + outliers - was_outlier,
            partial=batch.partial,
            waiting=waiting,
            unapplied=unapplied,
        )


def _update(rows: PendingRows, row: StoredEvent, types: Mapping[str, int]) -> None:
    """Write an event that was an outlier."""
    names = EVENTS_TABLE.columns.split(", ")[4:]
    cells = event_row(row, types)[4:]
    rows.run(
        f"UPDATE {EVENTS_TABLE.name} SET {', '.join(f'{name} = %s' for name in names)}"
        " WHERE event_no = %s",
        (*[array_text(each) if isinstance(each, list) else each for each in cells], row.event_no),
    )
