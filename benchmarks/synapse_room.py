"""A room in the tables of a Synapse database, of any size, for the import to read.

One server's room of version 10: members join, then they talk; every tenth event is a membership. Every event
is hashed and signed. States are stored as such a server stores them: a group for each state event, as an
overlay of the previous group, and every hundredth group in full.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg2
from signedjson.key import generate_signing_key, get_verify_key

from benchmarks.child import REPOSITORY
from synrepl.rooms import Event, event_of, room_version, sign_event

#: The server, which is also the only one whose key is stored.
SERVER = "bench.example"

_SCHEMA = REPOSITORY / "tests" / "data" / "foreign" / "1.163.2" / "schema.sql.gz"

_VERSION = room_version("10")

#: Groups that overlay one another, until one is stored in full.
_HOPS = 100

#: Every so many events, one is a membership.
_STATE_EVERY = 10

#: Events that are written at once.
_CHUNK = 2_000

_COLUMNS = {
    "events": "topological_ordering, event_id, type, room_id, processed, outlier, depth,"
    " origin_server_ts, received_ts, sender, contains_url, stream_ordering",
    "event_json": "event_id, room_id, internal_metadata, json, format_version",
    "event_edges": "event_id, prev_event_id, room_id, is_state",
    "event_to_state_groups": "event_id, state_group",
    "state_events": "event_id, room_id, type, state_key",
    "state_groups": "id, room_id, event_id",
    "state_group_edges": "state_group, prev_state_group",
    "state_groups_state": "state_group, room_id, type, state_key, event_id",
}


class SyntheticRoom:
    """Makes the events and states of a room, one after the other."""

    def __init__(self, room_id: str, members: int) -> None:
        self.room_id = room_id
        self.key = generate_signing_key("bench")
        self._users = [f"@u{number}:{SERVER}" for number in range(members)]
        self.state: dict[tuple[str, str], str] = {}
        self.depth = 0
        self._prev: list[str] = []

    def events(self) -> Iterator[Event]:
        """Its events, without end."""
        creator = self._users[0]
        yield self._made("m.room.create", creator, "", {"creator": creator, "room_version": "10"})
        yield self._made("m.room.member", creator, creator, {"membership": "join"})
        levels = {"users": {creator: 100}, "users_default": 0}
        yield self._made("m.room.power_levels", creator, "", levels)
        yield self._made("m.room.join_rules", creator, "", {"join_rule": "public"})
        for user in self._users[1:]:
            yield self._made("m.room.member", user, user, {"membership": "join"})
        number = 0
        while True:
            number += 1
            user = self._users[number % len(self._users)]
            if number % _STATE_EVERY:
                content = {"msgtype": "m.text", "body": f"message {number} " + "lorem ipsum " * 8}
                yield self._made("m.room.message", user, None, content)
            else:
                content = {"membership": "join", "displayname": f"name {number}"}
                yield self._made("m.room.member", user, user, content)

    def _made(
        self, kind: str, sender: str, state_key: str | None, content: dict[str, Any]
    ) -> Event:
        self.depth += 1
        keys = [("m.room.create", ""), ("m.room.power_levels", ""), ("m.room.member", sender)]
        if content.get("membership") == "join":
            keys.append(("m.room.join_rules", ""))
        fields = {
            "type": kind,
            "room_id": self.room_id,
            "sender": sender,
            "content": content,
            "depth": self.depth,
            "origin_server_ts": 1_700_000_000_000 + self.depth,
            "prev_events": self._prev,
            "auth_events": [self.state[key] for key in keys if key in self.state],
        }
        if state_key is not None:
            fields["state_key"] = state_key
        event = event_of(sign_event(fields, _VERSION, SERVER, self.key), _VERSION)
        self._prev = [event.event_id]
        if state_key is not None:
            self.state[kind, state_key] = event.event_id
        return event


def fill(dsn: str, events: int, members: int = 300) -> None:
    """Fill an empty database with the schema and one room.

    :param events: number of events
    :param members: number of users who join first
    """
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(gzip.decompress(_SCHEMA.read_bytes()))
        cursor.execute("SET search_path = public")
        room = SyntheticRoom(f"!bench:{SERVER}", members)
        _write_room(cursor, room, events)
        verify_key = get_verify_key(room.key)
        cursor.execute(
            "INSERT INTO server_signature_keys (server_name, key_id, from_server, ts_added_ms,"
            " verify_key, ts_valid_until_ms) VALUES (%s, 'ed25519:bench', %s, 1, %s, %s)",
            (SERVER, SERVER, verify_key.encode(), 2**52),
        )
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    connection.close()


def _write_room(cursor: Any, room: SyntheticRoom, events: int) -> None:
    cursor.execute(
        "INSERT INTO rooms (room_id, is_public, creator, room_version) VALUES (%s, true, %s, '10')",
        (room.room_id, f"@u0:{SERVER}"),
    )
    group = hops = 0
    rows: dict[str, StringIO] = {table: StringIO() for table in _COLUMNS}

    def add(table: str, *values: object) -> None:
        cells = (
            "t" if each is True else "f" if each is False else str(each).replace("\\", "\\\\")
            for each in values
        )
        rows[table].write("\t".join(cells) + "\n")

    last = ""
    for number, event in enumerate(room.events(), 1):
        event_id, room_id = event.event_id, room.room_id
        if event.state_key is not None:
            group, hops = group + 1, hops + 1
            add("state_events", event_id, room_id, event.type, event.state_key)
            add("state_groups", group, room_id, event_id)
            if group > 1 and hops < _HOPS:
                add("state_group_edges", group, group - 1)
                changed = {(event.type, event.state_key): event_id}
            else:
                hops, changed = 0, room.state
            for (kind, state_key), each in changed.items():
                add("state_groups_state", group, room_id, kind, state_key, each)
        depth, at = event.depth, event.origin_server_ts
        add("events", depth, event_id, event.type, room_id, True, False, depth, at, at,
            event.sender, False, number)  # fmt: skip
        add("event_json", event_id, room_id, "{}", json.dumps(event.fields), 3)
        for each in event.prev_event_ids:
            add("event_edges", event_id, each, room_id, False)
        add("event_to_state_groups", event_id, group)
        last = event_id
        if number % _CHUNK == 0 or number == events:
            for table, buffer in rows.items():
                buffer.seek(0)
                cursor.copy_expert(f"COPY {table} ({_COLUMNS[table]}) FROM STDIN", buffer)
                rows[table] = StringIO()
        if number == events:
            break
    cursor.execute(
        "INSERT INTO event_forward_extremities (event_id, room_id) VALUES (%s, %s)",
        (last, room.room_id),
    )
    for (kind, state_key), each in room.state.items():
        cursor.execute(
            "INSERT INTO current_state_events (event_id, room_id, type, state_key)"
            " VALUES (%s, %s, %s, %s)",
            (each, room.room_id, kind, state_key),
        )
