"""A room of which every user sees a small part, made by a few statements instead of a persister.

Its history is for those who are in the room. Every :data:`GROUP` events, a membership changes:

- ``@once`` was in the room for 1 % of its events, in the middle;
- ``@often`` comes and goes all the time, and was there for 1 % of the events, in many short stays;
- ``@never`` was not;
- the others come and go as well.

One event in :data:`FORK` is on a short branch, so that the state after it is beside the main line.
"""

from __future__ import annotations

from collections.abc import Iterable

from synrepl.core.jsons import encode
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import checksum
from synrepl.storage.rooms.visibility.audience import (
    EXCEPTION_BIT,
    FIRST_BIT,
    JOIN,
    LEAVE,
    NEAR_BIT,
    SETS_SHIFT,
    STATE_BIT,
    TARGET_BIT,
)

ROOM_ID = "!hidden:example.org"

#: Events between changes of the state.
GROUP = 20

#: One event in so many is on a branch that is near the main line; the state after it differs in no membership.
FORK = 50

ONCE, OFTEN, NEVER = "@once:example.org", "@often:example.org", "@never:example.org"

#: Every so many groups, ``@often`` is in the room for one.
_OFTEN_GROUPS = 100

#: Slots of ``@once``, ``@often``, of the history visibility, and the first of the other members.
_ONCE, _OFTEN, _VISIBILITY, _OTHERS = 0, 1, 2, 3

_SETS_JOIN = STATE_BIT | TARGET_BIT | JOIN << SETS_SHIFT
_SETS_LEAVE = STATE_BIT | TARGET_BIT | LEAVE << SETS_SHIFT | EXCEPTION_BIT | JOIN << 6


def fill(txn: Transaction, events: int, members: int) -> None:
    """Make the room, with its statistics.

    :param members: the others
    """
    groups = events // GROUP
    params = {
        "events": events,
        "members": members,
        "stay": max(1, groups // 250),
        "since": groups // 2,
        "until": groups // 2 + max(1, groups // 100),
        "room": ROOM_ID,
    }
    txn.execute(_ROOM, params)
    txn.execute(_EVENTS, params)
    txn.execute(_LINE, params)
    txn.execute(_BRANCHES, params)


_ROOM = f"""
    INSERT INTO synrepl._rooms (room_no, room_id, version, main_line) VALUES (1, %(room)s, '10', 1);
    INSERT INTO synrepl._room_keys (room_no, slot, type, state_key) VALUES
        (1, {_ONCE}, 'm.room.member', '{ONCE}'), (1, {_OFTEN}, 'm.room.member', '{OFTEN}'),
        (1, {_VISIBILITY}, 'm.room.history_visibility', '');
    INSERT INTO synrepl._room_keys (room_no, slot, type, state_key)
        SELECT 1, {_OTHERS} + n, 'm.room.member', '@member' || n || ':s' || n %% 50 || '.example.org'
          FROM generate_series(0, %(members)s - 1) AS n"""

# Event number i is the i-th of the stream and of the topological ordering. Group g begins with the
# state event i = g * GROUP. Each of the others joins when it is its turn, and leaves a part of
# the room's length later, or so.
_CHANGES = f"""
    (SELECT g, g * {GROUP} AS event_no,
            CASE WHEN g = 1 THEN {_VISIBILITY}
                 WHEN g IN (%(since)s, %(until)s) THEN {_ONCE}
                 WHEN g %% {_OFTEN_GROUPS} IN (10, 11) THEN {_OFTEN}
                 WHEN g %% 2 = 0 THEN {_OTHERS} + (g / 2) %% %(members)s
                 ELSE {_OTHERS} + ((g - %(stay)s / 2 * 2 - 1) / 2 + %(members)s) %% %(members)s END AS slot,
            CASE WHEN g = 1 THEN {STATE_BIT}
                 WHEN g = %(since)s THEN {_SETS_JOIN}
                 WHEN g = %(until)s THEN {_SETS_LEAVE}
                 WHEN g %% {_OFTEN_GROUPS} = 10 THEN {_SETS_JOIN}
                 WHEN g %% {_OFTEN_GROUPS} = 11 THEN {_SETS_LEAVE}
                 WHEN g %% 2 = 0 THEN {_SETS_JOIN} ELSE {_SETS_LEAVE} END AS audience
       FROM generate_series(1, %(events)s / {GROUP}) AS g) AS c"""

_EVENTS = f"""
    INSERT INTO synrepl._room_events
           (event_no, stream_id, topological, depth, origin_server_ts, group_before, group_after,
            room_no, type_no, slot, audience, event_id, sender, prev_nos, auth_nos)
    SELECT i, i, i, i, 1700000000000 + i,
           CASE WHEN c.g IS NULL THEN i / {GROUP} ELSE greatest(i / {GROUP} - 1, 1) END,
           CASE WHEN i %% {FORK} = 7 THEN %(events)s + i ELSE greatest(i / {GROUP}, 1) END,
           1, CASE WHEN c.g IS NULL THEN 17 ELSE 2 END, c.slot,
           coalesce(c.audience, 0)
               | CASE WHEN c.g IS NOT NULL THEN {FIRST_BIT}
                      WHEN i %% {FORK} = 7 THEN {NEAR_BIT} ELSE 0 END,
           '$' || left(translate(encode(sha256(i::text::bytea), 'base64'), '+/', '-_'), 43),
           '@member' || i %% %(members)s || ':s' || i %% 50 || '.example.org', ARRAY[i - 1],
           ARRAY[1::bigint]
      FROM generate_series({GROUP}, %(events)s) AS i
      LEFT JOIN {_CHANGES} ON c.event_no = i"""

_LINE = f"""
    INSERT INTO synrepl._state_line (pos, event_no, line_no, slot)
    SELECT c.g, c.event_no, 1, c.slot FROM {_CHANGES}
    ON CONFLICT DO NOTHING"""

# A branch differs in one entry that is nobody's membership.
_BRANCHES = f"""
    INSERT INTO synrepl._state_group_lines (group_no, pos, room_no, line_no, slots, event_nos)
    SELECT %(events)s + i, i / {GROUP}, 1, 1, ARRAY[-2], ARRAY[1::bigint]
      FROM generate_series({GROUP}, %(events)s) AS i WHERE i %% {FORK} = 7"""


def fill_for_clients(txn: Transaction, shown: Iterable[tuple[int, str]]) -> None:
    """Add what clients are answered from: memberships, the end of the room, and JSON.

    :param shown: numbers and IDs of the events that a client will be shown; the JSON of others is as large
    """
    txn.execute(
        f"INSERT INTO synrepl._memberships (event_no, stream_id, room_no, user_id, membership)"
        f" SELECT event_no, stream_id, 1, '{OFTEN}', 'join' FROM synrepl._room_events"
        f" WHERE slot = {_OFTEN} ORDER BY event_no DESC LIMIT 1"
    )
    txn.execute(
        "INSERT INTO synrepl._room_heads SELECT 1, 1, max(stream_id), 0, max(topological),"
        " max(group_after), count(*), 0, 0, 0, 0 FROM synrepl._room_events"
    )
    txn.execute(
        "INSERT INTO synrepl._room_event_json SELECT event_no, 0, convert_to(repeat('x', 400), 'UTF8')"
        " FROM synrepl._room_events"
    )
    for event_no, event_id in shown:
        event = {
            "type": "m.room.message",
            "sender": "@somebody:example.org",
            "content": {"msgtype": "m.text", "body": "x" * 200},
            "origin_server_ts": 1_700_000_000_000,
        }
        raw = encode(event)
        txn.execute(
            "UPDATE synrepl._room_event_json SET checksum = %s, raw = %s WHERE event_no = %s",
            (checksum(event_id, raw), raw, event_no),
        )


#: The table of the seed: which users may see which events, in the order of a page.
SEED_TABLE = """
    CREATE TABLE seen_events (
        user_no integer NOT NULL,
        room_no integer NOT NULL,
        topological bigint NOT NULL,
        stream_id bigint NOT NULL,
        event_no bigint NOT NULL,
        PRIMARY KEY (user_no, room_no, topological, stream_id) INCLUDE (event_no)
    )"""


def fill_seed_table(txn: Transaction, users: int) -> None:
    """Fill the table for some of the users: by the intervals in which they were in the room."""
    txn.execute(SEED_TABLE)
    txn.execute(
        f"""
        INSERT INTO seen_events
        SELECT stay.slot, 1, e.topological, e.stream_id, e.event_no
          FROM (SELECT l.slot, l.pos AS since,
                       lead(l.pos) OVER (PARTITION BY l.slot ORDER BY l.pos) AS until,
                       (e.audience >> {SETS_SHIFT}) & 7 AS membership
                  FROM synrepl._state_line l JOIN synrepl._room_events e USING (event_no)
                 WHERE l.line_no = 1 AND l.slot <> {_VISIBILITY} AND l.slot < %s) AS stay
          JOIN synrepl._room_events e ON e.room_no = 1
           AND e.topological >= stay.since * {GROUP}
           AND e.topological <= coalesce(stay.until * {GROUP}, (1::bigint << 62))
         WHERE stay.membership = {JOIN}
        ON CONFLICT DO NOTHING""",
        (users + _OTHERS,),
    )
