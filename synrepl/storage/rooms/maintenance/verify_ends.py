"""Checks what a room refers to, its heads and counts, and its current state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from synrepl.rooms import ResolutionCache, lookup_state_after, run
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.findings import RoomFinding, RoomProblem
from synrepl.storage.rooms.persisting.read_view import read_view
from synrepl.storage.rooms.states.state_groups import read_states
from synrepl.storage.rooms.states.state_handle import StoredState
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.partial_rooms import ResyncPhase
from synrepl.storage.rooms.visibility.newest_membership import newest_membership_sql

#: Findings of each kind that are listed.
MAX_LISTED = 1_000

#: Forward extremities from which on a room is in trouble: each new event names at most 20 of them.
MANY_EXTREMITIES = 50


_PARTIAL, _ABANDONED = int(EventFlags.PARTIAL), int(EventFlags.ABANDONED)


class _Reference(NamedTuple):
    """A statement that finds references to what is not there; it returns a subject and a detail."""

    problem: RoomProblem
    sql: str


_GROUP_THERE = (
    "EXISTS (SELECT FROM synrepl._state_groups g WHERE g.room_no = %(room)s AND g.group_no = {0})"
)
_EVENT_THERE = (
    "EXISTS (SELECT FROM synrepl._room_events x WHERE x.event_no = {0} AND x.room_no = %(room)s{1})"
)

REFERENCES = (
    _Reference(
        RoomProblem.WRONG_COLUMN,
        "SELECT e.event_id, 'it has no state group, and is no outlier'"
        " FROM synrepl._room_events e WHERE e.room_no = %(room)s AND e.stream_id IS NOT NULL"
        " AND (e.group_before IS NULL OR e.group_after IS NULL OR e.flags & 1 <> 0)",
    ),
    _Reference(
        RoomProblem.GROUP_WITHOUT_ROW,
        "SELECT 'heads', 'the group of the current state, ' || h.current_group || ', is not there'"
        " FROM synrepl._room_heads h WHERE h.room_no = %(room)s"
        f" AND NOT {_GROUP_THERE.format('h.current_group')}",
    ),
    _Reference(
        RoomProblem.GROUP_WITHOUT_ROW,
        "SELECT 'line ' || l.line_no, 'its head, group ' || l.head || ', is not there'"
        " FROM synrepl._state_lines l WHERE l.room_no = %(room)s AND l.depth >= 0"
        f" AND NOT {_GROUP_THERE.format('l.head')}",
    ),
    _Reference(
        RoomProblem.DANGLING,
        "SELECT 'forward extremity ' || f.event_no, 'it is no event that passed all checks'"
        " FROM synrepl._forward_extremities f WHERE f.room_no = %(room)s"
        f" AND NOT {_EVENT_THERE.format('f.event_no', ' AND x.flags & 7 = 0')}",
    ),
    _Reference(
        RoomProblem.DANGLING,
        "SELECT 'backward extremity ' || b.missing_id,"
        " 'event ' || b.child_no || ', which follows it, is not there'"
        " FROM synrepl._backward_extremities b WHERE b.room_no = %(room)s"
        f" AND NOT {_EVENT_THERE.format('b.child_no', ' AND x.flags & 1 = 0')}",
    ),
    _Reference(
        RoomProblem.DANGLING,
        "SELECT 'redaction ' || r.redaction_no, 'its event is not there'"
        " FROM synrepl._redactions r WHERE r.room_no = %(room)s"
        f" AND NOT {_EVENT_THERE.format('r.redaction_no', '')}",
    ),
    _Reference(
        RoomProblem.WRONG_HEADS,
        "SELECT m.user_id, 'its membership is ' || m.membership || ' of event ' || m.event_no"
        " || ', and the current state has ' || coalesce(c.event_no::text, 'none')"
        " FROM synrepl._memberships m LEFT JOIN synrepl._room_keys k ON k.room_no = m.room_no"
        "  AND k.type = 'm.room.member' AND k.state_key = m.user_id"
        " LEFT JOIN synrepl._current_state c ON c.room_no = m.room_no AND c.slot = k.slot"
        " WHERE m.room_no = %(room)s AND c.event_no IS DISTINCT FROM m.event_no",
    ),
    _Reference(
        RoomProblem.WRONG_HEADS,
        "SELECT k.state_key, 'it is a member by the current state, and has no membership'"
        " FROM synrepl._current_state c JOIN synrepl._room_keys k USING (room_no, slot)"
        " WHERE c.room_no = %(room)s AND k.type = 'm.room.member'"
        " AND NOT EXISTS (SELECT FROM synrepl._memberships m"
        "  WHERE m.room_no = c.room_no AND m.user_id = k.state_key)",
    ),
    # What counts at the end of the stream is the current membership. That of an event that was purged is not there.
    _Reference(
        RoomProblem.WRONG_HEADS,
        "SELECT m.user_id, 'its membership is ' || m.membership || ', and its events and history have '"
        " || coalesce(x.membership, 'none')"
        " FROM synrepl._memberships m JOIN synrepl._room_keys k ON k.room_no = m.room_no"
        "  AND k.type = 'm.room.member' AND k.state_key = m.user_id"
        f" CROSS JOIN LATERAL ({newest_membership_sql('k', 'm.user_id', lambda _: 'true')}) AS x"
        " WHERE m.room_no = %(room)s AND x.stream_id >= m.stream_id"
        "  AND x.membership IS DISTINCT FROM m.membership",
    ),
    _Reference(
        RoomProblem.WRONG_PARTIAL,
        "SELECT e.event_id, 'it has partial state, and nothing says that it is judged again'"
        " FROM synrepl._room_events e WHERE e.room_no = %(room)s"
        f" AND (e.flags & {_PARTIAL} <> 0 AND NOT EXISTS (SELECT FROM synrepl._partial_events p"
        "   WHERE p.event_no = e.event_no)"
        f"  OR e.flags & {_PARTIAL | _ABANDONED} <> 0 AND NOT EXISTS (SELECT"
        "   FROM synrepl._resync_events r WHERE r.event_no = e.event_no))",
    ),
    _Reference(
        RoomProblem.WRONG_PARTIAL,
        "SELECT coalesce(e.event_id, 'event ' || p.event_no), 'it is listed as one with partial state,"
        " and has full state, or is not there' FROM synrepl._partial_events p"
        " LEFT JOIN synrepl._room_events e ON e.event_no = p.event_no AND e.room_no = p.room_no"
        f" AND e.flags & {_PARTIAL} <> 0 WHERE p.room_no = %(room)s AND e.event_no IS NULL",
    ),
    _Reference(
        RoomProblem.WRONG_PARTIAL,
        "SELECT 'event ' || r.event_no, 'it is to be judged again, and is not there, or the room has"
        " its full state' FROM synrepl._resync_events r LEFT JOIN synrepl._room_events e"
        " ON e.event_no = r.event_no AND e.room_no = r.room_no WHERE r.room_no = %(room)s"
        " AND (e.event_no IS NULL OR NOT EXISTS (SELECT FROM synrepl._partial_rooms p"
        "   WHERE p.room_no = r.room_no) AND NOT EXISTS (SELECT FROM synrepl._resync_jobs j"
        f"   WHERE j.room_no = r.room_no AND j.phase = '{ResyncPhase.ABANDONED.value}'))",
    ),
    _Reference(
        RoomProblem.WRONG_PARTIAL,
        "SELECT 'partial room', 'no job completes it in its epoch ' || p.epoch"
        " FROM synrepl._partial_rooms p JOIN synrepl._rooms r USING (room_no)"
        " LEFT JOIN synrepl._resync_jobs j ON j.room_no = p.room_no AND j.epoch = p.epoch"
        "  AND j.ended_at IS NULL WHERE p.room_no = %(room)s"
        " AND (j.room_no IS NULL OR r.epoch <> p.epoch)",
    ),
)

_COUNTS = (
    ("events", "SELECT count(*) FROM synrepl._room_events e"
     " WHERE e.room_no = %s AND e.stream_id IS NOT NULL"),
    ("outliers", "SELECT count(*) FROM synrepl._room_events e"
     " WHERE e.room_no = %s AND e.stream_id IS NULL"),
    ("partial", "SELECT count(*) FROM synrepl._room_events e"
     " WHERE e.room_no = %s AND e.stream_id IS NOT NULL AND e.flags & 8 <> 0"),
    ("extremities", "SELECT count(*) FROM synrepl._forward_extremities WHERE room_no = %s"),
    ("waiting", "SELECT count(*) FROM synrepl._waiting_events WHERE room_no = %s"),
    ("unapplied", "SELECT count(*) FROM synrepl._redactions r"
     " WHERE r.room_no = %s AND NOT r.applied"),
)  # fmt: skip


_MISSING_GROUPS = (
    "SELECT e.event_id, n.group_no FROM synrepl._room_events e"
    " CROSS JOIN LATERAL (VALUES (e.group_before), (e.group_after)) AS n (group_no)"
    " WHERE e.room_no = %(room)s AND n.group_no IS NOT NULL"
    f" AND NOT {_GROUP_THERE.format('n.group_no')} LIMIT %(limit)s"
)


def _groups_elsewhere(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """Events whose state groups are not in the room; some may be in another one."""
    txn.execute(_MISSING_GROUPS, {"room": room.room_no, "limit": MAX_LISTED})
    missing = [(str(event_id), int(group)) for event_id, group in txn.fetchall()]
    if not missing:
        return
    # There is no index for this, because it is asked only of damaged rooms.
    txn.execute(
        "SELECT g.group_no, r.room_id FROM synrepl._state_groups g"
        " LEFT JOIN synrepl._rooms r USING (room_no) WHERE g.group_no = ANY (%s::bigint[])",
        (list({group for _, group in missing}),),
    )
    rooms = {int(group): str(room_id) for group, room_id in txn.fetchall()}
    for event_id, group in missing:
        problem, detail = RoomProblem.GROUP_WITHOUT_ROW, f"its state group {group} is not there"
        if group in rooms:
            problem = RoomProblem.CROSS_ROOM
            detail = f"its state group {group} is of room {rooms[group]}"
        yield RoomFinding(problem, room.room_id, event_id, detail)


def verify_references(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """References of a room's rows to what is not there, at most :data:`MAX_LISTED` of each kind."""
    yield from _groups_elsewhere(txn, room)
    for problem, sql in REFERENCES:
        txn.execute(
            f"SELECT * FROM ({sql}) f LIMIT %(limit)s",
            {"room": room.room_no, "limit": MAX_LISTED},
        )
        for subject, detail in txn.fetchall():
            yield RoomFinding(problem, room.room_id, subject, detail)


def verify_heads(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """Counts and positions of a room's heads that differ from its tables."""
    heads = read_heads(txn, room.room_no)
    if heads is None:
        txn.execute(
            "SELECT EXISTS (SELECT FROM synrepl._room_events WHERE room_no = %s"
            " AND stream_id IS NOT NULL)",
            (room.room_no,),
        )
        if txn.fetchone()[0]:
            detail = "there are events, and no heads"
            yield RoomFinding(RoomProblem.WRONG_HEADS, room.room_id, "heads", detail)
        return
    for column, sql in _COUNTS:
        txn.execute(sql, (room.room_no,))
        count = int(txn.fetchone()[0])
        stored = getattr(heads, column)
        if count != stored:
            detail = f"{column} is {stored}, and the tables have {count}"
            yield RoomFinding(RoomProblem.WRONG_HEADS, room.room_id, "heads", detail)
    txn.execute(
        "SELECT coalesce(max(topological), 0), coalesce(max(stream_id), 0),"
        " coalesce(min(stream_id), 0) FROM synrepl._room_events"
        " WHERE room_no = %s AND stream_id IS NOT NULL",
        (room.room_no,),
    )
    topological, newest, oldest = txn.fetchone()
    for column, stored, found in (
        ("topological", heads.topological, topological),
        ("stream_id", heads.stream_id, newest),
        ("oldest_stream_id", -heads.oldest_stream_id, -oldest),
    ):
        if stored < found:
            detail = f"{column} is {abs(stored)}, and an event has {abs(found)}"
            yield RoomFinding(RoomProblem.WRONG_HEADS, room.room_id, "heads", detail)
    if heads.extremities >= MANY_EXTREMITIES:
        detail = f"{heads.extremities} forward extremities; send events that join them"
        yield RoomFinding(RoomProblem.MANY_EXTREMITIES, room.room_id, "heads", detail)


def verify_current_state(txn: Transaction, room: RoomRow) -> Iterator[RoomFinding]:
    """The current state against its group, and the group against the resolution of the forward extremities.

    :raises SynreplError: the state cannot be read or resolved, because rows are missing or damaged
    """
    heads = read_heads(txn, room.room_no)
    if heads is None:
        return
    group = heads.current_group
    (state,) = read_states(txn, room, [group]).values()
    txn.execute(
        "SELECT k.type, k.state_key, e.event_id FROM synrepl._current_state c"
        " LEFT JOIN synrepl._room_keys k USING (room_no, slot)"
        " LEFT JOIN synrepl._room_events e USING (event_no) WHERE c.room_no = %s",
        (room.room_no,),
    )
    current = {(kind, state_key): event_id for kind, state_key, event_id in txn.fetchall()}
    for key in sorted({key for key, _ in current.items() ^ state.items()}, key=str):
        detail = f"the table has {current.get(key)}, and state group {group} {state.get(key)}"
        yield RoomFinding(RoomProblem.WRONG_CURRENT_STATE, room.room_id, str(key), detail)
    version, view = read_view(txn, room)
    ends = sorted(view.forward_extremities)
    if not ends:
        return
    view.rows(ends)
    resolved: StoredState = run(
        lookup_state_after(version, ends, ResolutionCache[StoredState]()), view
    )
    (change,) = view.state_differences([view.memory.handle(group), resolved])
    for key in sorted({*change.entries, *change.removed}):
        detail = (
            f"the current state has {state.get(key)}, and its forward extremities resolve to"
            f" {change.entries.get(key)}"
        )
        yield RoomFinding(RoomProblem.WRONG_CURRENT_STATE, room.room_id, str(key), detail)
