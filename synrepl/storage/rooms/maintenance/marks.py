"""Short transactions that change a room by what was found out without its lock.

Maintenance finds out without the room's lock what is to go, which takes as long as it takes, and removes it under the
lock in batches of milliseconds. In between, others go on to persist. A *mark*, taken under the lock,
divides what was there from what came later: a batch looks at what came later, which is little, for
references to what it is about to remove. What other maintenance does meanwhile voids a mark.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from synrepl.core.errors import StorageError
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.states.state_groups import unpacked_changes
from synrepl.storage.rooms.tables.numbers import RoomRow, lock_room

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
    """room {room_id} was purged, compacted or collected by another process at the same time, or the connection was lost at a COMMIT; run the command again, it goes on from there"""


class RoomMark(NamedTuple):
    """What there was of a room at a moment.

    :ivar reworked: of the room's row; another number voids the mark
    :ivar event_no: the last event number that was given out
    :ivar group_no: the last number of a state group
    :ivar newest: the newest stream ID
    :ivar oldest: the oldest one
    :ivar revision: of the room's row; while it is the same, nothing came later
    """

    room_no: int
    reworked: int
    event_no: int
    group_no: int
    newest: int
    oldest: int
    revision: int


class RoomLock(NamedTuple):
    """A room that is locked, and since when, in seconds of the server's clock."""

    room: RoomRow
    since: float


class CameLater(NamedTuple):
    """What references were made after a mark; see :func:`references_since`."""

    prev_nos: frozenset[int]
    auth_nos: frozenset[int]
    groups: frozenset[int]


def mark_room(txn: Transaction, room_no: int) -> RoomMark:
    """Take a mark.

    The lock makes sure that no transaction of the room is under way, so every number that was given out to
    the room is in its tables.
    """
    lock_room(txn, room_no)
    txn.execute(
        "SELECT r.reworked,"
        " (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM synrepl._event_numbers),"
        " (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM synrepl._group_numbers),"
        " coalesce((SELECT max(stream_id) FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NOT NULL), 0),"
        " coalesce((SELECT min(stream_id) FROM synrepl._room_events"
        "  WHERE room_no = %s AND stream_id IS NOT NULL), 0), r.revision"
        " FROM synrepl._rooms r WHERE r.room_no = %s",
        (room_no, room_no, room_no),
    )
    return RoomMark(room_no, *map(int, txn.fetchone()))


def lock_marked(txn: Transaction, mark: RoomMark) -> RoomLock:
    """Lock a room, to change it by what was found out since a mark.

    :raises ReworkedMeanwhile: the mark is void
    """
    room = lock_room(txn, mark.room_no)
    txn.execute(
        "SELECT reworked, extract(epoch FROM clock_timestamp()) FROM synrepl._rooms WHERE room_no = %s",
        (mark.room_no,),
    )
    reworked, since = txn.fetchone()
    if reworked != mark.reworked:
        raise ReworkedMeanwhile(room_id=room.room_id)
    return RoomLock(room, float(since))


def reworked(
    txn: Transaction, mark: RoomMark, lock: RoomLock, *, new_epoch: bool = False
) -> tuple[RoomMark, float]:
    """End a batch: what processes have in memory about the room, and other marks, are void.

    :returns: the mark to go on with, and for how many milliseconds the lock was held
    """
    txn.execute(
        "UPDATE synrepl._rooms SET revision = revision + 1, reworked = reworked + 1,"
        " epoch = epoch + %s WHERE room_no = %s"
        " RETURNING extract(epoch FROM clock_timestamp())",
        (int(new_epoch), mark.room_no),
    )
    held = (float(txn.fetchone()[0]) - lock.since) * 1000
    revision = mark.revision + (lock.room.revision == mark.revision)
    return mark._replace(reworked=mark.reworked + 1, revision=revision), held


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
    if lock.room.revision == mark.revision:
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

    :param cache: ``ph_cache_fake`` after a purge, ``dr_cache_fake`` after the removal of a room: the names
        that Synapse uses
    """
    txn.execute(
        "SELECT synrepl.append('caches', jsonb_build_array(jsonb_build_object('cache_func', %s::text,"
        " 'keys', jsonb_build_array(%s::text),"
        " 'invalidation_ts', (extract(epoch FROM now()) * 1000)::bigint)))",
        (cache, room_id),
    )
