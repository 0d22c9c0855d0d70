"""Entries of many states of a room by key, in one statement that a connection plans once.

It finds where the groups are, probes the index of the line for each group and key, and names the events
that it finds. Nearby states have the same entries, so the result is a row for each entry, with the states
that have it: a few rows for hundreds of look-ups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import PlannedOnce, Record, Script, Transaction
from synrepl.storage.rooms.states.state_groups import CorruptState
from synrepl.storage.rooms.tables.numbers import NumberWithoutRow, RoomRow
from synrepl.storage.rooms.tables.pending_rows import array_text


class EventEntries(NamedTuple):
    """Entries of the states at some events.

    :ivar are_usual: whether all events are in one room, and none of them is unknown or has an unusual flag;
        otherwise there are no entries
    :ivar states: in the order of the events
    """

    are_usual: bool
    states: list[dict[StateKey, str]]


def entries_at_groups(
    txn: Transaction, room: RoomRow, groups: Sequence[int], slots: Mapping[StateKey, int]
) -> list[dict[StateKey, str]]:
    """Entries of states, in the order of the groups. Keys that a state has no entry for are left out.

    :raises CorruptState: an entry is an event with another key
    :raises NumberWithoutRow: an entry is no state event of the room, or the line of a group is not here
    """
    if not groups or not slots:
        return [{} for _ in groups]
    keys = list(slots)
    txn.execute(_AT_GROUPS, (room.room_no, array_text(groups), array_text(list(slots.values()))))
    return _states(txn.fetchall(), keys, len(groups))


def entries_at_events(
    txn: Transaction,
    event_ids: Sequence[str],
    keys: Sequence[StateKey],
    *,
    before: bool,
    unusual: int,
) -> EventEntries:
    """Entries of the states after (or before) events.

    :param unusual: flags of events at which the state may not be given
    :raises CorruptState: :raises NumberWithoutRow: see :func:`entries_at_groups`
    """
    named = [key for key in keys if "\0" not in key[0] and "\0" not in key[1]]
    if "\0" in "".join(event_ids):
        return EventEntries(False, [])
    txn.execute(
        _BEFORE_EVENTS if before else _AFTER_EVENTS,
        {
            "unusual": unusual,
            "ids": array_text(event_ids),
            "types": array_text([key[0] for key in named]),
            "keys": array_text([key[1] for key in named]),
        },
    )
    rows = txn.fetchall()
    if rows[0][0] != len(event_ids):
        return EventEntries(False, [])
    return EventEntries(True, _states(rows, named, len(event_ids)))


def _states(
    rows: Sequence[Record], keys: Sequence[StateKey], count: int
) -> list[dict[StateKey, str]]:
    states: list[dict[StateKey, str]] = [{} for _ in range(count)]
    for _, room_no, lost_line, number, slot, event_no, group, where, its_slot, event_id in rows:
        if lost_line is not None:
            raise NumberWithoutRow(what="state line", number=lost_line, room_no=room_no)
        if event_no is None:
            continue
        if its_slot is None:
            raise NumberWithoutRow(what="state event", number=event_no, room_no=room_no)
        key = keys[number - 1]
        if its_slot != slot:
            reason = f"by the state line, its entry for {key} is {event_id}"
            raise CorruptState(group=group, room_no=room_no, reason=reason)
        for place in where.split(","):
            states[int(place) - 1][key] = event_id
    return states


# Groups of which several events have the state are looked up once.
_LOOK_UP = """
    places AS MATERIALIZED (
        SELECT a.ns, a.group_no, coalesce(p.line_no, r.main_line) AS line_no,
               coalesce(p.pos, a.group_no) AS pos, p.slots, p.event_nos
          FROM (SELECT group_no, string_agg(n::text, ',') AS ns FROM asked GROUP BY group_no) AS a
          JOIN room ON true JOIN synrepl._rooms r USING (room_no)
          LEFT JOIN synrepl._state_group_lines p USING (room_no, group_no)),
    ancestry (line_no, depth, at_line, upto) AS (
        SELECT DISTINCT line_no, 0, line_no, NULL::bigint FROM places WHERE line_no IS NOT NULL
         UNION ALL
        SELECT a.line_no, a.depth + 1, l.parent, l.parent_pos
          FROM ancestry a JOIN synrepl._state_lines l ON l.line_no = a.at_line
         WHERE l.parent IS NOT NULL),
    found AS MATERIALIZED (
        SELECT n, slot, event_no, min(group_no) AS group_no, string_agg(ns, ',') AS ns
          FROM (SELECT k.n, k.slot, p.group_no, p.ns,
                       CASE WHEN k.slot = ANY (p.slots)
                            THEN p.event_nos[array_position(p.slots, k.slot)]
                            WHEN (SELECT max(depth) FROM ancestry) = 0
                            THEN (SELECT l.event_no FROM synrepl._state_line l
                                   WHERE l.line_no = p.line_no AND l.slot = k.slot AND l.pos <= p.pos
                                   ORDER BY l.pos DESC LIMIT 1)
                            ELSE (SELECT v.event_no FROM ancestry a
                                   CROSS JOIN LATERAL (
                                         SELECT l.event_no FROM synrepl._state_line l
                                          WHERE l.line_no = a.at_line AND l.slot = k.slot
                                            AND l.pos <= coalesce(a.upto, p.pos)
                                          ORDER BY l.pos DESC LIMIT 1) AS v
                                   WHERE a.line_no = p.line_no ORDER BY a.depth LIMIT 1)
                        END AS event_no
                  FROM places p CROSS JOIN keys k) AS looked_up
         GROUP BY n, slot, event_no)
    SELECT (SELECT count(*) FROM asked), room.room_no,
           (SELECT a.at_line FROM ancestry a
              LEFT JOIN synrepl._state_lines l ON l.line_no = a.at_line
             WHERE l.line_no IS NULL LIMIT 1),
           f.n, f.slot, f.event_no, f.group_no, f.ns, e.slot, e.event_id
      FROM room LEFT JOIN found f ON f.event_no IS NOT NULL
      LEFT JOIN synrepl._room_events e ON e.event_no = f.event_no AND e.room_no = room.room_no"""

_AT_GROUPS = Script(
    [
        PlannedOnce(
            "WITH RECURSIVE room AS MATERIALIZED (SELECT %s::int AS room_no),"
            " asked AS MATERIALIZED (SELECT g.group_no, g.n"
            " FROM unnest(%s::bigint[]) WITH ORDINALITY AS g (group_no, n)),"
            " keys AS MATERIALIZED (SELECT k.slot, k.n"
            f" FROM unnest(%s::int[]) WITH ORDINALITY AS k (slot, n)), {_LOOK_UP}"
        )
    ]
)


# Rows of many events are fetched by a scan that reads ahead.
def _at_events(group: str) -> Script:
    return Script(
        [
            PlannedOnce(f"""
    WITH RECURSIVE events AS MATERIALIZED (
        SELECT e.event_id, e.room_no, e.{group} AS group_no,
               e.flags & %(unusual)s::int = 0 AND e.{group} IS NOT NULL AS is_usual
          FROM synrepl._room_events e WHERE e.event_id = ANY (%(ids)s::text[])),
    located AS MATERIALIZED (
        SELECT e.room_no, e.group_no, e.is_usual, w.n FROM events e
          JOIN unnest(%(ids)s::text[]) WITH ORDINALITY AS w (event_id, n) USING (event_id)),
    room AS MATERIALIZED (SELECT min(room_no) AS room_no FROM located),
    asked AS MATERIALIZED (SELECT l.group_no, l.n FROM located l JOIN room USING (room_no)
         WHERE (SELECT bool_and(is_usual) FROM located)),
    keys AS MATERIALIZED (
        SELECT k.slot, w.n FROM room
         CROSS JOIN unnest(%(types)s::text[], %(keys)s::text[]) WITH ORDINALITY AS w (type, state_key, n)
          JOIN synrepl._room_keys k
               ON k.room_no = room.room_no AND k.type = w.type AND k.state_key = w.state_key),
    {_LOOK_UP}""")
        ]
    )


_AFTER_EVENTS, _BEFORE_EVENTS = _at_events("group_after"), _at_events("group_before")
