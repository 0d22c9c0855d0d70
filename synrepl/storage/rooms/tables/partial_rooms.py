"""Partial rooms: their rows, their servers, and the events that are judged again when they are complete.

A room is partial as long as it has a row in ``_partial_rooms``, and an event as long as it has one in
``_partial_events``. Source: seed "How do faster joins work?", "DB schema".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.rooms.tables.pending_event import PendingEvent
from synrepl.storage.rooms.tables.pending_rows import PendingRows, RoomTable, array_text, copy_rows

#: The constraint by which no event is stored as partial in a room that is complete.
PARTIAL_ROOM_CONSTRAINT = "_partial_events_room"

#: Servers of a room that are kept of the answer to a join.
MAX_ROOM_SERVERS = 20_000

PARTIAL_EVENTS_TABLE = RoomTable("synrepl._partial_events", "room_no, event_no")
_RESYNC_EVENTS_TABLE = RoomTable(
    "synrepl._resync_events", "room_no, event_no, is_reported, left_out"
)
_JUDGE_AGAIN = (
    f"INSERT INTO {_RESYNC_EVENTS_TABLE.name} ({_RESYNC_EVENTS_TABLE.columns})"
    " VALUES (%s, %s, %s, %s::bigint[]) ON CONFLICT (event_no) DO UPDATE"
    " SET is_reported = excluded.is_reported, left_out = excluded.left_out,"
    " full_before = NULL, full_after = NULL, full_flags = NULL"
)
_SERVERS_TABLE = RoomTable("synrepl._partial_room_servers", "room_no, server_name")


class ResyncPhase(StrEnum):
    """What the completion of a partial room is about."""

    IDS = "ids"  #: a server is asked which events the state has
    EVENTS = "events"  #: those of them that are missing are fetched and stored
    JUDGE = "judge"  #: events are judged again, at their full states
    VERIFY = "verify"  #: the new states are compared with their digests
    SWAP = "swap"  #: everything that was found out takes effect
    DONE = "done"
    ABANDONED = "abandoned"  #: no user of this server is in the room any more


class PartialRoomRow(NamedTuple):
    """A row of ``_partial_rooms``; see the migration."""

    room_no: int
    epoch: int
    device_lists_stream_id: int
    join_event_id: str
    joined_via: str


_PARTIAL = int(EventFlags.PARTIAL)
_ABANDONED = int(EventFlags.ABANDONED)

_COLUMNS = ", ".join(PartialRoomRow._fields)


def partial_room(txn: Transaction, room_no: int) -> PartialRoomRow | None:
    """What is known of a room that is partial; None for any other."""
    txn.execute(f"SELECT {_COLUMNS} FROM synrepl._partial_rooms WHERE room_no = %s", (room_no,))
    found = txn.fetchone_or_none()
    return None if found is None else PartialRoomRow._make(found)


def add_partial_room(txn: Transaction, room: PartialRoomRow, servers: Collection[str]) -> None:
    """Make a room partial, in a new epoch, with a job that completes it.

    :param servers: those that were in the room before the join
    """
    txn.execute(
        f"INSERT INTO synrepl._partial_rooms ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s)", room
    )
    copy_rows(txn, _SERVERS_TABLE, [(room.room_no, each) for each in sorted(servers)])
    txn.execute(
        "UPDATE synrepl._rooms SET epoch = %s WHERE room_no = %s", (room.epoch, room.room_no)
    )
    txn.execute("DELETE FROM synrepl._resync_attempts WHERE room_no = %s", (room.room_no,))
    txn.execute(
        "INSERT INTO synrepl._resync_jobs (room_no, epoch) VALUES (%s, %s)"
        " ON CONFLICT (room_no) DO UPDATE SET epoch = excluded.epoch, phase = 'ids', event_no = NULL,"
        " source = NULL, listed = 0, missing = 0, stored = 0, failures = 0, reason = NULL,"
        " next_try = now(), claim = _resync_jobs.claim + 1, owner = NULL, leased_until = NULL,"
        " began_at = now(), phase_at = now(), progress_at = now(), ended_at = NULL",
        (room.room_no, room.epoch),
    )


def resume_abandoned(txn: Transaction, room_no: int) -> int:
    """Make the events partial again that had partial state when a room was abandoned; returns their number.

    They are judged again with what comes now. The room must have a row.
    """
    txn.execute(
        f"UPDATE synrepl._room_events e SET flags = e.flags & ~{_ABANDONED} | {_PARTIAL}"
        " FROM synrepl._resync_events r WHERE r.room_no = %s AND e.event_no = r.event_no"
        f" AND e.flags & {_ABANDONED} <> 0 RETURNING e.event_no",
        (room_no,),
    )
    resumed = [(room_no, int(number)) for (number,) in txn.fetchall()]
    copy_rows(txn, PARTIAL_EVENTS_TABLE, resumed)
    txn.execute(
        "UPDATE synrepl._room_heads SET partial = partial + %s WHERE room_no = %s",
        (len(resumed), room_no),
    )
    return len(resumed)


def is_abandoned(txn: Transaction, room_no: int) -> bool:
    """Whether a room was let go of while it was partial, so that the states of some events are not known."""
    txn.execute(
        "SELECT EXISTS (SELECT FROM synrepl._resync_events WHERE room_no = %(room)s) AND NOT EXISTS ("
        " SELECT FROM synrepl._partial_rooms WHERE room_no = %(room)s)",
        {"room": room_no},
    )
    return bool(txn.fetchone()[0])


def end_resync(txn: Transaction, room_no: int, phase: ResyncPhase) -> None:
    """End the job of a room, if it has one; whoever works on it writes nothing any more."""
    txn.execute(
        "UPDATE synrepl._resync_jobs SET phase = %s, ended_at = now(), progress_at = now(), reason = NULL,"
        " claim = claim + 1, owner = NULL, leased_until = NULL"
        " WHERE room_no = %s AND ended_at IS NULL",
        (phase.value, room_no),
    )


def write_partial_events(rows: PendingRows, room_no: int, pending: Iterable[PendingEvent]) -> None:
    """Write which events have partial state, and which are judged again when the room has its full state."""
    for each in pending:
        row = each.row
        if row.flags & _PARTIAL:
            rows.add(PARTIAL_EVENTS_TABLE, (room_no, row.event_no))
        if not row.is_judged_again:
            continue
        cells = (room_no, row.event_no, each.left_out is not None, list(each.left_out or ()))
        if each.was_outlier:  # it may be among them already
            rows.run(_JUDGE_AGAIN, cells)
        else:
            rows.add(_RESYNC_EVENTS_TABLE, cells)


def servers_at_join(txn: Transaction, room_no: int) -> frozenset[str]:
    """The servers that were in a partial room before the join; none if it is not partial."""
    txn.execute(
        "SELECT server_name FROM synrepl._partial_room_servers WHERE room_no = %s", (room_no,)
    )
    return frozenset(str(name) for (name,) in txn.fetchall())


def servers_in_room(txn: Transaction, room_no: int) -> frozenset[str]:
    """All servers that are known to be in a room; of a partial room, also those before the join."""
    txn.execute(
        "SELECT DISTINCT substr(user_id, strpos(user_id, ':') + 1) FROM synrepl._memberships"
        " WHERE room_no = %s AND membership = 'join'"
        " UNION SELECT server_name FROM synrepl._partial_room_servers WHERE room_no = %s",
        (room_no, room_no),
    )
    return frozenset(str(name) for (name,) in txn.fetchall())


def servers_of_senders(txn: Transaction, room_no: int) -> frozenset[str]:
    """The servers whose users have sent something into a partial room since the join: these are there, whoever says what."""
    txn.execute(
        "SELECT DISTINCT substr(e.sender, strpos(e.sender, ':') + 1) FROM synrepl._resync_events r"
        " JOIN synrepl._room_events e USING (event_no)"
        " WHERE r.room_no = %s AND e.stream_id IS NOT NULL AND e.flags & %s = 0",
        (room_no, int(EventFlags.REJECTED)),
    )
    return frozenset(str(name) for (name,) in txn.fetchall())


def partial_rooms_among(txn: Transaction, room_nos: Collection[int]) -> frozenset[int]:
    """Those of some rooms that are partial."""
    if not room_nos:
        return frozenset()
    txn.execute(
        "SELECT room_no FROM synrepl._partial_rooms WHERE room_no = ANY (%s::int[])",
        (array_text(room_nos),),
    )
    return frozenset(int(number) for (number,) in txn.fetchall())
