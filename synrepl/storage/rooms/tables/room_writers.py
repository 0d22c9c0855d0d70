"""Which processes rooms are assigned to, and which rooms were moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.numbers import require_room


class RoomPlacements(NamedTuple):
    """Where rooms are.

    :ivar writers: the processes that rooms are assigned to, sorted; empty if the configuration decides
    :ivar versions: of those of the rooms that are stored
    :ivar moved: those that were moved, with the process that each was moved to
    """

    writers: Sequence[str]
    versions: Mapping[str, str]
    moved: Mapping[str, str]


def read_placements(txn: Transaction, room_ids: Collection[str]) -> RoomPlacements:
    """Where rooms are, in one statement."""
    txn.execute(
        "SELECT NULL, NULL, writer FROM synrepl._room_writers"
        " UNION ALL SELECT room_id, version, writer FROM synrepl._rooms WHERE room_id = ANY (%s::text[])",
        ([each for each in room_ids if "\0" not in each],),
    )
    rows = txn.fetchall()
    return RoomPlacements(
        sorted(writer for room_id, _, writer in rows if room_id is None),
        {room_id: version for room_id, version, _ in rows if room_id is not None},
        {room_id: writer for room_id, _, writer in rows if None not in (room_id, writer)},
    )


def moved_counts(txn: Transaction) -> dict[str, int]:
    """Number of rooms that were moved, by the process that they were moved to."""
    txn.execute("SELECT writer, count(*) FROM synrepl._rooms WHERE writer IS NOT NULL GROUP BY 1")
    return {str(writer): int(count) for writer, count in txn.fetchall()}


def write_room_writer(txn: Transaction, room_id: str, writer: str | None) -> None:
    """Record the process that a room is moved to; None: the hash of its ID decides again.

    Waits for a batch that is being persisted into the room.

    :raises UnknownRoom: it is not stored
    """
    room = require_room(txn, room_id)
    txn.execute("UPDATE synrepl._rooms SET writer = %s WHERE room_no = %s", (writer, room.room_no))


def lock_room_writers(txn: Transaction) -> None:
    """Keep others from changing the list until the transaction ends; readers do not wait."""
    txn.execute("LOCK TABLE synrepl._room_writers IN SHARE ROW EXCLUSIVE MODE")


def write_room_writers(txn: Transaction, writers: Collection[str]) -> None:
    """Replace the list; the caller has locked it.

    :param writers: empty: the configuration decides again
    """
    txn.execute("DELETE FROM synrepl._room_writers WHERE writer <> ALL (%s)", (list(writers),))
    txn.execute(
        "INSERT INTO synrepl._room_writers (writer) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING",
        (list(writers),),
    )
