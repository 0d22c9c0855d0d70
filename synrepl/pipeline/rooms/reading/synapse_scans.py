"""How to read the tables of rooms from a real Synapse's database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from synrepl.pipeline.rooms import tables
from synrepl.pipeline.rooms.reading.table_scan import (
    PartAxis,
    PartStatements,
    RoomScans,
    TableScan,
    number_ranges,
    part_size,
)
from synrepl.pipeline.source.database.sql import literal
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.release import MayNotRead, table_columns
from synrepl.storage.foreign.rooms.tables import (
    RoomTablesUnknown,
    locate_rooms,
    read_room,
    room_ids,
    rooms_with_events,
)

#: What is read besides what an import reads, by table. Every release since 1.11 has it.
_FURTHER: Mapping[str, Sequence[str]] = {
    "event_auth": ("event_id", "auth_id"),
    "room_memberships": ("event_id", "user_id", "membership"),
    "state_events": ("event_id", "state_key"),
    "erased_users": ("user_id",),
}

#: Rooms and groups that one part has.
_PART_ROOMS, _PART_GROUPS = 2_000, 20_000

#: Whether a flag is set in an event's internal metadata, which need not be JSON.
_FLAG = r"""coalesce({column} ~ '"{flag}"\s*:\s*true', false)"""

#: A redaction applies if it was accepted and, where the server left that to be checked, its sender is
#: of the same server as the event's.
_REDACTED = rf"""e.type <> 'm.room.create' AND EXISTS (
    SELECT FROM redactions d JOIN events o ON o.event_id = d.event_id
    LEFT JOIN event_json m ON m.event_id = d.event_id
    WHERE d.redacts = e.event_id AND o.room_id = e.room_id
      AND NOT EXISTS (SELECT FROM rejections y WHERE y.event_id = d.event_id)
      AND (NOT {_FLAG.format(column="m.internal_metadata", flag="recheck_redaction")}
           OR substring(o.sender FROM ':(.*)') = substring(e.sender FROM ':(.*)')))"""

_REJECTED = "EXISTS (SELECT FROM rejections x WHERE x.event_id = e.event_id)"

#: Queries for each event: with joins, PostgreSQL may read a table whole for each part of a room.
_JUDGED = f"""e.room_id, e.event_id, e.topological_ordering, e.stream_ordering::bigint, {_REJECTED},
    NULL::bigint, (SELECT i.state_group FROM event_to_state_groups i WHERE i.event_id = e.event_id),
    (SELECT j.json FROM event_json j WHERE j.event_id = e.event_id)"""

_STATE_KEY = "(SELECT s.state_key FROM state_events s WHERE s.event_id = e.event_id)"

#: A row for each prev event; one that is not in the history of the room counts for none.
_ORDER = """
    SELECT e.topological_ordering, e.stream_ordering::bigint, p.stream_ordering::bigint,
        i.event_id IS NOT NULL
    FROM events e LEFT JOIN event_edges d ON d.event_id = e.event_id AND NOT d.is_state
    LEFT JOIN events p ON p.event_id = d.prev_event_id AND p.room_id = e.room_id AND NOT p.outlier
    LEFT JOIN event_to_state_groups i ON i.event_id = e.event_id WHERE {part}"""

_SCANS = (
    TableScan(
        tables.EDGES,
        PartAxis.EVENTS,
        "SELECT e.room_id, d.event_id, d.prev_event_id FROM events e"
        " JOIN event_edges d ON d.event_id = e.event_id AND NOT d.is_state WHERE {part}",
    ),
    TableScan(
        tables.AUTH_EDGES,
        PartAxis.EVENTS,
        "SELECT e.room_id, a.event_id, a.auth_id FROM events e"
        " JOIN event_auth a ON a.event_id = e.event_id WHERE {part}",
    ),
    TableScan(
        tables.STATE_GROUPS,
        PartAxis.GROUPS,
        "SELECT g.room_id, g.id, d.prev_state_group, g.event_id, NULL::bytea FROM state_groups g"
        " LEFT JOIN state_group_edges d ON d.state_group = g.id WHERE {part}",
    ),
    TableScan(
        tables.STATE_GROUP_ENTRIES,
        PartAxis.GROUPS,
        "SELECT g.room_id, g.id, g.type, g.state_key, g.event_id FROM"
        " (SELECT *, state_group AS id FROM state_groups_state) g WHERE {part}",
    ),
    TableScan(
        tables.EVENT_STATE_GROUPS,
        PartAxis.EVENTS,
        "SELECT e.room_id, e.event_id, NULL::bigint, s.state_group FROM events e"
        " JOIN event_to_state_groups s ON s.event_id = e.event_id WHERE {part}",
    ),
    TableScan(
        tables.CURRENT_STATE,
        PartAxis.ROOMS,
        "SELECT g.room_id, g.type, g.state_key, g.event_id FROM current_state_events g WHERE {part}",
    ),
    TableScan(
        tables.MEMBERSHIPS,
        PartAxis.ROOMS,
        "SELECT g.room_id, g.state_key, m.membership, g.event_id FROM current_state_events g"
        " JOIN room_memberships m ON m.event_id = g.event_id"
        " WHERE g.type = 'm.room.member' AND {part}",
    ),
    TableScan(
        tables.AUDIENCES,
        PartAxis.ROOMS,
        "SELECT g.room_id, ''::text, 0::bigint FROM rooms g WHERE false AND {part}",
    ),
    TableScan(
        tables.FORWARD_EXTREMITIES,
        PartAxis.ROOMS,
        "SELECT g.room_id, g.event_id FROM event_forward_extremities g WHERE {part}",
    ),
    TableScan(
        tables.BACKWARD_EXTREMITIES,
        PartAxis.ROOMS,
        "SELECT DISTINCT g.room_id, g.event_id FROM event_backward_extremities g WHERE {part}",
    ),
)


def synapse_scans(txn: Transaction, wanted: Sequence[str] | None) -> RoomScans:
    """Plan to read all rooms, or some.

    :raises NotSynapse: :raises RoomTablesUnknown: :raises MayNotRead:
    """
    located = locate_rooms(txn)
    columns = _check_columns(txn)
    rooms = _all_rooms(txn) if wanted is None else sorted(rooms_with_events(txn, wanted))
    unstated = _rooms_without_version(txn, rooms)
    versions = {room_id: read_room(txn, located, room_id).version for room_id in unstated}
    has_state_key = ("events", "state_key") in columns
    scans = (*_SCANS, *_scans_with_versions(versions, has_state_key))
    parts = {
        PartAxis.EVENTS: list(_event_parts(txn, None if wanted is None else rooms)),
        PartAxis.GROUPS: list(_group_parts(txn, None if wanted is None else rooms)),
        PartAxis.ROOMS: [
            f"g.room_id = ANY ({_texts(rooms[at : at + _PART_ROOMS])})"
            for at in range(0, len(rooms), _PART_ROOMS)
        ],
    }
    missing = sorted(set(wanted or ()) - set(rooms))
    judged = _part_statements(versions, None if wanted is None else rooms, has_state_key)
    return RoomScans({scan.table.name: scan for scan in scans}, parts, missing, judged)


def _scans_with_versions(
    versions: Mapping[str, str | None], has_state_key: bool
) -> Iterator[TableScan]:
    """Scans that select the room version.

    :param versions: of the rooms for which the table of rooms does not state one
    """
    yield TableScan(
        tables.ROOMS,
        PartAxis.ROOMS,
        f"""SELECT g.room_id, g.version FROM (
            SELECT room_id, room_version FROM rooms WHERE room_version IS NOT NULL
            UNION ALL SELECT * FROM {_versions(versions)}) AS g (room_id, version) WHERE {{part}}""",
    )
    yield TableScan(
        tables.EVENTS,
        PartAxis.EVENTS,
        f"""SELECT e.room_id, e.event_id, coalesce(r.room_version, v.version), e.type, {_state_key(has_state_key, "s.state_key")}, e.sender, e.depth,
            e.origin_server_ts, e.stream_ordering::bigint, e.topological_ordering, e.outlier,
            e.outlier AND {_FLAG.format(column="j.internal_metadata", flag="out_of_band_membership")},
            x.event_id IS NOT NULL, {_FLAG.format(column="j.internal_metadata", flag="soft_failed")},
            {_REDACTED}, EXISTS (SELECT FROM erased_users u WHERE u.user_id = e.sender),
            x.reason, NULL::bigint, i.state_group, j.json
        FROM events e LEFT JOIN event_json j ON j.event_id = e.event_id
        LEFT JOIN rejections x ON x.event_id = e.event_id
        LEFT JOIN event_to_state_groups i ON i.event_id = e.event_id
        LEFT JOIN state_events s ON s.event_id = e.event_id
        LEFT JOIN rooms r ON r.room_id = e.room_id
        LEFT JOIN {_versions(versions)} ON v.room_id = e.room_id WHERE {{part}}""",
    )


def _state_key(has_column: bool, earlier: str) -> str:
    """The state key of an event.

    :param has_column: whether the table of events has it
    :param earlier: where it is in releases without that column, and for their events
    """
    return f"coalesce(e.state_key, {earlier})" if has_column else earlier


def _part_statements(
    versions: Mapping[str, str | None], rooms: Sequence[str] | None, has_state_key: bool
) -> PartStatements:
    """How parts of rooms are read.

    :param versions: of the rooms for which the table of rooms does not state one
    """
    only = "" if rooms is None else f"WHERE e.room_id = ANY ({_texts(rooms)})"
    return PartStatements(
        f"""SELECT quote_literal(e.room_id), e.room_id, coalesce(r.room_version, v.version),
            count(*) FILTER (WHERE NOT e.outlier), count(*) FILTER (WHERE e.outlier)
        FROM events e LEFT JOIN rooms r ON r.room_id = e.room_id
        LEFT JOIN {_versions(versions)} ON v.room_id = e.room_id {only} GROUP BY 2, 3""",
        {
            tables.ROOM_ORDER.name: _ORDER,
            tables.JUDGED_EVENTS.name: f"SELECT {_JUDGED} FROM events e WHERE {{part}}",
            tables.VERIFIED_EVENTS.name: f"""
                SELECT {_JUDGED}, e.type,
                    {_state_key(has_state_key, _STATE_KEY)}, e.sender, e.depth,
                    e.outlier AND EXISTS (SELECT FROM event_json j WHERE j.event_id = e.event_id
                        AND {_FLAG.format(column="j.internal_metadata", flag="out_of_band_membership")}),
                    EXISTS (SELECT FROM erased_users u WHERE u.user_id = e.sender),
                    ARRAY(SELECT d.prev_event_id FROM event_edges d
                        WHERE d.event_id = e.event_id AND NOT d.is_state)
                FROM events e WHERE {{part}}""",
        },
        room="e.room_id",
        place="(e.topological_ordering, e.stream_ordering)",
        is_outlier="e.outlier",
    )


def _versions(versions: Mapping[str, str | None]) -> str:
    return f"unnest({_texts(list(versions))}, {_texts(list(versions.values()))}) AS v (room_id, version)"


def _check_columns(txn: Transaction) -> set[tuple[object, ...]]:
    columns, shut = table_columns(txn)
    missing = [
        f"{table}.{column}"
        for table, names in _FURTHER.items()
        for column in names
        if (table, column) not in columns
    ]
    if missing:
        raise RoomTablesUnknown(missing=", ".join(missing))
    if unreadable := _FURTHER.keys() & shut:
        raise MayNotRead(what=f"table {', '.join(sorted(unreadable))}")
    return columns


def _all_rooms(txn: Transaction) -> list[str]:
    found: list[str] = []
    while page := room_ids(txn, found[-1] if found else ""):
        found += page
    return found


def _rooms_without_version(txn: Transaction, rooms: Sequence[str]) -> list[str]:
    txn.execute(
        "SELECT w.room_id FROM unnest(%s::text[]) AS w (room_id)"
        " LEFT JOIN rooms r ON r.room_id = w.room_id WHERE r.room_version IS NULL",
        (list(rooms),),
    )
    return [str(room_id) for (room_id,) in txn.fetchall()]


def _event_parts(txn: Transaction, rooms: Sequence[str] | None) -> Iterator[str]:
    """Ranges of stream orderings with about as many events each."""
    if rooms is None:
        txn.execute("SELECT min(stream_ordering), max(stream_ordering) FROM events")
        first, last = txn.fetchone()
        step, only = 1 if first is None else part_size(last - first + 1), ""
    else:
        only = f" AND e.room_id = ANY ({_texts(rooms)})"
        txn.execute(
            "SELECT min(stream_ordering), max(stream_ordering), count(*) FROM events e"
            f" WHERE true{only}"
        )
        first, last, events = txn.fetchone()
        parts = max(1, -(-events // part_size(events)))
        step = 1 if first is None else -(-(last - first + 1) // parts)
    if first is not None:
        for low, high in number_ranges(first, last, step):
            yield f"e.stream_ordering BETWEEN {low} AND {high}{only}"


def _group_parts(txn: Transaction, rooms: Sequence[str] | None) -> Iterator[str]:
    """Ranges of groups; also of those that are not in the table of groups, but have entries."""
    txn.execute(
        "SELECT least((SELECT min(id) FROM state_groups),"
        " (SELECT min(state_group) FROM state_groups_state)),"
        " greatest((SELECT max(id) FROM state_groups),"
        " (SELECT max(state_group) FROM state_groups_state))"
    )
    first, last = txn.fetchone()
    only = "" if rooms is None else f" AND g.room_id = ANY ({_texts(rooms)})"
    if first is not None:
        for low, high in number_ranges(first, last, _PART_GROUPS):
            yield f"g.id BETWEEN {low} AND {high}{only}"


def _texts(texts: Sequence[str | None]) -> str:
    # Braces stand for parts of statements; a room ID may have them.
    items = ",".join(
        "NULL" if each is None else literal(each).replace("{", "'||chr(123)||'") for each in texts
    )
    return f"ARRAY[{items}]::text[]"
