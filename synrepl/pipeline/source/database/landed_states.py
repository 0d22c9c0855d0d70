"""The state after each whole event, as what it changes of the state after an event that came before.

A state group says nothing to somebody who has only the lake: its number is the store's, and groups are merged, and are
stored in other ways by and by. Nor does a place on a state line: lines are built again under other numbers, history is put before
them, and purges cut them off. What two states differ in never changes, so that is what lands:

- ``base_stream_id``: the position of another row of the same stream and room, which comes before; null: none
- ``changed_types``, ``changed_state_keys``, ``changed_event_ids``: the entries in which the state after the event differs from
  the one after that. Without an event, an entry is removed. Without a base, they are the whole state
- ``state_size``: number of entries of the state

The base is the newest of its prev events that came before it, or else the newest event of the room that did. Two
kinds of events are no bases: those whose facts were trimmed, because a lake may have begun after them; and, for events after
a partial room was completed, those before, because a lake may have them with their incomplete state. For the same reason, history with
incomplete state does not build on what has its full state in a room that was completed before.

In two cases a lake does not tell all states, and reading says so: history that was landed with incomplete state is still a base of
history that lands after the completion, which has no position there; and only the last completion of a room counts.

Rows that are read in parts, such as by the tasks of a round of a landing, have to be read at one snapshot. Otherwise a purge
between two parts can leave a base without its state: the row that builds on it is read first, and the base when it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.streams.columns import Column, ColumnType

#: Flags of events that were judged by incomplete state: the verdict is not final.
PROVISIONAL = int(EventFlags.PARTIAL | EventFlags.UNCONFIRMED | EventFlags.ABANDONED)

BASE, STATE_SIZE = "base_stream_id", "state_size"

#: The entries that differ, in arrays of the same length.
CHANGED_CELLS = ("changed_types", "changed_state_keys", "changed_event_ids")

#: The columns.
STATE_COLUMNS = (
    Column(BASE, ColumnType.BIGINT, True),
    Column(STATE_SIZE, ColumnType.BIGINT, True),
    *(Column(name, ColumnType.TEXT_ARRAY, True) for name in CHANGED_CELLS),
)

#: How one state is said by another, which depends on what else the database has. The state does not.
FORM_OF_STATE = (BASE, *CHANGED_CELLS)

#: A state event whose state is that of its base and itself: most of those that change anything.
_IS_OWN = "e.slot IS NOT NULL AND base.group_after = e.group_before"

_SIZE = (
    "(SELECT g.size::bigint FROM synrepl._state_groups g"
    " WHERE g.room_no = e.room_no AND g.group_no = e.group_after)"
)

#: The entries in which two states differ: of keys that a group changes which is in one of the two chains, and not in both.
#: Groups in both are read once. PostgreSQL expects chains to be long, and would read all groups for each step; what has an
#: OFFSET is run for each group.
_DIFFERENCE = """WITH RECURSIVE chain (is_base, hops, group_no, prev_group, place, changes) AS (
        SELECT s.is_base, 0, g.group_no, g.prev_group, g.place, g.changes
            FROM (VALUES (true, base.group_after), (false, e.group_after)) AS s (is_base, group_no)
            JOIN synrepl._state_groups g ON g.room_no = e.room_no AND g.group_no = s.group_no
        UNION ALL SELECT c.is_base, c.hops + 1, g.group_no, g.prev_group, g.place, g.changes
            FROM chain c CROSS JOIN LATERAL (SELECT g.* FROM synrepl._state_groups g
                WHERE g.room_no = e.room_no AND g.group_no = c.prev_group AND g.place < c.place
                OFFSET 0) AS g
    ), step AS (
        SELECT is_base, hops, changes, count(*) OVER (PARTITION BY group_no) = 2 AS is_shared FROM chain
    ), own AS (
        SELECT s.is_base, s.hops, n.slot, n.event_no
            FROM step s CROSS JOIN LATERAL synrepl.state_changes(s.changes) AS n WHERE NOT s.is_shared
    ), entries AS (
        SELECT DISTINCT ON (v.is_base, v.slot) v.is_base, v.slot, v.event_no FROM (
            SELECT is_base, false AS is_shared, hops, slot, event_no FROM own
            UNION ALL SELECT side.is_base, true, s.hops, n.slot, n.event_no
                FROM step s CROSS JOIN LATERAL synrepl.state_changes(s.changes) AS n
                CROSS JOIN (VALUES (true), (false)) AS side (is_base)
                WHERE s.is_shared AND NOT s.is_base AND n.slot IN (SELECT slot FROM own)
        ) AS v ORDER BY v.is_base, v.slot, v.is_shared, v.hops
    )
    SELECT slot, mine.event_no FROM (SELECT * FROM entries WHERE NOT is_base) AS mine
        FULL JOIN (SELECT * FROM entries WHERE is_base) AS theirs USING (slot)
        WHERE mine.event_no IS DISTINCT FROM theirs.event_no"""


def state_sql() -> Mapping[str, str]:
    """The columns in SQL, by name, where :func:`base_and_changes_sql` is joined."""
    own = ("f.type", "f.state_key", "f.event_id")
    return {
        BASE: "base.stream_id",
        STATE_SIZE: _SIZE,
        **{
            name: f"CASE WHEN e.group_after IS NOT NULL AND {_IS_OWN}"
            f" AND e.group_after <> e.group_before THEN ARRAY[{mine}]"
            f" WHEN e.group_after IS NOT NULL THEN coalesce(changed.{name}, '{{}}') END"
            for name, mine in zip(CHANGED_CELLS, own, strict=True)
        },
    }


def base_and_changes_sql(base: str) -> str:
    """Joins the base, and what differs where that takes groups, to an event ``e``.

    :param base: the stream of the facts
    """
    if base == "backfill":
        # It counts down, and completing a room has no position there. But what is provisional since a room is partial again
        # does not build on what was so before, which is in the lake with another state than here now.
        fits = (
            f" AND (coalesce(h.completed_stream_id, 0) = 0 OR e.flags & {PROVISIONAL} = 0"
            f" OR p.flags & {PROVISIONAL} <> 0)"
        )
        first, last = "e.stream_id", "least(0, -t.trimmed)"
        before = f"p.stream_id > {first} AND p.stream_id < {last}"
        newest, nearest = "p.stream_id", "p.room_no, p.stream_id"
    else:
        fits = ""
        completed = "CASE WHEN h.completed_stream_id < e.stream_id THEN h.completed_stream_id END"
        first, last = f"greatest(0, t.trimmed, {completed})", "e.stream_id"
        before = f"p.stream_id < {last} AND p.stream_id > {first}"
        newest, nearest = "p.stream_id DESC", "p.room_no DESC, p.stream_id DESC"
    wanted = f"{before} AND p.group_after IS NOT NULL{fits} ORDER BY {newest} LIMIT 1"
    ordered = ", ".join(
        f'array_agg(named.{name} ORDER BY named.changed_types COLLATE "C",'
        f' named.changed_state_keys COLLATE "C") AS {name}'
        for name in CHANGED_CELLS
    )
    return (
        f" LEFT JOIN synrepl._streams t ON t.stream = '{base}'"
        " LEFT JOIN synrepl._room_heads h ON h.room_no = e.room_no"
        " LEFT JOIN LATERAL (SELECT p.stream_id, p.group_after"
        "  FROM unnest(e.prev_nos) AS n (event_no) CROSS JOIN LATERAL (SELECT x.stream_id, x.group_after, x.flags"
        # With the OFFSET, each is found by its number, and not among all events before it.
        "   FROM synrepl._room_events x WHERE x.event_no = n.event_no OFFSET 0) AS p"
        f"  WHERE {wanted}) AS prev ON true"
        # Comparing rows leaves PostgreSQL one index. Where it knows of few rooms, it would look for the event
        # among those of all rooms.
        " LEFT JOIN LATERAL (SELECT p.stream_id, p.group_after FROM synrepl._room_events p"
        f"  WHERE prev.stream_id IS NULL AND (p.room_no, p.stream_id) > (e.room_no, {first})"
        f"  AND (p.room_no, p.stream_id) < (e.room_no, {last}) AND p.stream_id IS NOT NULL"
        f"  AND p.group_after IS NOT NULL{fits} ORDER BY {nearest} LIMIT 1) AS newest ON true"
        " CROSS JOIN LATERAL (SELECT coalesce(prev.stream_id, newest.stream_id) AS stream_id,"
        "  coalesce(prev.group_after, newest.group_after) AS group_after) AS base"
        f" LEFT JOIN LATERAL (SELECT {ordered} FROM (SELECT k.type AS changed_types,"
        "  k.state_key AS changed_state_keys,"
        # An event that is not there must not look like an entry that is removed.
        "  coalesce(x.event_id, 'missing event number ' || d.event_no) AS changed_event_ids"
        f"  FROM ({_DIFFERENCE}) AS d JOIN synrepl._room_keys k ON k.room_no = e.room_no AND k.slot = d.slot"
        "  LEFT JOIN synrepl._room_events x ON x.event_no = d.event_no"
        "  WHERE e.group_after IS DISTINCT FROM base.group_after"
        f"  AND NOT coalesce({_IS_OWN}, false)) AS named) AS changed ON true"
    )
