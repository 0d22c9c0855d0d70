"""State groups and current states as a Synapse stores them.

A group is stored in full, or as entries that overlay the state of its previous group. A group cannot
remove an entry of its previous group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction

#: Groups whose entries are read by one statement.
_GROUPS = 200


class SourceGroup(NamedTuple):
    """A state group of the server.

    :ivar event_id: the event for which it was made
    :ivar prev: the group that it overlays; None if it is stored in full
    :ivar prev_room_id: the room of ``prev``; None if there is no such group
    """

    group: int
    room_id: str
    event_id: str
    prev: int | None
    prev_room_id: str | None


_GROUP = """
    SELECT s.id, s.room_id, s.event_id, d.prev_state_group, p.room_id
    FROM state_groups s
    LEFT JOIN state_group_edges d ON d.state_group = s.id
    LEFT JOIN state_groups p ON p.id = d.prev_state_group
"""


def read_groups(txn: Transaction, groups: Collection[int]) -> dict[int, SourceGroup]:
    """Those of the groups that exist."""
    rows = txn.execute(f"{_GROUP} WHERE s.id = ANY(%s)", (list(groups),)).fetchall()
    return {row[0]: SourceGroup(*row) for row in rows}


#: A circle ends, because a set has each group once.
_CHAINS = f"""
    WITH RECURSIVE chain (id) AS (
        SELECT unnest(%(groups)s::bigint[])
        UNION
        SELECT d.prev_state_group FROM chain JOIN state_group_edges d ON d.state_group = chain.id
        WHERE d.prev_state_group <> ALL (%(known)s::bigint[])
    ), found AS (SELECT id FROM chain LIMIT %(most)s)
    {_GROUP} JOIN found ON found.id = s.id
"""


def read_group_chains(
    txn: Transaction, groups: Collection[int], known: Collection[int], most: int
) -> dict[int, SourceGroup]:
    """Groups with those that they overlay, down to groups that are known, in one statement.

    :param known: groups at which chains end; they are read only if they are among ``groups``
    :param most: number of groups, of which the closest are read
    """
    params = {"groups": list(groups), "known": list(known), "most": most}
    rows = txn.execute(_CHAINS, params).fetchall()
    return {row[0]: SourceGroup(*row) for row in rows}


def unused_groups(
    txn: Transaction, room_id: str, after: int, limit: int
) -> tuple[list[SourceGroup], int | None]:
    """Groups of a room that are the state after no event, from a page of its groups.

    :param after: only groups with a larger number
    :returns: the groups, and the last number of the page; None at the end
    """
    txn.execute(
        "SELECT max(id), count(*) FROM (SELECT id FROM state_groups"
        " WHERE room_id = %s AND id > %s ORDER BY id LIMIT %s) AS page",
        (room_id, after, limit),
    )
    last, count = txn.fetchone()
    if not count:
        return [], None
    txn.execute(
        f"{_GROUP} WHERE s.room_id = %s AND s.id > %s AND s.id <= %s AND NOT EXISTS"
        " (SELECT 1 FROM event_to_state_groups g WHERE g.state_group = s.id) ORDER BY s.id",
        (room_id, after, last),
    )
    return [SourceGroup(*row) for row in txn.fetchall()], last


def group_entries(
    txn: Transaction, groups: Collection[int]
) -> Iterator[tuple[int, dict[StateKey, str]]]:
    """The stored entries of each of some groups, one by one; a group without entries is left out.

    :param groups: those stored in full should come alone, because they may be large
    """
    wanted = list(groups)
    for start in range(0, len(wanted), _GROUPS):
        txn.execute(
            "SELECT state_group, type, state_key, event_id FROM state_groups_state"
            " WHERE state_group = ANY(%s)",
            (wanted[start : start + _GROUPS],),
        )
        found: dict[int, dict[StateKey, str]] = {}
        for group, kind, state_key, event_id in txn:
            found.setdefault(group, {})[kind, state_key] = event_id
        yield from found.items()


def current_state(txn: Transaction, room_id: str) -> dict[StateKey, str]:
    """The current state; empty if no user of the server is in the room any more."""
    txn.execute(
        "SELECT type, state_key, event_id FROM current_state_events WHERE room_id = %s",
        (room_id,),
    )
    return {(kind, state_key): event_id for kind, state_key, event_id in txn}


def forward_extremities(txn: Transaction, room_id: str) -> list[str]:
    """The IDs of the forward extremities, sorted."""
    txn.execute(
        "SELECT event_id FROM event_forward_extremities WHERE room_id = %s ORDER BY 1",
        (room_id,),
    )
    return [str(event_id) for (event_id,) in txn.fetchall()]


def backward_extremities(txn: Transaction, room_id: str, event_ids: Collection[str]) -> set[str]:
    """Those of the events that the server knows to be missing."""
    txn.execute(
        "SELECT event_id FROM event_backward_extremities WHERE room_id = %s AND event_id = ANY(%s)",
        (room_id, list(event_ids)),
    )
    return {str(event_id) for (event_id,) in txn.fetchall()}


def superseded_extremities(txn: Transaction, room_id: str) -> dict[str, str]:
    """By forward extremity, an accepted event that follows it, so that it cannot be one."""
    txn.execute(
        "SELECT f.event_id, min(d.event_id) FROM event_forward_extremities f"
        " JOIN event_edges d ON d.prev_event_id = f.event_id AND NOT d.is_state"
        " JOIN events e ON e.event_id = d.event_id AND NOT e.outlier AND e.room_id = f.room_id"
        " JOIN event_json j ON j.event_id = e.event_id"
        " WHERE f.room_id = %s AND j.internal_metadata NOT LIKE '%%soft_failed%%'"
        " AND NOT EXISTS (SELECT 1 FROM rejections x WHERE x.event_id = e.event_id)"
        " GROUP BY f.event_id",
        (room_id,),
    )
    return dict(txn.fetchall())
