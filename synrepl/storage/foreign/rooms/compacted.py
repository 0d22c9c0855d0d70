"""Applies a compaction of state groups to a copy of a Synapse's database.

It is for copies. A Synapse that runs meanwhile has groups in memory, and may be about to refer to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.core.jsons import encode
from synrepl.storage.database import Transaction


class CompactedGroup(NamedTuple):
    """A state group that is to be stored in another way.

    :ivar stored_prev: the base that is stored; None if it is stored whole
    :ivar stored_rows: the number of entries that are stored
    :ivar prev: the new base
    :ivar entries: type, state key and event ID of each new entry
    """

    group: int
    stored_prev: int | None
    stored_rows: int
    prev: int | None
    entries: Sequence[tuple[str, str, str]]


class GroupsChanged(Refused):
    """state groups of room {room_id} are not stored as they were when their compaction was computed: {groups}; compute it again"""


_STORED = """
    SELECT w.id FROM json_to_recordset(%(groups)s) AS w (id bigint, prev bigint, rows bigint)
    LEFT JOIN state_groups g ON g.id = w.id AND g.room_id = %(room_id)s
    LEFT JOIN state_group_edges e ON e.state_group = w.id
    WHERE g.id IS NULL OR e.prev_state_group IS DISTINCT FROM w.prev
       OR w.rows <> (SELECT count(*) FROM state_groups_state s WHERE s.state_group = w.id)
    ORDER BY 1
"""

_REPLACE = (
    "DELETE FROM state_groups_state WHERE state_group = ANY(%(ids)s)",
    "DELETE FROM state_group_edges WHERE state_group = ANY(%(ids)s)",
    "INSERT INTO state_group_edges (state_group, prev_state_group)"
    " SELECT id, prev FROM json_to_recordset(%(groups)s) AS w (id bigint, prev bigint)"
    " WHERE prev IS NOT NULL",
    "INSERT INTO state_groups_state (state_group, room_id, type, state_key, event_id)"
    " SELECT n, %(room_id)s, t, k, e FROM unnest(%(numbers)s::bigint[], %(kinds)s::text[],"
    " %(keys)s::text[], %(events)s::text[]) AS entry (n, t, k, e)",
)


def store_compacted(txn: Transaction, room_id: str, groups: Sequence[CompactedGroup]) -> None:
    """Store all groups of a room that change, in one transaction.

    :raises GroupsChanged: what is stored has changed meanwhile; nothing is written
    """
    stored = [
        {"id": each.group, "prev": each.stored_prev, "rows": each.stored_rows} for each in groups
    ]
    txn.execute(_STORED, {"groups": encode(stored).decode(), "room_id": room_id})
    if changed := [str(row[0]) for row in txn.fetchall()]:
        raise GroupsChanged(room_id=room_id, groups=", ".join(changed[:10]))
    entries = [(each.group, *entry) for each in groups for entry in each.entries]
    numbers, kinds, keys, events = zip(*entries, strict=True) if entries else ((),) * 4
    new = [{"id": each.group, "prev": each.prev} for each in groups]
    parameters = {
        "ids": [each.group for each in groups],
        "groups": encode(new).decode(),
        "room_id": room_id,
        "numbers": list(numbers),
        "kinds": list(kinds),
        "keys": list(keys),
        "events": list(events),
    }
    for statement in _REPLACE:
        txn.execute(statement, parameters)
