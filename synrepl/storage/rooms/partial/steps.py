"""The steps of completing a partial room, each a transaction that leaves it so that any process can go on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

from synrepl.rooms import Event, room_version
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.jobs import (
    ClaimLost,
    ResyncJob,
    move_on,
    record_attempt,
    require_claim,
)
from synrepl.storage.rooms.partial.listed_states import (
    add_to_list,
    count_listed,
    count_missing,
    forget_fetched,
    forget_list,
    group_of_list,
    keep_fetched,
    list_events,
    wrong_with_list,
)
from synrepl.storage.rooms.partial.proven_groups import prove_group
from synrepl.storage.rooms.partial.rejudge_order import next_to_judge
from synrepl.storage.rooms.partial.rejudging import RejudgeBatch
from synrepl.storage.rooms.persisting.limits import RoomLimits
from synrepl.storage.rooms.persisting.room_memory import RoomMemory
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import forward_extremities
from synrepl.storage.rooms.tables.numbers import RoomRow, lock_room
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase, partial_room

#: What a server is recorded with whose state before the join does not allow the join.
REFUSES_JOIN = "refuses-join"

#: Events that are judged in a transaction at most, and how long it should take, in milliseconds.
MAX_JUDGED, TARGET_MS = 200, 50.0

_REJECTED = int(EventFlags.REJECTED)


class ListTarget(NamedTuple):
    """An event before which the state must be listed by another server.

    :ivar create_id: the ``m.room.create`` of the room; None if it is not known
    """

    event_no: int
    event_id: str
    create_id: str | None


class ListedIds(Protocol):
    """IDs of a state, and of its auth chain."""

    @property
    def state(self) -> Collection[str]: ...

    @property
    def auth_chain(self) -> Collection[str]: ...


def list_target(txn: Transaction, room_no: int) -> ListTarget | None:
    """The first event before which the state must be listed; None: no state is needed any more."""
    txn.execute(
        "SELECT e.event_no, e.event_id, (SELECT c.event_id FROM synrepl._room_keys k"
        "  JOIN synrepl._current_state s USING (room_no, slot) JOIN synrepl._room_events c"
        "   ON c.event_no = s.event_no"
        "  WHERE k.room_no = r.room_no AND k.type = 'm.room.create' AND k.state_key = '')"
        " FROM synrepl._resync_events r JOIN synrepl._room_events e USING (event_no)"
        " WHERE r.room_no = %s AND r.full_flags IS NULL AND r.full_before IS NULL"
        " AND NOT r.is_reported AND e.stream_id IS NOT NULL"
        " AND EXISTS (SELECT FROM synrepl._backward_extremities b"
        "  WHERE b.room_no = r.room_no AND b.child_no = e.event_no)"
        " ORDER BY e.stream_id LIMIT 1",
        (room_no,),
    )
    found = txn.fetchone_or_none()
    return None if found is None else ListTarget._make(found)


def begin_list(
    txn: Transaction,
    job: ResyncJob,
    target: ListTarget,
    source: str,
    listed: ListedIds,
) -> None:
    """Keep the list of a server."""
    require_claim(txn, job)
    count = list_events(txn, job.room_no, listed.state, listed.auth_chain)
    missing = count_missing(txn, job.room_no)
    move_on(
        txn,
        job,
        ResyncPhase.EVENTS,
        event_no=target.event_no,
        source=source,
        listed=count,
        missing=missing,
        stored=0,
    )


def drop_list(
    txn: Transaction, job: ResyncJob, code: str, reason: str, *, with_fetched: bool = True
) -> None:
    """Drop a list that was found to be wrong, or that nobody has the events of; another server is asked for one."""
    require_claim(txn, job)
    forget_list(txn, job.room_no, with_fetched=with_fetched)
    if job.source is not None:
        record_attempt(txn, job, job.source, code, reason)
    move_on(txn, job, ResyncPhase.IDS, event_no=None)


def forget_lost_list(txn: Transaction, job: ResyncJob) -> bool:
    """Go back to asking for a list if that of the job was lost in a crash of the database, which is nobody's fault."""
    require_claim(txn, job)
    if not job.listed or count_listed(txn, job.room_no):
        return False
    move_on(txn, job, ResyncPhase.IDS, event_no=None)
    return True


def keep_events(txn: Transaction, job: ResyncJob, events: Sequence[Event], stored: int = 0) -> int:
    """Keep events that were fetched; returns the number of those that were missing.

    :param stored: number of others that were missing, and are stored already
    """
    require_claim(txn, job)
    kept = keep_fetched(txn, job.room_no, events) if events else 0
    if stored:
        _count_stored(txn, job, stored)
    if kept or stored:
        move_on(txn, job, ResyncPhase.EVENTS)
    return kept + stored


def events_stored(
    txn: Transaction, job: ResyncJob, event_ids: Collection[str], cited: Collection[str] = ()
) -> None:
    """Forget that events are to be stored.

    :param cited: auth events that were not on the list
    """
    require_claim(txn, job)
    forget_fetched(txn, job.room_no, event_ids)
    add_to_list(txn, job.room_no, cited)
    _count_stored(txn, job, len(event_ids))
    move_on(txn, job, ResyncPhase.EVENTS)


def _count_stored(txn: Transaction, job: ResyncJob, count: int) -> None:
    txn.execute(
        "UPDATE synrepl._resync_jobs SET stored = stored + %s WHERE room_no = %s",
        (count, job.room_no),
    )


def fault_of_list(txn: Transaction, job: ResyncJob, create_id: str | None) -> str | None:
    """What is wrong with a list all of whose events are here; None: nothing."""
    if not count_listed(txn, job.room_no):
        return "it is empty"
    return wrong_with_list(txn, job.room_no, create_id)


def make_listed_state(txn: Transaction, job: ResyncJob, limits: RoomLimits) -> None:
    """Make the state group of a list, and keep it as the full state before its event."""
    room = _locked(txn, job)
    txn.execute(
        "SELECT full_before FROM synrepl._resync_events"
        " WHERE room_no = %s AND full_before IS NOT NULL ORDER BY full_before LIMIT 1",
        (room.room_no,),
    )
    near = txn.fetchone_or_none()
    batch = _batch(txn, room, None, limits)
    if near is None:
        group = group_of_list(txn, room, batch.group_numbers.take)
    else:
        group = group_of_list(txn, room, batch.group_numbers.take, batch.groups, int(near[0]))
        batch.states.finish()
        batch.rows.flush(txn)
    txn.execute(
        "UPDATE synrepl._resync_events SET full_before = %s WHERE event_no = %s AND room_no = %s",
        (group, job.event_no, room.room_no),
    )
    forget_list(txn, room.room_no, with_fetched=True)
    txn.execute(
        "UPDATE synrepl._rooms SET revision = revision + 1 WHERE room_no = %s", (room.room_no,)
    )
    move_on(txn, job, ResyncPhase.IDS, event_no=None)


class JudgedBatch(NamedTuple):
    """What a batch of judging did.

    :ivar judged: number of events
    :ivar left: number of events that remain
    :ivar size: of the next batch
    :ivar memory: for the next batch
    """

    judged: int
    left: int
    size: int
    memory: RoomMemory


def judge_some(
    txn: Transaction, job: ResyncJob, size: int, memory: RoomMemory | None, limits: RoomLimits
) -> JudgedBatch:
    """Judge some events again, and record in which phase the job is now."""
    room = _locked(txn, job)
    begun = perf_counter()
    batch = _batch(txn, room, memory, limits)
    found = next_to_judge(txn, room.room_no, size)
    batch.judge(found.events)
    batch.write()
    took_ms = (perf_counter() - begun) * 1000
    done, left = len(found.events), found.left - len(found.events)
    if not left:
        move_on(txn, job, ResyncPhase.VERIFY)
    elif not found.events:
        move_on(txn, job, ResyncPhase.IDS, event_no=None)
    else:
        move_on(txn, job, ResyncPhase.JUDGE)
    fitting = int(max(done, 1) * TARGET_MS / max(took_ms, 1.0))
    return JudgedBatch(done, left, max(1, min(fitting, 2 * size, MAX_JUDGED)), batch.memory)


def refused_join(txn: Transaction, job: ResyncJob) -> bool:
    """Take back all outcomes if the state that a server listed does not allow the join by which the room was joined.

    Other servers took that join in, so the list is probably wrong. If another server has said the same, it counts.

    :returns: whether they were taken back
    """
    room = _locked(txn, job)
    row = partial_room(txn, room.room_no)
    if row is None:
        raise ClaimLost(room_id=job.room_id)
    txn.execute(
        f"SELECT coalesce(r.full_flags & {_REJECTED} <> 0, false)"
        " FROM synrepl._room_events e JOIN synrepl._resync_events r USING (event_no)"
        " WHERE e.event_id = %s",
        (row.join_event_id,),
    )
    found = txn.fetchone_or_none()
    if found is None or not found[0] or job.source is None:
        return False
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._resync_attempts"
        " WHERE room_no = %s AND code = %s AND destination <> %s)",
        (room.room_no, REFUSES_JOIN, job.source),
    )
    (is_confirmed,) = txn.fetchone()
    if is_confirmed:
        return False
    txn.execute(
        "UPDATE synrepl._resync_events SET full_before = NULL, full_after = NULL, full_flags = NULL"
        " WHERE room_no = %s",
        (room.room_no,),
    )
    reason = f"by the state that it listed, {row.join_event_id} is not allowed"
    record_attempt(txn, job, job.source, REFUSES_JOIN, reason)
    move_on(txn, job, ResyncPhase.IDS, event_no=None)
    return True


def verify_states(txn: Transaction, job: ResyncJob) -> None:
    """Read the new states at the room's ends, and compare them with their digests.

    :raises CorruptState: one is not what was made
    """
    room = _locked(txn, job)
    ends = forward_extremities(txn, room.room_no)
    txn.execute(
        "SELECT full_after FROM synrepl._resync_events WHERE room_no = %s"
        " AND event_no = ANY (%s::bigint[]) AND full_after IS NOT NULL"
        " UNION SELECT max(full_after) FROM synrepl._resync_events WHERE room_no = %s",
        (room.room_no, sorted(ends)[:10], room.room_no),
    )
    for (group,) in txn.fetchall():
        if group is not None:
            prove_group(txn, room, int(group))
    move_on(txn, job, ResyncPhase.SWAP)


def _locked(txn: Transaction, job: ResyncJob) -> RoomRow:
    room = lock_room(txn, job.room_no)
    require_claim(txn, job)
    return room


def _batch(
    txn: Transaction, room: RoomRow, memory: RoomMemory | None, limits: RoomLimits
) -> RejudgeBatch:
    if memory is None or (memory.epoch, memory.revision) != (room.epoch, room.revision):
        memory = RoomMemory(room.room_no, room.epoch, room.revision)
    return RejudgeBatch(txn, room, room_version(room.version), memory, limits)
