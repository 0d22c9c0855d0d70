"""Short transactions that change a room by what was found out without its lock.

Maintenance finds out without the room's lock what is to go, which takes as long as it takes, and removes it under the
lock in batches of milliseconds. In between, others go on to persist. A *mark*, taken under the lock,
divides what was there from what came later: a batch looks at what came later, which is little, for
references to what it is about to remove. What other maintenance does meanwhile voids a mark.

When the connection is lost at a COMMIT, a database runs a batch again. It has changed the room already if the COMMIT
arrived, and a mark knows that by its run ID; so each batch must leave the room as it is if it is run twice.
"""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter
from typing import NamedTuple
from uuid import uuid4

from synrepl.core.errors import StorageError
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_groups import unpacked_changes
from synrepl.storage.rooms.tables.numbers import (
    ROOM_COLUMNS,
    ROOM_LOCKS,
    NumberWithoutRow,
    RoomRow,
    room_by_number,
    room_row,
)
from synrepl.storage.rooms.tables.pending_rows import PendingRows

#: A subquery: the numbers of the room's events that came, or became full events, after a mark. It takes
#: :func:`mark_params`.
NEW_EVENTS = (
    "(SELECT n.event_no FROM synrepl._room_events n"
    "  WHERE n.event_no > %(m_event)s AND n.room_no = %(room)s"
    " UNION SELECT n.event_no FROM synrepl._room_events n WHERE n.room_no = %(room)s"
    "  AND n.stream_id IS NOT NULL AND n.stream_id > %(m_newest)s"
    " UNION SELECT n.event_no FROM synrepl._room_events n WHERE n.room_no = %(room)s"
    "  AND n.stream_id IS NOT NULL AND n.stream_id < %(m_oldest)s)"
)


class ReworkedMeanwhile(StorageError):
    """room {room_id} was purged, compacted or collected by another process at the same time; run the command again, it goes on from there"""


class RoomMark(NamedTuple):
    """What there was of a room at a moment.

    :ivar reworked: of the room's row; another number voids the mark
    :ivar event_no: the last event number that was given out
    :ivar group_no: the last number of a state group
    :ivar newest: the newest stream ID
    :ivar oldest: the oldest one
    :ivar revision: of the room's row; while it is the same, nothing came later
    :ivar run_id: the UUID with which its batches are recorded
    """

    room_no: int
    reworked: int
    event_no: int
    group_no: int
    newest: int
    oldest: int
    revision: int
    run_id: str


class RoomLock(NamedTuple):
    """A room that is locked.

    :ivar since: the time of a monotonic clock, in seconds
    :ivar came_later: whether the room was changed after the mark was taken, by others or by a batch that is run again
    """

    room: RoomRow
    since: float
    came_later: bool


class CameLater(NamedTuple):
    """What references were made after a mark; see :func:`references_since`."""

    prev_nos: frozenset[int]
    auth_nos: frozenset[int]
    groups: frozenset[int]


class TakenMark(NamedTuple):
    """A mark, and since when the room is locked for it, as the time of a monotonic clock in seconds."""

    mark: RoomMark
    since: float


def mark_room(txn: Transaction, room_no: int) -> TakenMark:
    """Take a mark.

    The lock makes sure that no transaction of the room is under way, so every number that was given out to
    the room is in its tables.
    """
    since = _lock(txn, room_no)
    revision = room_by_number(txn, room_no).revision
    txn.execute(
        "SELECT r.reworked,"
        " (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM synrepl._event_numbers),"
        " (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM synrepl._group_numbers),"
        " coalesce((SELECT max(stream_id) FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NOT NULL), 0),"
        " coalesce((SELECT min(stream_id) FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NOT NULL), 0)"
        " FROM synrepl._rooms r WHERE r.room_no = %s",
        (room_no, room_no, room_no),
    )
    reworked, event_no, group_no, newest, oldest = map(int, txn.fetchone())
    run_id = str(uuid4())
    mark = RoomMark(room_no, reworked, event_no, group_no, newest, oldest, revision, run_id)
    return TakenMark(mark, since)


def _lock(txn: Transaction, room_no: int) -> float:
    """Lock a room; returns the time of a monotonic clock at which it was locked, in seconds."""
    txn.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM_LOCKS, room_no))
    return perf_counter()


def lock_marked(txn: Transaction, mark: RoomMark) -> RoomLock:
    """Lock a room, to change it by what was found out since a mark.

    :raises ReworkedMeanwhile: the mark is void
    """
    since = _lock(txn, mark.room_no)
    txn.execute(
        f"SELECT {ROOM_COLUMNS}, reworked - %s, reworked_by = %s::uuid"
        " FROM synrepl._rooms WHERE room_no = %s",
        (mark.reworked, mark.run_id, mark.room_no),
    )
    found = txn.fetchone_or_none()
    if found is None:
        raise NumberWithoutRow(what="room", number=mark.room_no, room_no=mark.room_no)
    room = room_row(found[:-2])
    batches, is_own = found[-2:]
    # A batch that was committed already is run again if nobody heard of the COMMIT. No other process has come in
    # between then: that would have voided the mark for the last batch, too.
    if batches and not is_own:
        raise ReworkedMeanwhile(room_id=room.room_id)
    return RoomLock(room, since, room.revision != mark.revision)


def reworked(
    txn: Transaction, mark: RoomMark, lock: RoomLock, *, new_epoch: bool = False
) -> RoomMark:
    """End a batch: what processes have in memory about the room, and other marks, are void.

    :returns: the mark to go on with
    """
    txn.execute(
        "UPDATE synrepl._rooms SET revision = revision + 1, reworked = reworked + 1,"
        " epoch = epoch + %s, reworked_by = %s::uuid WHERE room_no = %s"
        " RETURNING reworked, revision",
        (int(new_epoch), mark.run_id, mark.room_no),
    )
    count, revision = txn.fetchone()
    return mark._replace(
        reworked=int(count), revision=mark.revision if lock.came_later else int(revision)
    )


def mark_params(mark: RoomMark) -> dict[str, object]:
    """The parameters of :data:`NEW_EVENTS`, and ``m_group``."""
    return {
        "room": mark.room_no,
        "m_event": mark.event_no,
        "m_group": mark.group_no,
        "m_newest": mark.newest,
        "m_oldest": mark.oldest,
    }


def references_since(
    txn: Transaction, mark: RoomMark, lock: RoomLock, numbers: Collection[int]
) -> CameLater:
    """Which of some events those that came after a mark refer to, and which state groups they have.

    :param numbers: of events that are about to be removed
    """
    if not lock.came_later:
        return CameLater(frozenset(), frozenset(), frozenset())
    txn.execute(
        "SELECT e.prev_nos, e.auth_nos || coalesce(e.redacted_by, 0), e.group_before, e.group_after"
        f" FROM synrepl._room_events e WHERE e.event_no IN {NEW_EVENTS}",
        mark_params(mark),
    )
    wanted = frozenset(numbers)  # no copy if it is one already
    prev_nos: set[int] = set()
    auth_nos: set[int] = set()
    groups: set[int] = set()
    for prevs, auths, before, after in txn:
        prev_nos.update(wanted.intersection(prevs))
        auth_nos.update(wanted.intersection(auths))
        groups.update(each for each in (before, after) if each is not None)
    txn.execute(  # of a partial room, events that were judged again
        "SELECT g.group_no FROM synrepl._resync_events r"
        " CROSS JOIN LATERAL (VALUES (r.full_before), (r.full_after)) AS g (group_no)"
        " WHERE r.room_no = %(room)s AND g.group_no IS NOT NULL",
        mark_params(mark),
    )
    groups.update(int(group) for (group,) in txn.fetchall())
    txn.execute(
        "SELECT g.changes FROM synrepl._state_groups g"
        " WHERE g.room_no = %(room)s AND g.group_no > %(m_group)s",
        mark_params(mark),
    )
    for (changes,) in txn:
        numbered = unpacked_changes(changes).values()
        auth_nos.update(number for number in numbered if number in wanted)
    return CameLater(frozenset(prev_nos), frozenset(auth_nos), frozenset(groups))


def announce_room(txn: Transaction, cache: str, room_id: str) -> None:
    """Tell everybody that what they cached about a room is stale, in a fact of ``caches``.

    It is sent with the next statement: with the room locked, each round trip counts.

    :param cache: ``ph_cache_fake`` after a purge, ``dr_cache_fake`` after the removal of a room: the names
        that Synapse uses
    """
    rows = PendingRows()
    rows.run(
        "SELECT synrepl.append('caches', jsonb_build_array(jsonb_build_object('cache_func', %s::text,"
        " 'keys', jsonb_build_array(%s::text),"
        " 'invalidation_ts', (extract(epoch FROM now()) * 1000)::bigint)))",
        (cache, room_id),
    )
    rows.flush(txn)
