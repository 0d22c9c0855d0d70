"""How to read the tables of rooms from synrepl's own database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.reading.table_scan import (
    PART_EVENTS,
    PartAxis,
    PartStatements,
    RoomScans,
    TableScan,
    number_ranges,
    part_size,
)
from synrepl.pipeline.source.database.whole_events import IS_ERASED
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags

_EVENTS = """synrepl._room_events e JOIN synrepl._rooms r ON r.room_no = e.room_no"""

_REJECTED = f"e.flags & {int(EventFlags.REJECTED)} <> 0"

_EVENT_ROWS = f"""
    SELECT r.room_id, e.event_id, r.version, t.type, k.state_key, e.sender, e.depth,
        e.origin_server_ts, e.stream_id, e.topological,
        e.flags & {int(EventFlags.OUTLIER)} <> 0, false,
        {_REJECTED}, e.flags & {int(EventFlags.SOFT_FAILED)} <> 0,
        e.redacted_by IS NOT NULL,
        {IS_ERASED}, e.refusal, e.group_before, e.group_after, j.raw
    FROM {_EVENTS} JOIN synrepl._event_types t ON t.type_no = e.type_no
    LEFT JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = e.slot
    LEFT JOIN synrepl._room_event_json j ON j.event_no = e.event_no WHERE {{part}}"""

#: A query for each event: with a join, PostgreSQL may read the table whole for each part of a room.
_JUDGED = f"""r.room_id, e.event_id, e.topological, e.stream_id, {_REJECTED},
    e.group_before, e.group_after,
    (SELECT j.raw FROM synrepl._room_event_json j WHERE j.event_no = e.event_no)"""

_PARTS = PartStatements(
    """SELECT r.room_no::text, r.room_id, r.version,
        count(e.stream_id), count(*) FILTER (WHERE e.stream_id IS NULL)
    FROM synrepl._rooms r JOIN synrepl._room_events e ON e.room_no = r.room_no
    WHERE {rooms} GROUP BY r.room_no""",
    {
        tables.ROOM_ORDER.name: """
            SELECT e.topological, e.stream_id, p.stream_id, e.group_after IS NOT NULL
            FROM synrepl._room_events e
            LEFT JOIN LATERAL unnest(e.prev_nos) AS prev (event_no) ON true
            LEFT JOIN synrepl._room_events p
                ON p.event_no = prev.event_no AND p.stream_id IS NOT NULL
            WHERE {part}""",
        tables.JUDGED_EVENTS.name: f"SELECT {_JUDGED} FROM {_EVENTS} WHERE {{part}}",
        tables.VERIFIED_EVENTS.name: f"""
            SELECT {_JUDGED}, t.type,
                (SELECT k.state_key FROM synrepl._room_keys k
                    WHERE k.room_no = e.room_no AND k.slot = e.slot), e.sender, e.depth, false, {IS_ERASED},
                ARRAY(SELECT p.event_id FROM unnest(e.prev_nos) AS prev (event_no)
                    JOIN synrepl._room_events p ON p.event_no = prev.event_no)
                || ARRAY(SELECT b.missing_id FROM synrepl._backward_extremities b
                    WHERE b.room_no = e.room_no AND b.child_no = e.event_no)
            FROM {_EVENTS} JOIN synrepl._event_types t ON t.type_no = e.type_no
            WHERE {{part}}""",
    },
    room="e.room_no",
    place="(e.topological, e.stream_id)",
    is_outlier="e.stream_id IS NULL",
)

_SCANS = (
    TableScan(
        tables.ROOMS,
        PartAxis.ROOMS,
        "SELECT g.room_id, g.version FROM synrepl._rooms g WHERE {part}",
    ),
    TableScan(tables.EVENTS, PartAxis.EVENTS, _EVENT_ROWS),
    TableScan(
        tables.EDGES,
        PartAxis.EVENTS,
        f"""SELECT r.room_id, e.event_id, p.event_id FROM {_EVENTS}
            CROSS JOIN LATERAL unnest(e.prev_nos) AS prev (event_no)
            JOIN synrepl._room_events p ON p.event_no = prev.event_no WHERE {{part}}
        UNION ALL SELECT r.room_id, e.event_id, b.missing_id FROM {_EVENTS}
            JOIN synrepl._backward_extremities b ON b.room_no = e.room_no AND b.child_no = e.event_no
            WHERE {{part}}""",
    ),
    TableScan(
        tables.AUTH_EDGES,
        PartAxis.EVENTS,
        f"""SELECT r.room_id, e.event_id, a.event_id FROM {_EVENTS}
            CROSS JOIN LATERAL unnest(e.auth_nos) AS auth (event_no)
            JOIN synrepl._room_events a ON a.event_no = auth.event_no WHERE {{part}}""",
    ),
    TableScan(
        tables.STATE_GROUPS,
        PartAxis.GROUPS,
        "SELECT r.room_id, g.group_no, g.prev_group, NULL::text, g.digest"
        " FROM synrepl._state_groups g JOIN synrepl._rooms r ON r.room_no = g.room_no WHERE {part}",
    ),
    # An event that is not there must not look like an entry that is removed.
    TableScan(
        tables.STATE_GROUP_ENTRIES,
        PartAxis.GROUPS,
        """SELECT r.room_id, g.group_no, k.type, k.state_key,
            coalesce(e.event_id, 'missing event number ' || c.event_no)
        FROM synrepl._state_groups g JOIN synrepl._rooms r ON r.room_no = g.room_no
        CROSS JOIN LATERAL synrepl.state_changes(g.changes) AS c
        JOIN synrepl._room_keys k ON k.room_no = g.room_no AND k.slot = c.slot
        LEFT JOIN synrepl._room_events e ON e.event_no = c.event_no WHERE {part}""",
    ),
    TableScan(
        tables.EVENT_STATE_GROUPS,
        PartAxis.EVENTS,
        f"SELECT r.room_id, e.event_id, e.group_before, e.group_after FROM {_EVENTS}"
        " WHERE e.group_after IS NOT NULL AND {part}",
    ),
    TableScan(
        tables.CURRENT_STATE,
        PartAxis.ROOMS,
        """SELECT r.room_id, k.type, k.state_key, e.event_id FROM synrepl._current_state g
        JOIN synrepl._rooms r ON r.room_no = g.room_no
        JOIN synrepl._room_keys k ON k.room_no = g.room_no AND k.slot = g.slot
        JOIN synrepl._room_events e ON e.event_no = g.event_no WHERE {part}""",
    ),
    TableScan(
        tables.MEMBERSHIPS,
        PartAxis.ROOMS,
        """SELECT r.room_id, g.user_id, g.membership, e.event_id FROM synrepl._memberships g
        JOIN synrepl._rooms r ON r.room_no = g.room_no
        JOIN synrepl._room_events e ON e.event_no = g.event_no WHERE {part}""",
    ),
    TableScan(
        tables.AUDIENCES,
        PartAxis.EVENTS,
        f"SELECT r.room_id, e.event_id, e.audience::bigint FROM {_EVENTS}"
        " WHERE e.audience IS NOT NULL AND {part}",
    ),
    TableScan(
        tables.FORWARD_EXTREMITIES,
        PartAxis.ROOMS,
        """SELECT r.room_id, e.event_id FROM synrepl._forward_extremities g
        JOIN synrepl._rooms r ON r.room_no = g.room_no
        JOIN synrepl._room_events e ON e.event_no = g.event_no WHERE {part}""",
    ),
    TableScan(
        tables.BACKWARD_EXTREMITIES,
        PartAxis.ROOMS,
        "SELECT DISTINCT r.room_id, g.missing_id FROM synrepl._backward_extremities g"
        " JOIN synrepl._rooms r ON r.room_no = g.room_no WHERE {part}",
    ),
)


class _RoomSize(NamedTuple):
    """Size of a room, for planning.

    :ivar events: number of events, outliers among them
    """

    room_no: int
    room_id: str
    events: int


def own_scans(txn: Transaction, room_ids: Sequence[str] | None) -> RoomScans:
    """Plan to read all rooms, or some."""
    sizes = _sizes(txn, room_ids)
    parts = {
        PartAxis.EVENTS: list(
            _event_parts(txn) if room_ids is None else _event_parts_of_rooms(txn, sizes)
        ),
        PartAxis.GROUPS: list(_group_parts(txn, sizes)),
        PartAxis.ROOMS: [_these(rooms) for rooms in _packed(sizes)],
    }
    missing = sorted(set(room_ids or ()) - {each.room_id for each in sizes})
    some = "true" if room_ids is None else _these(sizes).replace("g.", "r.")
    judged = _PARTS._replace(rooms=_PARTS.rooms.replace("{rooms}", some))
    return RoomScans({scan.table.name: scan for scan in _SCANS}, parts, missing, judged)


def _sizes(txn: Transaction, room_ids: Sequence[str] | None) -> list[_RoomSize]:
    wanted = "" if room_ids is None else "WHERE r.room_id = ANY (%s::text[])"
    txn.execute(
        "SELECT r.room_no, r.room_id, coalesce(h.events + h.outliers, 0) FROM synrepl._rooms r"
        f" LEFT JOIN synrepl._room_heads h ON h.room_no = r.room_no {wanted} ORDER BY r.room_no",
        () if room_ids is None else (list(room_ids),),
    )
    return [_RoomSize(*row) for row in txn.fetchall()]


def _event_parts(txn: Transaction) -> Iterator[str]:
    txn.execute("SELECT min(event_no), max(event_no) FROM synrepl._room_events")
    first, last = txn.fetchone()
    if first is not None:
        for low, high in number_ranges(first, last, part_size(last - first + 1)):
            yield f"e.event_no BETWEEN {low} AND {high}"


def _event_parts_of_rooms(txn: Transaction, sizes: Sequence[_RoomSize]) -> Iterator[str]:
    """Conditions that indexes by room answer: outliers are in one of their own."""
    for rooms in _packed(sizes):
        here = _these(rooms).replace("g.", "e.")
        yield f"{here} AND e.stream_id IS NULL"
        if len(rooms) > 1 or rooms[0].events <= part_size(rooms[0].events):
            yield f"{here} AND e.stream_id IS NOT NULL"
            continue
        txn.execute(
            "SELECT min(stream_id), max(stream_id) FROM synrepl._room_events"
            " WHERE room_no = %s AND stream_id IS NOT NULL",
            (rooms[0].room_no,),
        )
        first, last = txn.fetchone()
        for low, high in _of_equal_size(first, last, rooms[0].events):
            yield f"{here} AND e.stream_id BETWEEN {low} AND {high}"


def _group_parts(txn: Transaction, sizes: Sequence[_RoomSize]) -> Iterator[str]:
    for rooms in _packed(sizes):
        here = _these(rooms)
        if len(rooms) > 1 or rooms[0].events <= part_size(rooms[0].events):
            yield here
            continue
        txn.execute(
            "SELECT min(group_no), max(group_no) FROM synrepl._state_groups WHERE room_no = %s",
            (rooms[0].room_no,),
        )
        first, last = txn.fetchone()
        for low, high in _of_equal_size(first, last, rooms[0].events):
            yield f"{here} AND g.group_no BETWEEN {low} AND {high}"


def _of_equal_size(first: int | None, last: int | None, events: int) -> Iterator[tuple[int, int]]:
    """Ranges of numbers that have about as many of a room's events each."""
    if first is not None and last is not None:
        parts = -(-events // part_size(events))
        yield from number_ranges(first, last, -(-(last - first + 1) // parts))


def _packed(sizes: Sequence[_RoomSize]) -> Iterator[list[_RoomSize]]:
    """Rooms together that have few events; a room with many alone."""
    part: list[_RoomSize] = []
    held = 0
    for each in sizes:
        if part and held + each.events > PART_EVENTS:
            yield part
            part, held = [], 0
        part.append(each)
        held += each.events + 1
    if part:
        yield part


def _these(rooms: Sequence[_RoomSize]) -> str:
    numbers = ",".join(str(each.room_no) for each in rooms)
    return f"g.room_no = ANY ('{{{numbers}}}'::integer[])"
