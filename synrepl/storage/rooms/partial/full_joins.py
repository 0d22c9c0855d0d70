"""Joins with the whole state of a room: too many events for one transaction.

They are kept as they come (:mod:`.listed_states`), stored as outliers in batches, and only then the join is. Until then
the room has no event with its state, and what an unfinished join left is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from synrepl.core.errors import Refused
from synrepl.rooms import Event
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.partial.join_run import JoinRejected
from synrepl.storage.rooms.partial.listed_states import (
    forget_fetched,
    forget_list,
    group_of_list,
    keep_fetched,
    wrong_with_list,
)
from synrepl.storage.rooms.persisting.batch import RoomBatch
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.persist_run import PersistRun
from synrepl.storage.rooms.persisting.room_memory import RoomMemories
from synrepl.storage.rooms.tables.events import refusal_of
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedEvent
from synrepl.storage.rooms.tables.numbers import OpenedRoom, find_room, lock_room, make_room
from synrepl.storage.rooms.tables.partial_rooms import (
    PartialRoomRow,
    add_partial_room,
    is_abandoned,
    partial_room,
    resume_abandoned,
)
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.short_work import Opening

#: Seconds after which a join that does not come forward counts as unfinished.
JOIN_LEASE_S = 120

#: Types of the events that a state must have, if an event of the answer says that the room has them.
_ESSENTIAL = ("m.room.create", "m.room.power_levels", "m.room.join_rules")


class JoinUnderWay(Refused):
    """room {room_id} is being joined by process {owner!r}; wait until that is done"""


class JoinInterrupted(Refused):
    """the join of room {room_id} was interrupted, and what had been stored of it is being removed; join again"""


def begin_full_join(txn: Transaction, room_id: str, version: str, owner: str) -> int:
    """Make a room, if it is not here, and mark that it is being joined; returns its number.

    :raises JoinUnderWay: another process does so
    """
    found = find_room(txn, room_id)
    room_no = make_room(txn, room_id, version) if found is None else found.room_no
    lock_room(txn, room_no)
    txn.execute(
        "INSERT INTO synrepl._room_joins AS j (room_no, owner, leased_until)"
        f" VALUES (%s, %s, now() + make_interval(secs => {JOIN_LEASE_S}))"
        " ON CONFLICT (room_no) DO UPDATE SET owner = excluded.owner, leased_until = excluded.leased_until"
        " WHERE j.leased_until <= now() RETURNING owner",
        (room_no, owner),
    )
    if txn.fetchone_or_none() is None:
        txn.execute("SELECT owner FROM synrepl._room_joins WHERE room_no = %s", (room_no,))
        raise JoinUnderWay(room_id=room_id, owner=txn.fetchone()[0])
    forget_list(txn, room_no, with_fetched=True)
    return room_no


def require_full_join(txn: Transaction, room_no: int, room_id: str, owner: str) -> None:
    """Check that a join is under way, and let it last longer.

    :raises JoinInterrupted: it is not any more
    """
    txn.execute(
        f"UPDATE synrepl._room_joins SET leased_until = now() + make_interval(secs => {JOIN_LEASE_S})"
        " WHERE room_no = %s AND owner = %s",
        (room_no, owner),
    )
    if not txn.rowcount:
        raise JoinInterrupted(room_id=room_id)


def list_answered(
    txn: Transaction, room_no: int, state: Sequence[Event], auth_chain: Sequence[Event]
) -> None:
    """Keep what the answer has of which kind."""
    named = {each.event_id: False for each in auth_chain}
    named |= {each.event_id: True for each in state}
    txn.execute(
        "INSERT INTO synrepl._listed_events (room_no, event_id, is_state)"
        " SELECT %s, * FROM unnest(%s::text[], %s::boolean[])"
        " ON CONFLICT (room_no, event_id) DO UPDATE SET is_state = true WHERE excluded.is_state",
        (room_no, array_text(list(named)), array_text([str(each) for each in named.values()])),
    )


def keep_answered(txn: Transaction, room_no: int, events: Sequence[Event]) -> None:
    """Keep events of the answer that cannot be stored yet."""
    if events:
        keep_fetched(txn, room_no, events)


def answered_stored(txn: Transaction, room_no: int, event_ids: Collection[str]) -> None:
    """Forget that events are to be stored."""
    forget_fetched(txn, room_no, event_ids)


def fault_of_answer(txn: Transaction, room_no: int) -> str | None:
    """What is wrong with the state of an answer; None: nothing."""
    fault = wrong_with_list(txn, room_no, None)
    if fault is not None:
        return fault
    txn.execute(
        "SELECT k.type FROM (SELECT coalesce(k.type, f.type) AS type,"
        "  coalesce(k.state_key, f.state_key) AS state_key, l.is_state"
        "  FROM synrepl._listed_events l"
        "  LEFT JOIN synrepl._room_events e ON e.event_id = l.event_id AND e.room_no = l.room_no"
        "  LEFT JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot"
        "  LEFT JOIN synrepl._fetched_events f ON f.room_no = l.room_no AND f.event_id = l.event_id"
        "  WHERE l.room_no = %s) AS k"
        " WHERE k.state_key = '' AND k.type = ANY (%s::text[]) GROUP BY k.type HAVING NOT bool_or(k.is_state)",
        (room_no, list(_ESSENTIAL)),
    )
    lacking = sorted(str(kind) for (kind,) in txn.fetchall())
    return f"it lacks {', '.join(lacking)}" if lacking else None


def has_only_outliers(txn: Transaction, room_no: int) -> bool:
    """Whether a room has no event with its state, so that nobody has seen it yet."""
    heads = read_heads(txn, room_no)
    return heads is None or not heads.events


def end_full_join(txn: Transaction, room_no: int) -> None:
    """Forget that a room is being joined, and what is left of the answer."""
    forget_list(txn, room_no, with_fetched=True)
    txn.execute("DELETE FROM synrepl._room_joins WHERE room_no = %s", (room_no,))


def is_unfinished(txn: Transaction, room_no: int) -> bool:
    """Whether the join of a room was interrupted. The caller holds the room's lock."""
    txn.execute(
        "SELECT FROM synrepl._room_joins WHERE room_no = %s AND leased_until <= now()", (room_no,)
    )
    return txn.fetchone_or_none() is not None


def unfinished_joins(txn: Transaction) -> list[tuple[int, str]]:
    """Numbers and IDs of the rooms whose joins were interrupted."""
    txn.execute(
        "SELECT j.room_no, r.room_id FROM synrepl._room_joins j JOIN synrepl._rooms r USING (room_no)"
        " WHERE j.leased_until <= now()"
    )
    return [(int(room_no), str(room_id)) for room_no, room_id in txn.fetchall()]


class FullJoinRun(PersistRun):
    """One run of persisting a join whose answer is stored, as a work function.

    A room that was partial when its last users left is partial again: its older events are judged again.

    :param owner: the process that began the join
    :param joined_via: the server that answered
    :ivar is_partial: whether the room is partial
    """

    def __init__(
        self,
        join: Event,
        owner: str,
        joined_via: str,
        memories: RoomMemories,
        room_nos: Mapping[str, int],
        limits: RoomLimits,
    ) -> None:
        super().__init__(
            join.room_id,
            join.version.name,
            [IncomingEvent(join, live=False)],
            memories,
            room_nos,
            limits,
            reserves_early=False,
        )
        self._join = join
        self._owner = owner
        self._joined_via = joined_via
        self.is_partial = False

    def _open(self, txn: Transaction, new_ids: Sequence[str]) -> OpenedRoom:
        """Lock the room, which is partial again if it was when its last users left."""
        opened = super()._open(txn, new_ids)
        room_no = opened.room.room_no
        if is_abandoned(txn, room_no):
            room = opened.room._replace(epoch=opened.room.epoch + 1)
            via = self._joined_via
            add_partial_room(
                txn, PartialRoomRow(room_no, room.epoch, 0, self._join.event_id, via), [via]
            )
            resume_abandoned(txn, room_no)
            opened = opened._replace(room=room)
        self.is_partial = partial_room(txn, room_no) is not None
        return opened

    def opening(self, outbox: Outbox) -> Opening | None:
        """None: it is never short."""
        return None

    def _take_in(self, batch: RoomBatch, incoming: Sequence[IncomingEvent]) -> list[PersistedEvent]:
        """Judge the join by the state that came with it, or, where what it follows is here, by that."""
        room = batch.room
        require_full_join(batch.txn, room.room_no, room.room_id, self._owner)
        batch.view.load([self._join.event_id, *self._join.prev_event_ids])
        known = batch.memory.rows.get(self._join.event_id)
        is_here = known is not None and not known.is_outlier
        if is_here or not batch.missing_for(self._join):
            return super()._take_in(batch, incoming)
        # The batch has made the room's first group, if there was none.
        batch.states.finish()
        batch.rows.flush(batch.txn)
        here = room._replace(main_line=batch.memory.groups.main_line)
        group = group_of_list(batch.txn, here, batch.group_numbers.take)
        batch.memory.groups.lines.clear()
        batch.memory.groups.places.clear()
        return [batch.take_in_at(incoming[0], batch.memory.handle(group))]

    def _check(self, batch: RoomBatch, given: Sequence[PersistedEvent]) -> None:
        """Check the outcome.

        :raises JoinRejected: the rules do not allow the join
        """
        for each in given:
            if each.error is not None:
                raise each.error
        row = batch.memory.rows.get(self._join.event_id)
        if row is None or row.is_outlier or not row.passed_all_checks:
            reason = "events that it cites did not come with it"
            if row is not None and row.refusal is not None:
                reason = refusal_of(row.refusal)[1].sentence
            raise JoinRejected(room_id=self._join.room_id, reason=reason)
        end_full_join(batch.txn, batch.room.room_no)
