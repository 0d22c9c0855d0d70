"""The current end of a room: extremities, current state, memberships, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from synrepl.rooms import StateKey
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable


class StoredHeads(NamedTuple):
    """A row of ``_room_heads``; see the migration."""

    room_no: int
    extremities: int
    stream_id: int
    oldest_stream_id: int
    topological: int
    current_group: int
    events: int
    outliers: int
    partial: int
    waiting: int
    unapplied: int
    purged_stream_id: int


class BackwardExtremity(NamedTuple):
    """A prev event that is not here with its state.

    :ivar is_followed: it will be no forward extremity
    :ivar was_purged: it was here before: it will be none either, if it passes all checks
    """

    missing_id: str
    child_no: int
    is_followed: bool
    was_purged: bool


class CurrentEntry(NamedTuple):
    """An entry of a room's current state."""

    key: StateKey
    slot: int
    event_no: int
    event_id: str


_HEADS_COLUMNS = ", ".join(StoredHeads._fields)
_HEADS_TABLE = RoomTable("synrepl._room_heads", _HEADS_COLUMNS)
_CHANGES = {
    "stream_id": "greatest(stream_id, %s)",
    "oldest_stream_id": "least(oldest_stream_id, %s)",
    "purged_stream_id": "greatest(purged_stream_id, %s)",
}
_CHANGE_HEADS = (
    "UPDATE synrepl._room_heads SET "
    + ", ".join(f"{name} = {_CHANGES.get(name, '%s')}" for name in StoredHeads._fields[1:])
    + " WHERE room_no = %s"
)

FORWARD_TABLE = RoomTable("synrepl._forward_extremities", "room_no, event_no")
BACKWARD_TABLE = RoomTable(
    "synrepl._backward_extremities", "room_no, missing_id, child_no, is_followed, was_purged"
)


def read_heads(txn: Transaction, room_no: int) -> StoredHeads | None:
    """The heads of a room; None if it has no event."""
    txn.execute(f"SELECT {_HEADS_COLUMNS} FROM synrepl._room_heads WHERE room_no = %s", (room_no,))
    found = txn.fetchone_or_none()
    return None if found is None else StoredHeads._make(found)


def write_heads(rows: PendingRows, heads: StoredHeads, is_new: bool) -> None:
    """Add or change the heads of a room; the two stream IDs only move away from 0.

    :param is_new: whether the room has none. An update takes half the time of an insert that may become one
    """
    if is_new:
        rows.add(_HEADS_TABLE, heads)
    else:
        rows.run(_CHANGE_HEADS, (*heads[1:], heads.room_no))


def write_state_only(rows: PendingRows, room_no: int, stream_id: int) -> None:
    """Note that a fact changed the current state without an event of its own."""
    rows.run(
        "UPDATE synrepl._room_heads SET state_stream_id = greatest(state_stream_id, %s) WHERE room_no = %s",
        (stream_id, room_no),
    )


def forward_extremities(txn: Transaction, room_no: int) -> dict[int, str]:
    """The forward extremities of a room: IDs by number."""
    txn.execute(
        "SELECT x.event_no, e.event_id FROM synrepl._forward_extremities x"
        " JOIN synrepl._room_events e USING (event_no) WHERE x.room_no = %s",
        (room_no,),
    )
    return {int(number): str(event_id) for number, event_id in txn.fetchall()}


def write_forward(rows: PendingRows, room_no: int, gone: Iterable[int], new: Iterable[int]) -> None:
    """Remove and add forward extremities."""
    removed, new = list(gone), list(new)
    if len(removed) == len(new) == 1:
        rows.run(
            "UPDATE synrepl._forward_extremities SET event_no = %s"
            " WHERE room_no = %s AND event_no = %s",
            (new[0], room_no, removed[0]),
        )
        return
    if removed:
        rows.run(
            "DELETE FROM synrepl._forward_extremities"
            " WHERE room_no = %s AND event_no = ANY (%s::bigint[])",
            (room_no, removed),
        )
    rows.extend(FORWARD_TABLE, [(room_no, number) for number in new])


def backward_extremities(txn: Transaction, room_no: int) -> list[BackwardExtremity]:
    """The backward extremities of a room."""
    txn.execute(
        "SELECT missing_id, child_no, is_followed, was_purged FROM synrepl._backward_extremities"
        " WHERE room_no = %s",
        (room_no,),
    )
    return [BackwardExtremity._make(row) for row in txn.fetchall()]


def current_state(
    txn: Transaction, room_no: int, types: Iterable[str] | None = None
) -> list[CurrentEntry]:
    """The current state of a room.

    :param types: only entries of these types; None: all
    """
    only = "" if types is None else " AND k.type = ANY (%s::text[])"
    txn.execute(
        "SELECT k.type, k.state_key, c.slot, c.event_no, e.event_id"
        " FROM synrepl._current_state c JOIN synrepl._room_keys k USING (room_no, slot)"
        f" JOIN synrepl._room_events e USING (event_no) WHERE c.room_no = %s{only}",
        (room_no,) if types is None else (room_no, list(types)),
    )
    return [
        CurrentEntry((kind, state_key), slot, event_no, event_id)
        for kind, state_key, slot, event_no, event_id in txn.fetchall()
    ]


def write_current_state(
    rows: PendingRows, room_no: int, changes: Iterable[tuple[int, int | None]]
) -> None:
    """Change entries of the current state, given by slot; None removes one."""
    gone: list[int] = []
    slots: list[int] = []
    numbers: list[int] = []
    for slot, event_no in changes:
        if event_no is None:
            gone.append(slot)
        else:
            slots.append(slot)
            numbers.append(event_no)
    if gone:
        rows.run(
            "DELETE FROM synrepl._current_state WHERE room_no = %s AND slot = ANY (%s::int[])",
            (room_no, gone),
        )
    if len(slots) == 1:  # with arrays, PostgreSQL plans again each time
        values = "VALUES (%s, %s, %s)"
        params: tuple[object, ...] = (room_no, slots[0], numbers[0])
    elif slots:
        values = "SELECT %s, * FROM unnest(%s::int[], %s::bigint[])"
        params = (room_no, slots, numbers)
    else:
        return
    rows.run(
        f"INSERT INTO synrepl._current_state (room_no, slot, event_no) {values}"
        " ON CONFLICT (room_no, slot) DO UPDATE SET event_no = excluded.event_no",
        params,
    )


class MembershipRow(NamedTuple):
    """An entry of ``_memberships``.

    :ivar event_no: None: the user has no membership event in the current state any more
    :ivar stream_id: of the fact that made it the current one
    """

    user_id: str
    event_no: int | None
    membership: str
    stream_id: int


def write_memberships(rows: PendingRows, room_no: int, changes: Iterable[MembershipRow]) -> None:
    """Change memberships."""
    changes = list(changes)
    gone = [each for each in changes if each.event_no is None]
    kept = [each for each in changes if each.event_no is not None]
    if gone:
        rows.run(
            "DELETE FROM synrepl._memberships WHERE room_no = %s AND user_id = ANY (%s::text[])",
            (room_no, [each.user_id for each in gone]),
        )
    if len(kept) == 1:
        values = "VALUES (%s, %s, %s, %s, %s)"
        params: tuple[object, ...] = (room_no, *kept[0])
    elif kept:
        values = "SELECT %s, * FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[])"
        params = (
            room_no,
            [each.user_id for each in kept],
            [each.event_no for each in kept],
            [each.membership for each in kept],
            [each.stream_id for each in kept],
        )
    else:
        return
    rows.run(
        f"INSERT INTO synrepl._memberships (room_no, user_id, event_no, membership, stream_id) {values}"
        " ON CONFLICT (room_no, user_id) DO UPDATE SET event_no = excluded.event_no,"
        " membership = excluded.membership, stream_id = excluded.stream_id",
        params,
    )
