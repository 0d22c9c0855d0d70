"""What clients are mostly told of one room, each in one statement: its members, and the events around one.

The statements give rows only in the plain case: the user is in the room, which is complete. Whether everything of it is
plain is up to the caller, who reads in a transaction otherwise: see :mod:`synrepl.services.rooms.timelines.plain_reads`.
They are planned without values, on a connection of their own (:data:`PLAIN_SETTINGS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from synrepl.positions.vector import PositionVector
from synrepl.rooms import EventOrdering
from synrepl.storage.database import Prepared, Record, Statements
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.rooms.timelines.event_sources import EVENT_AND_JSON, SOURCE_CELLS, AnswerRows
from synrepl.storage.rooms.timelines.room_entries import MEMBER
from synrepl.storage.rooms.visibility.audience import (
    BESIDE_BIT,
    JOIN,
    LEAVE,
    NEAR_BIT,
    membership_text,
)
from synrepl.storage.rooms.visibility.audience_sql import ViewerSql, membership_set
from synrepl.storage.rooms.visibility.covered_sql import writers_above
from synrepl.storage.rooms.visibility.erased_users import is_erased_sql
from synrepl.storage.rooms.visibility.viewer_sql import NEVER

#: Settings of the connection: all of the statements are look-ups, for which values change nothing.
PLAIN_SETTINGS: Mapping[str, str] = {
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "default_transaction_read_only": "on",
}

#: Members of a room, or keys of its states, above which it is not read so.
MOST_ENTRIES = 200

# As text, the JSON takes half as many bytes on the wire.
_SOURCE = f"{SOURCE_CELLS}, convert_from(j.raw, 'UTF8')"
_OF_EVENT = SOURCE_CELLS.removesuffix(", j.checksum")
_CELLS = len(SOURCE_CELLS.split(", ")) + 1
_REDACTED_BY = SOURCE_CELLS.split(", ").index("e.redacted_by")


class PlainMembers(NamedTuple):
    """The memberships in the current state of a room.

    :ivar version: of the room
    :ivar numbers: of their events
    """

    room_no: int
    version: str
    numbers: Sequence[int]
    rows: AnswerRows


class PlainEvent(NamedTuple):
    """An event that a user sees as it came.

    :ivar membership: of the user after the event
    """

    event_no: int
    event_id: str
    ordering: EventOrdering
    sender: str
    membership: str

    @property
    def is_whole(self) -> bool:
        """It is."""
        return True


class PlainWindow(NamedTuple):
    """Events that follow one another.

    :ivar version: of the room
    :ivar event: the one that was asked for
    :ivar before: the newest first
    :ivar after: the oldest first
    :ivar state: numbers of state events
    """

    room_no: int
    version: str
    event: PlainEvent | None
    before: Sequence[PlainEvent]
    after: Sequence[PlainEvent]
    state: Sequence[int]
    rows: AnswerRows


async def plain_members(
    statements: Statements, room_id: str, user: str, upto: int | None
) -> PlainMembers | None:
    """The members of a room that a user is in; None if it is not plain.

    :param upto: the room must have no event above this stream ordering; None: it may have any
    """
    if upto is None:
        found = await statements.run(_MEMBERS, (room_id, user))
    else:
        found = await statements.run(_MEMBERS_UPTO, (room_id, user, upto))
    if not found or len(found) > MOST_ENTRIES:
        return None
    room_no, version = found[0][:2]
    cells = [row[2:] for row in found]
    rows = _answer_rows(room_no, cells)
    return None if rows is None else PlainMembers(room_no, version, [c[0] for c in cells], rows)


class PlainReader(NamedTuple):
    """Who reads a room, and up to where.

    :ivar ceiling: what covers the events around the one that is asked for
    """

    room_id: str
    user: str
    device_id: str | None
    ignored: frozenset[str]
    ceiling: PositionVector

    def values(self) -> tuple[object, ...]:
        """The first parameters of a window."""
        above = writers_above(self.ceiling)
        return (
            self.room_id,
            self.user,
            self.device_id,
            array_text(list(self.ignored)),
            self.ceiling.linear,
            self.ceiling.highest,
            array_text(list(above)),
            array_text(list(above.values())),
        )


async def plain_context(
    statements: Statements, reader: PlainReader, event_id: str, before: int, after: int
) -> PlainWindow | None:
    """An event, those around it, and the state after the last of them; None if not all of it is plain."""
    found = await statements.run(_CONTEXT, (*reader.values(), before, event_id, after))
    window = _window(found)
    size = found[0][4] if found else None
    if window is None or window.event is None or len(window.state) != size:
        return None
    return window


async def plain_page(
    statements: Statements, reader: PlainReader, upto: EventOrdering, limit: int, *, lazy: bool
) -> PlainWindow | None:
    """The newest events up to an ordering; None if not all of it is plain, or there are none.

    :param lazy: whether the memberships of their senders are wanted, before the newest of them, as the state
    """
    return _window(await statements.run(_PAGE, (*reader.values(), limit, *upto, lazy)))


def _window(found: Sequence[Record]) -> PlainWindow | None:
    if not found or not all(row[1] for row in found):
        return None
    room_no, version = found[0][2:4]
    rows = _answer_rows(room_no, [row[-_CELLS:] for row in found])
    if rows is None:
        return None
    parts: dict[int, list[PlainEvent]] = {_BEFORE: [], _EVENT: [], _AFTER: []}
    state: list[int] = []
    for row in found:
        if row[0] == _STATE:
            state.append(row[-_CELLS])
        elif row[0] != _REPLACED:
            parts[row[0]].append(_shown(row))
            *_, old_no, txn_id = row[5:-_CELLS]
            if old_no is not None:
                rows.replaced[row[-_CELLS]] = old_no
            if txn_id is not None:
                rows.sent[row[-_CELLS + 1]] = txn_id
    parts[_BEFORE].sort(key=lambda each: each.ordering, reverse=True)
    parts[_AFTER].sort(key=lambda each: each.ordering)
    event = parts[_EVENT][0] if parts[_EVENT] else None
    return PlainWindow(room_no, version, event, parts[_BEFORE], parts[_AFTER], state, rows)


def _answer_rows(room_no: int, cells: Sequence[Sequence[Any]]) -> AnswerRows | None:
    """What events are made of; None if one of them was redacted, or is not there."""
    if any(each[-1] is None or each[_REDACTED_BY] is not None for each in cells):
        return None
    by_number = {each[0]: (*each[:-1], each[-1].encode()) for each in cells}
    return AnswerRows(dict.fromkeys(by_number, room_no), list(by_number.values()), {}, {})


def _shown(row: Record) -> PlainEvent:
    membership, topological = row[5:7]
    event_no, event_id, sender, _, stream_id, *_ = row[-_CELLS:]
    ordering = EventOrdering(topological, stream_id)
    return PlainEvent(event_no, event_id, ordering, sender, membership_text(membership))


_BEFORE, _EVENT, _AFTER, _REPLACED, _STATE = range(5)

# A room that is complete, and a user who is in it.
_JOINED = """
      FROM synrepl._rooms r
      JOIN synrepl._memberships m ON m.room_no = r.room_no AND m.user_id = $2::text
       AND m.membership = 'join'"""
_IS_PLAIN = """r.room_id = $1::text
       AND NOT EXISTS (SELECT FROM synrepl._partial_rooms p WHERE p.room_no = r.room_no)
       AND NOT EXISTS (SELECT FROM synrepl._forgotten_rooms f
                        WHERE f.room_no = r.room_no AND f.user_id = $2::text AND f.event_no = m.event_no)"""

_MEMBERS = Prepared(
    "plain_members",
    f"""
    SELECT r.room_no, r.version, {_SOURCE}
    {_JOINED}
     CROSS JOIN LATERAL (
           SELECT c.event_no FROM synrepl._room_keys k JOIN synrepl._current_state c USING (room_no, slot)
            WHERE k.room_no = r.room_no AND k.type = '{MEMBER}' LIMIT {MOST_ENTRIES + 1}) AS n
      LEFT JOIN {EVENT_AND_JSON}
     WHERE {_IS_PLAIN}""",
)
_MEMBERS_UPTO = Prepared(
    "plain_members_upto",
    f"""{_MEMBERS.sql} AND NOT EXISTS (
       SELECT FROM synrepl._room_heads h WHERE h.room_no = r.room_no AND h.stream_id > $3::bigint)""",
)

_IS_COVERED = """(e.stream_id <= $5::bigint OR e.stream_id <= $6::bigint AND EXISTS (
                   SELECT FROM synrepl.events f
                     JOIN unnest($7::text[], $8::bigint[]) AS w (writer, token) ON w.writer = f.writer
                    WHERE f.stream_id = e.stream_id AND f.stream_id <= w.token))"""


def _part(place: int, comparison: str, order: str, limit: str) -> str:
    """Events on one side of a place ``a``."""
    return f"""
        SELECT {place} AS place, e.event_no FROM room CROSS JOIN a CROSS JOIN LATERAL (
               SELECT e.event_no FROM synrepl._room_events e
                WHERE e.room_no = room.room_no AND e.stream_id IS NOT NULL AND {NEVER} = 0
                  AND (e.topological, e.stream_id) {comparison} (a.topological, a.stream_id)
                  AND {_IS_COVERED}
                ORDER BY e.topological {order}, e.stream_id {order} LIMIT {limit}) AS e"""


# As on the main line since the user joined; else as the state has it.
_MEMBERSHIP = f"""CASE WHEN e.slot = room.slot THEN {membership_set("e.audience")}
                     WHEN e.audience & {BESIDE_BIT | NEAR_BIT} = 0 AND e.group_after >= room.since THEN {JOIN}
                     ELSE coalesce((
                          SELECT {membership_set("m.audience")} FROM synrepl._room_events m
                           WHERE m.event_no = synrepl.state_entry(e.room_no, e.group_after, room.slot)), {LEAVE}) END"""
_SEEN = ViewerSql(
    audience="found.audience",
    membership="found.membership",
    own="found.own",
    ignored="found.sender = ANY ($4::text[])",
    erased="found.erased",
    peeking="false",
)


def _window_sql(place: str, parts: str, size: str, state: str, condition: str = "true") -> str:
    """The statement of a window.

    :param place: a query for where it is
    :param parts: of its events
    :param size: a query for ``size``, the number of entries of a state
    :param state: a query for the numbers of state events
    """
    return f"""
    WITH room AS MATERIALIZED (
        SELECT r.room_no, r.version, r.main_line, k.slot,
               (SELECT CASE WHEN l.event_no = m.event_no THEN l.pos END FROM synrepl._state_line l
                 WHERE l.line_no = r.main_line AND l.slot = k.slot ORDER BY l.pos DESC LIMIT 1) AS since
        {_JOINED}
          JOIN synrepl._room_keys k ON k.room_no = r.room_no AND k.type = '{MEMBER}'
           AND k.state_key = $2::text
         WHERE {_IS_PLAIN} AND {condition}
    ), a AS MATERIALIZED ({place}), shown AS MATERIALIZED (
        SELECT found.*, NOT found.erased AND {_SEEN.shows()} AS is_whole
          FROM (SELECT w.place, e.event_no, e.event_id, e.topological, e.stream_id,
                       e.group_before, e.group_after, e.sender, e.origin_server_ts, e.redacted_by, e.audience,
                       coalesce(e.slot = room.slot, false) AS own, {is_erased_sql("e.sender")} AS erased,
                       {_MEMBERSHIP} AS membership,
                       CASE WHEN e.slot IS NOT NULL
                            THEN synrepl.state_entry(e.room_no, e.group_before, e.slot) END AS old_no
                  FROM ({parts}) AS w
                 CROSS JOIN room CROSS JOIN LATERAL (
                       SELECT e.* FROM synrepl._room_events e WHERE e.event_no = w.event_no OFFSET 0) AS e
                OFFSET 0) AS found
    ), last AS MATERIALIZED ({size}), named AS (
        SELECT shown.place, shown.is_whole, shown.membership, shown.topological, shown.old_no, x.txn_id,
               {_OF_EVENT.replace("e.", "shown.")}
          FROM shown LEFT JOIN LATERAL (
               SELECT x.txn_id FROM synrepl._sent_events x
                WHERE shown.sender = $2::text AND x.event_id = shown.event_id AND x.user_id = $2::text
                  AND x.device_id = $3::text LIMIT 1) AS x ON true
        UNION ALL
        SELECT other.place, true, NULL, NULL, NULL, NULL, {_OF_EVENT}
          FROM (SELECT {_REPLACED} AS place, shown.old_no AS event_no
                  FROM shown WHERE shown.old_no IS NOT NULL
                UNION ALL SELECT {_STATE}, state.event_no FROM ({state}) AS state) AS other
          LEFT JOIN LATERAL (
               SELECT e.* FROM synrepl._room_events e WHERE e.event_no = other.event_no OFFSET 0) AS e ON true
    )
    SELECT n.place, n.is_whole, room.room_no, room.version, last.size, n.membership, n.topological,
           n.old_no, n.txn_id, {_SOURCE.replace("e.", "n.")}
      FROM named AS n CROSS JOIN room LEFT JOIN last ON true LEFT JOIN LATERAL (
           SELECT j.checksum, j.raw FROM synrepl._room_event_json j
            WHERE j.event_no = n.event_no OFFSET 0) AS j ON true"""


_CONTEXT = Prepared(
    "plain_context",
    _window_sql(
        f"""
        SELECT e.event_no, e.topological, e.stream_id FROM room CROSS JOIN LATERAL (
               SELECT e.* FROM synrepl._room_events e WHERE e.event_id = $10::text OFFSET 0) AS e
         WHERE e.room_no = room.room_no AND e.stream_id IS NOT NULL AND {NEVER} = 0""",
        f"""
        SELECT {_EVENT} AS place, a.event_no FROM a
        UNION ALL {_part(_BEFORE, "<", "DESC", "$9::int")}
        UNION ALL {_part(_AFTER, ">", "ASC", "$11::int")}""",
        f"""
        SELECT s.group_after, g.size FROM room CROSS JOIN (
               SELECT shown.group_after FROM shown WHERE shown.place <> {_BEFORE}
                ORDER BY shown.topological DESC, shown.stream_id DESC LIMIT 1) AS s
          JOIN synrepl._state_groups g ON g.room_no = room.room_no AND g.group_no = s.group_after
         WHERE NOT EXISTS (SELECT FROM synrepl._state_group_lines o
                            WHERE o.room_no = room.room_no AND o.group_no = s.group_after)""",
        f"""
        SELECT v.event_no FROM room CROSS JOIN last CROSS JOIN LATERAL (
               SELECT k.slot FROM synrepl._room_keys k WHERE k.room_no = room.room_no
                LIMIT {MOST_ENTRIES + 1}) AS k
         CROSS JOIN LATERAL (
               SELECT l.event_no FROM synrepl._state_line l
                WHERE l.line_no = room.main_line AND l.slot = k.slot AND l.pos <= last.group_after
                ORDER BY l.pos DESC LIMIT 1) AS v
         WHERE v.event_no IS NOT NULL""",
    ),
)

# Events that other servers may have are asked for otherwise.
_PAGE = Prepared(
    "plain_page",
    _window_sql(
        "SELECT $10::bigint AS topological, $11::bigint AS stream_id",
        _part(_BEFORE, "<=", "DESC", "$9::int"),
        "SELECT NULL::int AS size",
        f"""
        SELECT synrepl.state_entry(room.room_no, newest.group_before, k.slot) AS event_no
          FROM room CROSS JOIN (
               SELECT shown.group_before FROM shown
                ORDER BY shown.topological DESC, shown.stream_id DESC LIMIT 1) AS newest
         CROSS JOIN (SELECT DISTINCT shown.sender FROM shown WHERE $12::boolean) AS s
          LEFT JOIN synrepl._room_keys k ON k.room_no = room.room_no AND k.type = '{MEMBER}'
           AND k.state_key = s.sender""",
        "NOT EXISTS (SELECT FROM synrepl._backward_extremities b WHERE b.room_no = r.room_no)",
    ),
)
