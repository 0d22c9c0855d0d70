"""A room with many state groups, written into a Synapse's tables as that server does."""

from __future__ import annotations

from contextlib import closing

import psycopg2

ROOM_ID = "!large:localhost:18501"

#: Changes of states without forks: all keys are set, then set again in a scattered order. Each group is stored as
#: a change to the one before it, and after a hundred of them, whole. Its events are not stored, but one.
_INSERT = """
    CREATE TEMPORARY TABLE step ON COMMIT DROP AS
    SELECT n, 1000000 + n AS id, '$' || encode(sha256(n::text::bytea), 'hex') AS event_id,
        (CASE WHEN n < %(keys)s THEN n ELSE n * 7919 %% %(keys)s END)::text AS state_key,
        n %% 101 = 0 AS is_whole
    FROM generate_series(0, %(steps)s - 1) AS n;
    INSERT INTO rooms (room_id, is_public, creator, room_version)
    VALUES (%(room_id)s, false, '@a:localhost:18501', '6');
    INSERT INTO events (stream_ordering, topological_ordering, event_id, type, room_id, processed,
        outlier, depth, origin_server_ts, received_ts, sender, contains_url)
    SELECT 1000000 + n, n, event_id, 'org.example.state', %(room_id)s, true, false, n,
        1700000000000 + n * 60000, 1700000000000 + n * 60000, '@a:localhost:18501', false FROM step;
    INSERT INTO state_events (event_id, room_id, type, state_key)
    SELECT event_id, %(room_id)s, 'org.example.state', state_key FROM step;
    INSERT INTO event_edges (event_id, prev_event_id, room_id, is_state)
    SELECT s.event_id, p.event_id, %(room_id)s, false FROM step s JOIN step p ON p.n = s.n - 1;
    INSERT INTO event_to_state_groups (event_id, state_group) SELECT event_id, id FROM step;
    INSERT INTO state_groups (id, room_id, event_id) SELECT id, %(room_id)s, event_id FROM step;
    INSERT INTO state_group_edges (state_group, prev_state_group)
    SELECT id, id - 1 FROM step WHERE NOT is_whole;
    INSERT INTO state_groups_state (state_group, room_id, type, state_key, event_id)
    SELECT id, %(room_id)s, 'org.example.state', state_key, event_id FROM step WHERE NOT is_whole
    UNION ALL
    SELECT w.id, %(room_id)s, 'org.example.state', e.state_key, e.event_id FROM step w
    CROSS JOIN LATERAL (SELECT DISTINCT ON (s.state_key) s.state_key, s.event_id FROM step s
        WHERE s.n <= w.n ORDER BY s.state_key, s.n DESC) e
    WHERE w.is_whole
"""


def insert_large_room(dsn: str, keys: int, changes: int) -> None:
    """Write a room in which ``keys`` entries are set, and then changed."""
    values = {"keys": keys, "steps": keys + changes, "room_id": ROOM_ID}
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_INSERT, values)
