"""Purges a room's history before a point, in batches that each leave the room whole.

1. Edges across the point are cut: missing prev events become backward extremities.
2. Events go, the newest first. State events, and others that something may refer to, become outliers.
3. State groups and lines that no event has any more are collected (:mod:`.collect`). Groups that stay are
   rebased where their chains lead to those that go.
4. Versions on state lines that newer ones supersede for all groups that stay go.
5. Outliers that no state and no auth chain has go, and state keys that nothing uses.

Each batch takes the room's lock for milliseconds. A purge that is killed is gone on with by purging again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.collect import BatchDone
from synrepl.storage.rooms.maintenance.kept_groups import count_unneeded, find_kept_groups
from synrepl.storage.rooms.maintenance.marks import (
    NEW_EVENTS,
    RoomMark,
    announce_room,
    lock_marked,
    mark_params,
    references_since,
    reworked,
)
from synrepl.storage.rooms.maintenance.purge_point import PurgePoint
from synrepl.storage.rooms.maintenance.record_purge import record_purge
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.heads import read_heads
from synrepl.storage.rooms.tables.numbers import RoomRow
from synrepl.storage.rooms.tables.partial_rooms import partial_room
from synrepl.storage.rooms.tables.pending_rows import PendingRows, array_text
from synrepl.storage.rooms.visibility.audience import (
    EXCEPTION_BIT,
    FIRST_BIT,
    NOBODY_BIT,
    PLACE_BITS,
)

#: What other processes call the caches that a purge makes stale.
PURGED_CACHE = "ph_cache_fake"


class CannotPurge(Refused):
    """history of room {room_id} cannot be purged: {reason}"""


class PurgePlan(NamedTuple):
    """What a purge removes at most, known before it begins.

    :ivar events: events before the point
    :ivar state_events: those of them that are state events: they go, or stay as outliers where a state that
        is kept has them
    :ivar json_bytes: bytes of JSON of these events, as stored
    :ivar groups: state groups
    :ivar group_bytes: their bytes, as stored
    :ivar versions: rows on state lines
    :ivar edges: events after the point that follow one before it
    """

    events: int
    state_events: int
    json_bytes: int
    groups: int
    group_bytes: int
    versions: int
    edges: int

    @property
    def rows(self) -> int:
        """The number of rows that go at most."""
        return 2 * self.events + self.groups + self.versions

    @property
    def bytes(self) -> int:
        """The bytes that go at most, without indexes."""
        return self.json_bytes + self.group_bytes


class CutEdge(NamedTuple):
    """An event whose prev event goes."""

    child_no: int
    parent_no: int


def plan_purge(txn: Transaction, room: RoomRow, point: PurgePoint) -> PurgePlan:
    """What a purge would remove at most.

    :raises CannotPurge: the room has partial state, or no event
    """
    check_purgeable(txn, room)
    params = point.params(room.room_no)
    txn.execute(
        "SELECT count(*), count(e.slot), coalesce(sum(pg_column_size(j.raw)), 0)"
        " FROM synrepl._room_events e LEFT JOIN synrepl._room_event_json j USING (event_no)"
        f" WHERE e.room_no = %(room)s AND {point.is_before('e')}",
        params,
    )
    events, state_events, json_bytes = map(int, txn.fetchone())
    txn.execute(f"SELECT count(DISTINCT child_no) FROM ({_edges(point)}) x", params)
    edges = int(txn.fetchone()[0])
    find_kept_groups(txn, room.room_no, with_chains=False, purged=point)
    groups, group_bytes = count_unneeded(txn, room.room_no)
    txn.execute(
        "SELECT count(*) FROM synrepl._state_line v JOIN synrepl._state_lines l USING (line_no)"
        " WHERE l.room_no = %s"
        "  AND NOT EXISTS (SELECT FROM _kept_groups k WHERE k.group_no = v.pos)",
        (room.room_no,),
    )
    versions = int(txn.fetchone()[0])
    return PurgePlan(events, state_events, json_bytes, groups, group_bytes, versions, edges)


def check_purgeable(txn: Transaction, room: RoomRow) -> None:
    """Check that a room's history may be purged.

    :raises CannotPurge: the room has partial state, or no event
    """
    heads = read_heads(txn, room.room_no)
    reason = None
    if heads is None or not heads.events:
        reason = "there is no event with its state in the room"
    elif partial_room(txn, room.room_no) is not None:
        reason = "its state is partial; purge when it is complete (see synrepl rooms resync)"
    if reason is not None:
        raise CannotPurge(room_id=room.room_id, reason=reason)


def _edges(point: PurgePoint) -> str:
    """Edges to events that go before the events that follow them do, if these go at all."""
    order = (
        "(c.topological, c.stream_id) < (p.topological, p.stream_id)"
        if point.column == "topological"
        else "c.stream_id < p.stream_id"
    )
    return (
        "SELECT c.event_no AS child_no, p.event_no AS parent_no FROM synrepl._room_events c"
        " CROSS JOIN LATERAL unnest(c.prev_nos) AS n (event_no)"
        " JOIN synrepl._room_events p ON p.event_no = n.event_no"
        f" WHERE c.room_no = %(room)s AND c.stream_id IS NOT NULL AND {point.is_before('p')}"
        f" AND (NOT {point.is_before('c')} OR {order})"
    )


def edges_to_cut(
    txn: Transaction, room_no: int, point: PurgePoint, limit: int
) -> Sequence[CutEdge]:
    """Edges to cut before events go. The room need not be locked."""
    txn.execute(
        f"{_edges(point)} ORDER BY child_no LIMIT %(limit)s",
        {**point.params(room_no), "limit": limit},
    )
    return [CutEdge._make(row) for row in txn.fetchall()]


def cut_edges(
    txn: Transaction,
    mark: RoomMark,
    edges: Sequence[CutEdge],
    point: PurgePoint,
    *,
    new_epoch: bool,
) -> BatchDone:
    """Cut edges.

    :param new_epoch: whether this is the first batch of a purge
    :raises ReworkedMeanwhile: what was found out is void
    """
    lock = lock_marked(txn, mark)
    if new_epoch:
        _widen_spans(txn, mark.room_no, point)
    _cut(txn, mark.room_no, edges)
    announce_room(txn, PURGED_CACHE, lock.room.room_id)
    mark = reworked(txn, mark, lock, new_epoch=new_epoch)
    return BatchDone(mark, lock.since, 0, True)


def _widen_spans(txn: Transaction, room_no: int, point: PurgePoint) -> None:
    """Record up to which group the first events do not tell any more where their groups begin."""
    txn.execute(
        "UPDATE synrepl._rooms r SET purged_group = greatest(r.purged_group,"
        "  (SELECT e.group_after FROM synrepl._room_events e WHERE e.room_no = %(room)s"
        f"   AND (e.audience & {FIRST_BIT}) <> 0 AND e.{point.column} < %(bound)s"
        "   ORDER BY e.group_after DESC LIMIT 1)) WHERE r.room_no = %(room)s",
        {"room": room_no, "bound": point.bound},
    )


def _cut(txn: Transaction, room_no: int, edges: Sequence[CutEdge]) -> None:
    """Make prev events backward extremities. They were followed, so they come back as no forward extremity."""
    if not edges:
        return
    children = [each.child_no for each in edges]
    parents = [each.parent_no for each in edges]
    txn.execute(
        "INSERT INTO synrepl._backward_extremities"
        " (room_no, child_no, is_followed, missing_id, was_purged)"
        " SELECT %s, x.child_no, x.parent_no <> ALL (%s::bigint[]), p.event_id, true"
        " FROM unnest(%s::bigint[], %s::bigint[]) AS x (child_no, parent_no)"
        " JOIN synrepl._room_events c ON c.event_no = x.child_no AND x.parent_no = ANY (c.prev_nos)"
        " JOIN synrepl._room_events p ON p.event_no = x.parent_no"
        " ON CONFLICT DO NOTHING",
        (room_no, _unfollowed(txn, room_no, parents), children, parents),
    )
    txn.execute(
        "UPDATE synrepl._room_events c SET prev_nos ="
        "  ARRAY(SELECT n FROM unnest(c.prev_nos) AS n WHERE n <> ALL (x.parents))"
        " FROM (SELECT child_no, array_agg(parent_no) AS parents"
        "  FROM unnest(%s::bigint[], %s::bigint[]) AS y (child_no, parent_no) GROUP BY child_no) x"
        " WHERE c.event_no = x.child_no AND c.prev_nos && x.parents",
        (children, parents),
    )


def _unfollowed(txn: Transaction, room_no: int, numbers: list[int]) -> list[int]:
    """Those of some events that were rejected or soft-failed on top of a forward extremity, and that no other follows.

    If they came back as followed, they would end the forward extremity.
    """
    unpassed = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)
    txn.execute(
        "WITH RECURSIVE below (top_no, event_no) AS ("
        " SELECT e.event_no, unnest(e.prev_nos) FROM synrepl._room_events e"
        f"  WHERE e.event_no = ANY (%s::bigint[]) AND e.flags & {unpassed} <> 0"
        " UNION SELECT b.top_no, unnest(e.prev_nos) FROM below b"
        f"  JOIN synrepl._room_events e USING (event_no) WHERE e.flags & {unpassed} <> 0)"
        " SELECT DISTINCT b.top_no FROM below b JOIN synrepl._forward_extremities f"
        "  ON f.room_no = %s AND f.event_no = b.event_no",
        (numbers, room_no),
    )
    return [int(number) for (number,) in txn.fetchall()]


class EventToPurge(NamedTuple):
    """An event before the point."""

    event_no: int
    is_state: bool


def events_to_purge(
    txn: Transaction, room_no: int, point: PurgePoint, limit: int
) -> list[EventToPurge]:
    """The newest events before the point, so that no event goes before those that follow it.

    The room need not be locked, but the mark must have been taken before.
    """
    txn.execute(
        "SELECT e.event_no, e.slot IS NOT NULL FROM synrepl._room_events e"
        f" WHERE e.room_no = %(room)s AND {point.is_before('e')}"
        f" ORDER BY {point.newest_first} LIMIT %(limit)s",
        {**point.params(room_no), "limit": limit},
    )
    return [EventToPurge._make(row) for row in txn.fetchall()]


class PurgedEvents(NamedTuple):
    """A batch of events that went.

    :ivar removed: their number
    :ivar kept: the number of those that became outliers
    """

    done: BatchDone
    removed: int
    kept: int


def purge_events(
    txn: Transaction,
    mark: RoomMark,
    point: PurgePoint,
    events: Sequence[EventToPurge],
    cited: Collection[int],
) -> PurgedEvents:
    """Remove events before the point; those that something may refer to become outliers.

    :param events: some of :func:`events_to_purge`, in their order
    :param cited: message events that other events cite, see :func:`cited_messages`
    :raises ReworkedMeanwhile: what was found out is void
    """
    lock = lock_marked(txn, mark)
    room_no = mark.room_no
    numbers = [each.event_no for each in events]
    if lock.came_later:
        numbers = _still_before(txn, room_no, point, numbers)
    kept = {each.event_no for each in events if each.is_state}.union(cited).intersection(numbers)
    if numbers:
        later = references_since(txn, mark, lock, numbers)
        kept |= later.auth_nos
        # A redaction may itself be redacted, by another one of the batch.
        going = [each for each in numbers if each not in kept]
        while going and (used := _redactions_in_use(txn, going)):
            kept |= used
            going = [each for each in going if each not in used]
        if later.prev_nos:
            _cut_later(txn, mark, list(later.prev_nos))
        upto = record_purge(txn, room_no, numbers)
        _remove(txn, room_no, numbers, going, sorted(kept), upto)
        announce_room(txn, PURGED_CACHE, lock.room.room_id)
    mark = reworked(txn, mark, lock)
    removed = len(numbers) - len(kept)
    return PurgedEvents(
        BatchDone(mark, lock.since, 2 * removed, True),
        removed,
        len(kept),
    )


def _still_before(
    txn: Transaction, room_no: int, point: PurgePoint, numbers: list[int]
) -> list[int]:
    """Those of some events that are before the point, also after others came."""
    txn.execute(
        "SELECT e.event_no FROM synrepl._room_events e"
        f" WHERE e.event_no = ANY (%(numbers)s::bigint[]) AND {point.is_before('e')}",
        {**point.params(room_no), "numbers": array_text(numbers)},
    )
    return [int(number) for (number,) in txn.fetchall()]


def _redactions_in_use(txn: Transaction, numbers: list[int]) -> set[int]:
    """Those of some events that are to go that redact others, which are not."""
    txn.execute(
        "SELECT r.redaction_no FROM synrepl._redactions r JOIN synrepl._room_events t"
        "  ON t.event_id = r.redacts AND t.redacted_by = r.redaction_no"
        " WHERE r.redaction_no = ANY (%s::bigint[]) AND t.event_no <> ALL (%s::bigint[])",
        (array_text(numbers), array_text(numbers)),
    )
    return {int(number) for (number,) in txn.fetchall()}


def _cut_later(txn: Transaction, mark: RoomMark, parents: list[int]) -> None:
    """Cut the edges of events that came while others were removed."""
    txn.execute(
        "SELECT c.event_no, n.event_no FROM synrepl._room_events c"
        " CROSS JOIN LATERAL unnest(c.prev_nos) AS n (event_no)"
        f" WHERE c.event_no IN {NEW_EVENTS} AND n.event_no = ANY (%(parents)s::bigint[])",
        {**mark_params(mark), "parents": parents},
    )
    _cut(txn, mark.room_no, [CutEdge._make(row) for row in txn.fetchall()])


def _remove(
    txn: Transaction, room_no: int, numbers: list[int], gone: list[int], kept: list[int], upto: int
) -> None:
    # Other statements than these few would cost a round trip each, with the room locked.
    rows = PendingRows()
    rows.run(
        "DELETE FROM synrepl._backward_extremities"
        " WHERE room_no = %s AND child_no = ANY (%s::bigint[])",
        (room_no, numbers),
    )
    rows.run(
        "DELETE FROM synrepl._branch_memberships WHERE room_no = %s AND event_no = ANY (%s::bigint[])",
        (room_no, numbers),
    )
    rows.run("DELETE FROM synrepl._resync_events WHERE event_no = ANY (%s::bigint[])", (numbers,))
    unapplied = 0
    if gone:
        unapplied = _forget_redactions(txn, room_no, gone)
        rows.run(
            "DELETE FROM synrepl._room_event_json WHERE event_no = ANY (%s::bigint[])", (gone,)
        )
        rows.run("DELETE FROM synrepl._room_events WHERE event_no = ANY (%s::bigint[])", (gone,))
    if kept:
        rows.run(
            "UPDATE synrepl._room_events SET stream_id = NULL, topological = NULL, reach = NULL,"
            f" audience = audience & ~{PLACE_BITS | EXCEPTION_BIT} | {NOBODY_BIT},"
            " group_before = NULL, group_after = NULL, prev_nos = '{}',"
            " flags = (flags & (2 | 16)) | 1, refusal = CASE WHEN flags & 2 <> 0 THEN refusal END"
            " WHERE event_no = ANY (%s::bigint[])",
            (kept,),
        )
    rows.run(
        "UPDATE synrepl._room_heads SET events = events - %s, outliers = outliers + %s,"
        " unapplied = unapplied + %s, purged_stream_id = greatest(purged_stream_id, %s)"
        " WHERE room_no = %s",
        (len(numbers), len(kept), unapplied, upto, room_no),
    )
    rows.flush(txn)


def _forget_redactions(txn: Transaction, room_no: int, gone: list[int]) -> int:
    """Redactions whose targets go are applied again if these come again; those that go are forgotten.

    :returns: how many more redactions apply to nothing
    """
    numbers = array_text(gone)
    txn.execute(
        "UPDATE synrepl._redactions r SET applied = false FROM synrepl._room_events e"
        " WHERE e.event_no = ANY (%s::bigint[]) AND e.redacted_by IS NOT NULL"
        "  AND r.redacts = e.event_id AND r.room_no = %s AND r.applied",
        (numbers, room_no),
    )
    unapplied = txn.rowcount
    txn.execute(
        "DELETE FROM synrepl._redactions WHERE redaction_no = ANY (%s::bigint[]) RETURNING applied",
        (numbers,),
    )
    return unapplied - sum(not applied for (applied,) in txn.fetchall())


def cited_messages(txn: Transaction, room_no: int) -> list[int]:
    """Message events that rejected events name as auth events; no other event can.

    The room need not be locked.
    """
    txn.execute(
        "SELECT m.event_no FROM (SELECT DISTINCT n AS event_no FROM synrepl._room_events e"
        "  CROSS JOIN LATERAL unnest(e.auth_nos) AS n"
        "  WHERE e.room_no = %(room)s AND e.flags & 2 <> 0) c"
        " JOIN synrepl._room_events m USING (event_no) WHERE m.slot IS NULL",
        {"room": room_no},
    )
    return [int(number) for (number,) in txn.fetchall()]
