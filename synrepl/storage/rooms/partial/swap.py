"""Completes a partial room: in one transaction, all that was found out takes effect.

Events get their new verdicts and states, the room its forward extremities and its current state, and the room stops being
partial. Facts tell followers: that the room and its events have their full state, and what changed of the current
state. Source: seed "How do faster joins work?", "Fixing the approximation with a resync".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.core.tokens import Token
from synrepl.rooms import RoomVersion, lookup_state_after, room_version, run
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.maintenance.event_places_rebuild import place_events_from
from synrepl.storage.rooms.partial.abandoning import remove_partial_rows
from synrepl.storage.rooms.partial.device_list_pokes import note_device_lists
from synrepl.storage.rooms.partial.jobs import ClaimLost, ResyncJob, require_claim
from synrepl.storage.rooms.partial.rejudge_order import next_to_judge
from synrepl.storage.rooms.partial.rejudging import RejudgeBatch
from synrepl.storage.rooms.partial.resynced_ends import NewEnds, new_ends
from synrepl.storage.rooms.partial.resynced_redactions import correct_redactions
from synrepl.storage.rooms.partial.swap_facts import append_swap_facts, rows_of_events
from synrepl.storage.rooms.partial.swapped_state import StateSwap, swap_current_state
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.events import STAYING_FLAGS, EventFlags
from synrepl.storage.rooms.tables.heads import write_forward
from synrepl.storage.rooms.tables.numbers import RoomRow, lock_room
from synrepl.storage.rooms.tables.partial_rooms import (
    ResyncPhase,
    end_resync,
    partial_room,
    servers_in_room,
)
from synrepl.storage.rooms.tables.pending_rows import PendingRows
from synrepl.storage.rooms.visibility.audience import BESIDE_BIT
from synrepl.storage.rooms.visibility.event_places import EventPlaces, event_places
from synrepl.streams.synapse.events import EVENTS

#: Events that came since the last batch was judged, up to which they are judged in the transaction that completes the room.
MAX_LAST = 200

_STAYING = int(STAYING_FLAGS)


class Completion(NamedTuple):
    """What became of an attempt to complete a room.

    :ivar is_complete: False: more events must be judged first
    :ivar events: number of events that have their full state now
    :ivar wrongly_accepted: of these, how many were accepted and are rejected now
    :ivar wrongly_rejected: and the other way round
    :ivar changed_entries: number of entries of the current state that changed
    """

    is_complete: bool
    events: int = 0
    wrongly_accepted: int = 0
    wrongly_rejected: int = 0
    changed_entries: int = 0


class SwapRun:
    """Completes a room, as a work function.

    :param server_name: of this server
    """

    def __init__(self, job: ResyncJob, server_name: str, limits: RoomLimits) -> None:
        self._job = job
        self._server_name = server_name
        self._limits = limits

    def __call__(self, txn: Transaction, outbox: Outbox) -> Completion:
        """Complete the room, unless more events must be judged first.

        :raises ClaimLost: another process has the job, or the room was removed
        """
        room = lock_room(txn, self._job.room_no)
        job = require_claim(txn, self._job)
        if room.epoch != job.epoch or partial_room(txn, room.room_no) is None:
            raise ClaimLost(room_id=job.room_id)
        version = room_version(room.version)
        memory = RoomMemory(room.room_no, room.epoch, room.revision)
        batch = RejudgeBatch(txn, room, version, memory, self._limits)
        if not _judge_last(txn, batch):
            return Completion(False)
        counts = _counts(txn, room.room_no)
        ends = new_ends(txn, room.room_no)
        group = _current_group(batch, version, ends)
        unapplied = correct_redactions(txn, batch)
        batch.states.finish()
        batch.rows.flush(txn)
        event_rows = rows_of_events(txn, room.room_no)
        _apply_outcomes(txn, room)
        _write_ends(txn, room.room_no, ends)
        told = servers_in_room(txn, room.room_no)
        state = batch.groups.state(group)
        swapped = swap_current_state(txn, room.room_no, state, self._server_name)
        append_swap_facts(outbox, txn, room, swapped, event_rows, counts.events)
        note_device_lists(txn, room.room_no, told, self._server_name)
        remove_partial_rows(txn, room.room_no)
        txn.execute("DELETE FROM synrepl._resync_events WHERE room_no = %s", (room.room_no,))
        end_resync(txn, room.room_no, ResyncPhase.DONE)
        txn.execute(
            "UPDATE synrepl._room_heads SET extremities = %s, current_group = %s, partial = 0,"
            " unapplied = unapplied + %s WHERE room_no = %s",
            (len(ends.new), group, unapplied, room.room_no),
        )
        txn.execute(
            "UPDATE synrepl._rooms SET revision = revision + 1, reworked = reworked + 1 WHERE room_no = %s",
            (room.room_no,),
        )
        outbox.after_reserving(lambda txn, tokens: _write_numbered(txn, tokens, room, swapped))
        return counts._replace(changed_entries=len(swapped.change))


def _judge_last(txn: Transaction, batch: RejudgeBatch) -> bool:
    """Judge what came since the last batch; False if that is too much, or a state must be requested."""
    left = next_to_judge(txn, batch.room.room_no, MAX_LAST)
    if left.left > MAX_LAST:
        return False
    while left.left:
        if not left.events:
            return False
        batch.judge(left.events)
        batch.write()
        left = next_to_judge(txn, batch.room.room_no, MAX_LAST)
    return True


def _counts(txn: Transaction, room_no: int) -> Completion:
    rejected = int(EventFlags.REJECTED)
    txn.execute(
        "SELECT count(*),"
        f" count(*) FILTER (WHERE e.flags & {rejected} = 0 AND r.full_flags & {rejected} <> 0),"
        f" count(*) FILTER (WHERE e.flags & {rejected} <> 0 AND r.full_flags & {rejected} = 0)"
        " FROM synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)"
        " WHERE r.room_no = %s",
        (room_no,),
    )
    return Completion(True, *map(int, txn.fetchone()))


def _current_group(batch: RejudgeBatch, version: RoomVersion, ends: NewEnds) -> int:
    """The group of the new current state."""
    memory, view = batch.memory, batch.view
    named = batch.named_events(ends.new)
    view.forward_extremities = frozenset(named)
    view.load(named)
    state: StoredState = run(lookup_state_after(version, sorted(named), memory.resolutions), view)
    after = [memory.at[each].state_after for each in sorted(named)]
    return batch.states.group_of(state, [each for each in after if each is not None])


def _apply_outcomes(txn: Transaction, room: RoomRow) -> None:
    """Give events their new verdicts, states and audiences, and their places along the main line."""
    room_no = room.room_no
    places, first = _places_before(txn, room_no)
    txn.execute(
        "DELETE FROM synrepl._branch_memberships b USING synrepl._resync_events r"
        " WHERE r.room_no = %(room)s AND b.room_no = %(room)s AND b.event_no = r.event_no",
        {"room": room_no},
    )
    txn.execute(
        f"UPDATE synrepl._room_events e SET flags = (e.flags & {_STAYING}) | (r.full_flags & ~{_STAYING}),"
        " refusal = r.full_refusal, group_before = r.full_before, group_after = r.full_after,"
        f" audience = r.full_audience | CASE WHEN e.stream_id < 0 THEN {BESIDE_BIT} ELSE 0 END,"
        " reach = NULL FROM synrepl._resync_events r"
        " WHERE r.room_no = %s AND e.event_no = r.event_no",
        (room_no,),
    )
    if first is not None:
        place_events_from(txn, room, places, first - 1)


def _places_before(txn: Transaction, room_no: int) -> tuple[EventPlaces, int | None]:
    """The places of the events before those that were judged again, and the first stream ordering of these."""
    txn.execute(
        "SELECT min(e.stream_id) FROM synrepl._resync_events r"
        " JOIN synrepl._room_events e USING (event_no) WHERE r.room_no = %s AND e.stream_id > 0",
        (room_no,),
    )
    (first,) = txn.fetchone()
    if first is None:
        return EventPlaces(), None
    return event_places(txn, room_no, before=int(first)), int(first)


def _write_ends(txn: Transaction, room_no: int, ends: NewEnds) -> None:
    rows = PendingRows()
    write_forward(rows, room_no, sorted(ends.old - ends.new), sorted(ends.new - ends.old))
    rows.run(
        "UPDATE synrepl._backward_extremities SET is_followed = missing_id = ANY (%s::text[])"
        " WHERE room_no = %s AND is_followed <> (missing_id = ANY (%s::text[]))",
        (sorted(ends.followed), room_no, sorted(ends.followed)),
    )
    rows.flush(txn)


def _write_numbered(
    txn: Transaction,
    tokens: Mapping[str, Sequence[Token]],
    room: RoomRow,
    swapped: StateSwap,
) -> None:
    """Write the rows that have the stream ID of the fact that tells of the change: few, because positions wait."""
    stream_id = EVENTS.stream_id(tokens[EVENTS.name][0])
    txn.execute(
        "UPDATE synrepl._room_heads SET state_stream_id = greatest(state_stream_id, %s),"
        " completed_stream_id = %s WHERE room_no = %s",
        (stream_id, stream_id, room.room_no),
    )
    txn.execute(
        "UPDATE synrepl._memberships SET stream_id = %s WHERE room_no = %s AND user_id = ANY (%s::text[])",
        (stream_id, room.room_no, list(swapped.members)),
    )
    txn.execute(
        "INSERT INTO synrepl._membership_history (stream_id, room_no, is_purged, user_id, membership)"
        " SELECT %s, %s, false, u.user_id, m.membership FROM unnest(%s::text[]) AS u (user_id)"
        " LEFT JOIN synrepl._memberships m ON m.room_no = %s AND m.user_id = u.user_id",
        (
            stream_id,
            room.room_no,
            sorted({*swapped.members, *swapped.removed_members}),
            room.room_no,
        ),
    )
