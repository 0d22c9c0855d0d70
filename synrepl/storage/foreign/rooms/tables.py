"""The tables in which a Synapse keeps rooms, and the rooms in them.

From 1.11 to 1.163 these tables have the same names, and the columns that are read here. Newer releases
have further columns, and tables for rooms that they joined partially.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from synrepl.core.errors import Refused
from synrepl.core.jsons import BadJson, decode
from synrepl.storage.database import Transaction
from synrepl.storage.foreign.release import MayNotRead, NotSynapse, table_columns

#: The columns that are read, by table. Every release since 1.11 has them.
NEEDED: Mapping[str, Sequence[str]] = {
    "rooms": ("room_id", "room_version"),
    "events": (
        "event_id",
        "room_id",
        "type",
        "sender",
        "depth",
        "outlier",
        "stream_ordering",
        "topological_ordering",
    ),
    "event_json": ("event_id", "json", "internal_metadata"),
    "event_edges": ("event_id", "prev_event_id", "is_state"),
    "rejections": ("event_id", "reason"),
    "redactions": ("event_id", "redacts"),
    "state_groups": ("id", "room_id", "event_id"),
    "state_group_edges": ("state_group", "prev_state_group"),
    "state_groups_state": ("state_group", "type", "state_key", "event_id"),
    "event_to_state_groups": ("event_id", "state_group"),
    "current_state_events": ("room_id", "type", "state_key", "event_id"),
    "event_forward_extremities": ("room_id", "event_id"),
    "event_backward_extremities": ("room_id", "event_id"),
    "server_signature_keys": ("server_name", "key_id", "verify_key", "ts_valid_until_ms"),
    "server_keys_json": ("server_name", "key_json"),
}

_PARTIAL_ROOMS = "partial_state_rooms"

#: The room version of a room whose ``m.room.create`` does not state one.
_DEFAULT_VERSION = "1"

#: Of a room without a recorded version, the JSON of its accepted ``m.room.create``.
_CREATE = """
    SELECT j.json FROM events e JOIN event_json j USING (event_id)
    WHERE e.room_id = %s AND e.type = 'm.room.create' AND e.topological_ordering <= 1
      AND NOT EXISTS (SELECT 1 FROM rejections x WHERE x.event_id = e.event_id)
    ORDER BY e.stream_ordering LIMIT 1
"""

# Each step of the recursion is one look into the index on (room_id, stream_ordering): a DISTINCT would
# read all events.
_ROOMS = """
    WITH RECURSIVE found AS (
        (SELECT room_id FROM events WHERE room_id > %(after)s ORDER BY room_id LIMIT 1)
        UNION ALL
        SELECT (SELECT e.room_id FROM events e WHERE e.room_id > found.room_id
                ORDER BY e.room_id LIMIT 1)
        FROM found WHERE found.room_id IS NOT NULL
    )
    SELECT room_id FROM (SELECT room_id FROM found WHERE room_id IS NOT NULL LIMIT %(limit)s) AS page
"""


class RoomTablesUnknown(Refused):
    """this Synapse keeps its rooms in a way that synrepl does not know: {missing} is missing; rooms can be imported from releases since 1.11"""


@dataclass(frozen=True, slots=True)
class RoomTables:
    """The room tables of one database.

    :ivar has_partial_rooms: whether rooms can be partially joined
    """

    has_partial_rooms: bool


@dataclass(frozen=True, slots=True)
class SourceRoom:
    """A room of the server.

    :ivar version: the name of its room version; None if neither the server nor ``m.room.create`` states it
    :ivar is_partial: whether the server has partial state of it
    """

    room_id: str
    version: str | None
    is_partial: bool = False


def locate_rooms(txn: Transaction) -> RoomTables:
    """Find the room tables.

    :raises NotSynapse: there are none
    :raises RoomTablesUnknown: columns are missing
    :raises MayNotRead: this user may not read them
    """
    columns, shut = table_columns(txn)
    if ("events", "stream_ordering") not in columns:
        raise NotSynapse(missing="events")
    missing = [
        f"{table}.{column}"
        for table, names in NEEDED.items()
        for column in names
        if (table, column) not in columns
    ]
    if missing:
        raise RoomTablesUnknown(missing=", ".join(missing))
    tables = {*NEEDED, _PARTIAL_ROOMS}
    if unreadable := tables & shut:
        raise MayNotRead(what=f"table {', '.join(sorted(unreadable))}")
    return RoomTables((_PARTIAL_ROOMS, "room_id") in columns)


def prefer_indexes(txn: Transaction) -> None:
    """Keep the planner of this transaction from scanning whole tables.

    Every statement here is answered from an index. With stale statistics, the planner may still
    expect a scan of ``state_groups_state`` to be cheaper.
    """
    txn.execute("SELECT set_config('enable_seqscan', 'off', true)")


def room_ids(txn: Transaction, after: str = "", limit: int = 1000) -> list[str]:
    """The IDs of rooms that have events, in their order.

    :param after: only rooms behind this one
    """
    txn.execute(_ROOMS, {"after": after, "limit": limit})
    return [str(room_id) for (room_id,) in txn.fetchall()]


def rooms_with_events(txn: Transaction, room_ids: Collection[str]) -> set[str]:
    """Those of the rooms that have events."""
    txn.execute(
        "SELECT room_id FROM unnest(%s::text[]) AS wanted (room_id)"
        " WHERE EXISTS (SELECT 1 FROM events e WHERE e.room_id = wanted.room_id)",
        (list(room_ids),),
    )
    return {str(room_id) for (room_id,) in txn.fetchall()}


def read_room(txn: Transaction, tables: RoomTables, room_id: str) -> SourceRoom:
    """The version of a room, and whether it is partial."""
    txn.execute("SELECT room_version FROM rooms WHERE room_id = %s", (room_id,))
    row = txn.fetchone_or_none()
    version = row[0] if row is not None else None
    if version is None:
        version = _version_in_create(txn, room_id)
    is_partial = False
    if tables.has_partial_rooms:
        txn.execute("SELECT 1 FROM partial_state_rooms WHERE room_id = %s", (room_id,))
        is_partial = txn.fetchone_or_none() is not None
    return SourceRoom(room_id, version, is_partial)


def count_events(txn: Transaction, room_id: str) -> int:
    """The number of events of a room, including outliers."""
    txn.execute("SELECT count(*) FROM events WHERE room_id = %s", (room_id,))
    return int(txn.fetchone()[0])


def _version_in_create(txn: Transaction, room_id: str) -> str | None:
    row = txn.execute(_CREATE, (room_id,)).fetchone_or_none()
    if row is None:
        return None
    try:
        fields = decode(row[0], "m.room.create")
    except BadJson:
        return None
    content = fields.get("content") if isinstance(fields, dict) else None
    version = content.get("room_version", _DEFAULT_VERSION) if isinstance(content, dict) else None
    return version if isinstance(version, str) else None
