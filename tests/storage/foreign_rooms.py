"""Databases of real Synapse servers with the rooms that were recorded of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import psycopg2
from psycopg2.extras import execute_values
from unpaddedbase64 import decode_base64

from synrepl.rooms import event_of, room_version
from synrepl.testing.postgres import DatabaseTemplate, HasCleanups
from tests.rooms.test_corpus import CORPUS
from tests.rooms.test_real_rooms import Recorded, recorded_rooms
from tests.storage.foreign_databases import DATA

#: Tables in which a server stores an event.
_EVENT_TABLES = (
    "events",
    "event_json",
    "event_edges",
    "event_to_state_groups",
    "redactions",
    "event_backward_extremities",
    "current_state_events",
    "event_auth",
    "state_events",
    "room_memberships",
)

_TAKE_ENDS = "DELETE FROM event_forward_extremities WHERE room_id = ANY(%s) RETURNING *"

_FIND_ENDS = (
    "INSERT INTO event_forward_extremities (event_id, room_id)"
    " SELECT e.event_id, e.room_id FROM events e WHERE e.room_id = ANY(%s) AND NOT e.outlier"
    " AND NOT EXISTS (SELECT FROM event_edges d WHERE d.prev_event_id = e.event_id)"
    " AND NOT EXISTS (SELECT FROM rejections r WHERE r.event_id = e.event_id)"
)

#: Larger than any time in the recordings, in milliseconds since 1970.
_VALID_UNTIL = 4_000_000_000_000


def published_keys(version: str) -> dict[str, dict[str, str]]:
    """The recorded keys, in unpadded Base64 by server and key ID."""
    found: dict[str, dict[str, str]] = json.loads((CORPUS / version / "keys.json").read_text())
    return found


def rooms_of(version: str) -> list[Recorded]:
    """The recorded rooms of one server."""
    return [each for each in recorded_rooms() if each.server == version]


async def room_database(
    version: str, case: HasCleanups | None, rooms: Sequence[Recorded] | None = None
) -> str:
    """A database of a release with recorded rooms; its DSN.

    :param rooms: by default all of that release's server
    """
    dsn = await _without_rooms(version).copy(case)
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("SET search_path = public")
        for recorded in rooms_of(version) if rooms is None else rooms:
            insert_room(cursor, recorded)
    return dsn


@cache
def _without_rooms(version: str) -> DatabaseTemplate:
    async def load(dsn: str) -> None:
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(gzip.decompress((DATA / version / "schema.sql.gz").read_bytes()))
            cursor.execute("SET search_path = public")
            cursor.execute("SELECT version FROM schema_version")
            if cursor.fetchone() is None:
                cursor.execute("INSERT INTO schema_version (version, upgraded) VALUES (1, true)")
            insert_keys(cursor, published_keys(version))
        connection.close()

    return DatabaseTemplate(load)


def insert_keys(cursor: Any, keys: Mapping[str, Mapping[str, str]]) -> None:
    """Store servers' keys."""
    rows = [
        {
            "server_name": server,
            "key_id": key_id,
            "from_server": server,
            "ts_added_ms": 1,
            "verify_key": decode_base64(key),
            "ts_valid_until_ms": _VALID_UNTIL,
        }
        for server, published in keys.items()
        for key_id, key in published.items()
    ]
    _insert(cursor, "server_signature_keys", rows)


def insert_room(cursor: Any, recorded: Recorded) -> None:
    """Store a room as its server did."""
    room_id, room = recorded.room_id, recorded.room
    version = room_version(room["room_version"])
    cursor.execute(
        "INSERT INTO rooms (room_id, is_public, creator, room_version) VALUES (%s, %s, %s, %s)",
        (room_id, room["is_public"], room["creator"], room["room_version"]),
    )
    events = {row["event_id"]: event_of(row["event"], version) for row in recorded.rows}
    full = {row["event_id"] for row in recorded.rows if not row["outlier"]}
    _insert(
        cursor,
        "events",
        [
            {
                "stream_ordering": row["stream_ordering"],
                "topological_ordering": row["topological_ordering"],
                "event_id": row["event_id"],
                "type": row["event"]["type"],
                "room_id": room_id,
                "processed": True,
                "outlier": row["outlier"],
                "depth": row["depth"],
                "origin_server_ts": row["event"]["origin_server_ts"],
                "received_ts": row["event"]["origin_server_ts"],
                "sender": row["event"]["sender"],
                "contains_url": False,
            }
            for row in recorded.rows
        ],
    )
    _insert(
        cursor,
        "event_json",
        [
            {
                "event_id": row["event_id"],
                "room_id": room_id,
                "internal_metadata": json.dumps(row["internal_metadata"]),
                "json": json.dumps(row["event"], ensure_ascii=False),
                "format_version": row["format_version"],
            }
            for row in recorded.rows
        ],
    )
    _insert(
        cursor,
        "event_edges",
        [
            {
                "event_id": event_id,
                "prev_event_id": each,
                "room_id": room_id,
                "is_state": False,
            }
            for event_id in full
            for each in dict.fromkeys(events[event_id].prev_event_ids)
        ],
    )
    _insert(
        cursor,
        "event_backward_extremities",
        [
            {"event_id": each, "room_id": room_id}
            for each in {
                each
                for event_id in full
                for each in events[event_id].prev_event_ids
                if each not in full
            }
        ],
    )
    _insert(
        cursor,
        "event_forward_extremities",
        [{"event_id": each, "room_id": room_id} for each in room["forward_extremities"]],
    )
    _insert(
        cursor,
        "rejections",
        [
            {"event_id": row["event_id"], "reason": row["rejected"], "last_check": ""}
            for row in recorded.rows
            if row["rejected"] is not None
        ],
    )
    _insert(
        cursor,
        "redactions",
        [
            {"event_id": event_id, "redacts": event.redacts}
            for event_id, event in events.items()
            if event.redacts is not None
        ],
    )
    _insert(
        cursor,
        "event_to_state_groups",
        [
            {"event_id": row["event_id"], "state_group": row["state_group"]}
            for row in recorded.rows
            if row["state_group"] is not None
        ],
    )
    _insert(
        cursor,
        "event_auth",
        [
            {"event_id": event_id, "auth_id": each, "room_id": room_id}
            for event_id, event in events.items()
            for each in dict.fromkeys(event.auth_event_ids)
        ],
    )
    _insert(
        cursor,
        "state_events",
        [
            {
                "event_id": event_id,
                "room_id": room_id,
                "type": event.type,
                "state_key": event.state_key,
            }
            for event_id, event in events.items()
            if event.state_key is not None
        ],
    )
    _insert(
        cursor,
        "room_memberships",
        [
            {
                "event_id": event_id,
                "user_id": event.state_key,
                "sender": event.sender,
                "room_id": room_id,
                "membership": event.membership,
            }
            for event_id, event in events.items()
            if event.type == "m.room.member"
        ],
    )
    groups = room["state_groups"]
    _insert(
        cursor,
        "state_groups",
        [
            {"id": int(group), "room_id": room_id, "event_id": stored["event_id"]}
            for group, stored in groups.items()
        ],
    )
    _insert(
        cursor,
        "state_group_edges",
        [
            {"state_group": int(group), "prev_state_group": stored["prev"]}
            for group, stored in groups.items()
            if stored["prev"] is not None
        ],
    )
    _insert(
        cursor,
        "state_groups_state",
        [
            {
                "state_group": int(group),
                "room_id": room_id,
                "type": kind,
                "state_key": state_key,
                "event_id": event_id,
            }
            for group, stored in groups.items()
            for kind, state_key, event_id in stored["delta"]
        ],
    )
    _insert(
        cursor,
        "current_state_events",
        [
            {
                "event_id": event_id,
                "room_id": room_id,
                "type": kind,
                "state_key": state_key,
            }
            for (kind, state_key), event_id in recorded.current_state.items()
        ],
    )


def take_out(dsn: str, event_ids: Sequence[str]) -> Callable[[], None]:
    """Take the newest events out of a database, as if they had not come; returns a function that puts them back."""
    kept = []
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(
            "SELECT array_agg(room_id) FROM events WHERE event_id = ANY(%s)", (list(event_ids),)
        )
        (room_ids,) = cursor.fetchone()
        cursor.execute(_TAKE_ENDS, (room_ids,))
        ends = cursor.fetchall()
        for table in _EVENT_TABLES:
            cursor.execute(
                f"DELETE FROM {table} WHERE event_id = ANY(%s) RETURNING *", (list(event_ids),)
            )
            kept.append((table, cursor.fetchall()))
        cursor.execute(_FIND_ENDS, (room_ids,))
    kept.append(("event_forward_extremities", ends))

    def put_back() -> None:
        with (
            closing(psycopg2.connect(dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(_TAKE_ENDS, (room_ids,))
            for table, rows in kept:
                for row in rows:
                    places = ", ".join(["%s"] * len(row))
                    cursor.execute(f"INSERT INTO {table} VALUES ({places})", row)

    return put_back


def _insert(cursor: Any, table: str, rows: Iterable[Mapping[str, object]]) -> None:
    rows = list(rows)
    if rows:
        columns = list(rows[0])
        names = ", ".join(columns)
        values = [tuple(row[column] for column in columns) for row in rows]
        execute_values(cursor, f"INSERT INTO {table} ({names}) VALUES %s", values)
