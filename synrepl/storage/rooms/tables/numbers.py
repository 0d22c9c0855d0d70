"""Numbers of rooms, event types, state keys and events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from synrepl.core.errors import InputError, StorageError
from synrepl.rooms import StateKey
from synrepl.storage.database import (
    OPENING_COLUMNS,
    OpeningScript,
    PlannedOnce,
    Record,
    Script,
    Transaction,
)
from synrepl.storage.outbox import EarlyTokens
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.short_work import Opening

#: First half of the key of a room's advisory lock; the second half is its number. It is 'RM' << 16, beside
#: the 'SY' << 16 of writers.
ROOM_LOCKS = 0x524D0000


class UnknownRoom(InputError):
    """room {room_id} is not in the store"""


class OtherRoomVersion(InputError):
    """room {room_id} is stored with version {stored}, and its events were given as of version {given}"""


class NumberWithoutRow(StorageError):
    """{what} {number} of room {room_no} is referred to but not there; run 'synrepl rooms verify' to see what else is damaged"""


class RoomRow(NamedTuple):
    """A room; see the migration.

    :ivar revision: what is in memory about the room is valid while epoch and revision are the same
    :ivar main_line: of its states; None until there are some
    :ivar digest_key: secret with which the digests of its states are computed
    """

    room_no: int
    room_id: str
    version: str
    epoch: int
    revision: int
    slots: int
    main_line: int | None
    digest_key: bytes


#: Columns for :func:`room_row`.
ROOM_COLUMNS = "room_no, room_id, version, epoch, revision, slots, main_line, digest_key"

_ROOM = f"SELECT {ROOM_COLUMNS} FROM synrepl._rooms"


def room_row(record: Record) -> RoomRow:
    """A room from :data:`ROOM_COLUMNS`."""
    return RoomRow._make((*record[:7], bytes(record[7])))


def find_room(txn: Transaction, room_id: str) -> RoomRow | None:
    """A room by its ID; None if it is not here."""
    if "\0" in room_id:
        return None  # no text in PostgreSQL has it
    found = txn.execute(f"{_ROOM} WHERE room_id = %s", (room_id,)).fetchone_or_none()
    return None if found is None else room_row(found)


def require_room(txn: Transaction, room_id: str) -> RoomRow:
    """A room by its ID.

    :raises UnknownRoom: it is not here
    """
    found = find_room(txn, room_id)
    if found is None:
        raise UnknownRoom(room_id=room_id.replace("\0", "\ufffd"))
    return found


def room_by_number(txn: Transaction, room_no: int) -> RoomRow:
    """A room by its number.

    :raises NumberWithoutRow: it is not here
    """
    found = txn.execute(f"{_ROOM} WHERE room_no = %s", (room_no,)).fetchone_or_none()
    if found is None:
        raise NumberWithoutRow(what="room", number=room_no, room_no=room_no)
    return room_row(found)


def make_room(txn: Transaction, room_id: str, version: str) -> int:
    """The number of a room, which is made if it is not here. It is not locked yet."""
    txn.execute(
        "INSERT INTO synrepl._rooms (room_id, version) VALUES (%s, %s)"
        " ON CONFLICT (room_id) DO NOTHING",
        (room_id, version),
    )
    found = txn.execute("SELECT room_no FROM synrepl._rooms WHERE room_id = %s", (room_id,))
    return int(found.fetchone()[0])


def lock_room(txn: Transaction, room_no: int) -> RoomRow:
    """Wait until nobody else changes the room, and keep others from it until the transaction ends.

    The row is read after the lock was taken, so it is the newest.

    :raises NumberWithoutRow: it is not here any more
    """
    txn.execute("SELECT pg_advisory_xact_lock(%s, %s)", (ROOM_LOCKS, room_no))
    return room_by_number(txn, room_no)


def type_numbers(txn: Transaction, types: Collection[str], make: bool = False) -> dict[str, int]:
    """The numbers of event types.

    :param make: whether types that are not here get a number; otherwise they are left out
    """
    numbers = _type_numbers(txn, types)
    missing = sorted(set(types) - numbers.keys())  # in one order, so that no two deadlock
    if missing and make:
        txn.execute(
            "INSERT INTO synrepl._event_types (type) SELECT unnest(%s::text[])"
            " ON CONFLICT (type) DO NOTHING",
            (missing,),
        )
        numbers |= _type_numbers(txn, missing)
    return numbers


def _type_numbers(txn: Transaction, types: Iterable[str]) -> dict[str, int]:
    txn.execute(
        "SELECT type, type_no FROM synrepl._event_types WHERE type = ANY (%s::text[])",
        (list(types),),
    )
    return {str(name): int(number) for name, number in txn.fetchall()}


_SLOTS = Script(
    [
        PlannedOnce(
            "SELECT k.type, k.state_key, k.slot"
            " FROM unnest(%s::text[], %s::text[]) AS wanted (type, state_key)"
            " JOIN synrepl._room_keys k ON k.room_no = %s AND k.type = wanted.type"
            " AND k.state_key = wanted.state_key"
        )
    ]
)


def slots_of(txn: Transaction, room_no: int, keys: Sequence[StateKey]) -> dict[StateKey, int]:
    """The slots of state keys; those that the room never had are left out."""
    if not keys:
        return {}
    txn.execute(
        _SLOTS,
        (array_text([key[0] for key in keys]), array_text([key[1] for key in keys]), room_no),
    )
    return {(kind, state_key): int(slot) for kind, state_key, slot in txn.fetchall()}


def keys_of(txn: Transaction, room_no: int, slots: Collection[int]) -> dict[int, StateKey]:
    """The state keys of slots.

    :raises NumberWithoutRow: one is not here
    """
    if not slots:
        return {}
    txn.execute(
        "SELECT slot, type, state_key FROM synrepl._room_keys"
        " WHERE room_no = %s AND slot = ANY (%s::int[])",
        (room_no, array_text(slots)),
    )
    found = {int(slot): (str(kind), str(state_key)) for slot, kind, state_key in txn.fetchall()}
    for slot in slots:
        if slot not in found:
            raise NumberWithoutRow(what="slot", number=slot, room_no=room_no)
    return found


def event_ids_of(txn: Transaction, room_no: int, numbers: Collection[int]) -> dict[int, str]:
    """The IDs of events of a room.

    :raises NumberWithoutRow: one is not here, or is of another room
    """
    if not numbers:
        return {}
    txn.execute(
        "SELECT event_no, event_id FROM synrepl._room_events"
        " WHERE event_no = ANY (%s::bigint[]) AND room_no = %s",
        (array_text(numbers), room_no),
    )
    found = {int(number): str(event_id) for number, event_id in txn.fetchall()}
    for number in numbers:
        if number not in found:
            raise NumberWithoutRow(what="event", number=number, room_no=room_no)
    return found


def take_numbers(txn: Transaction, events: int, groups: int) -> tuple[list[int], list[int]]:
    """New numbers for events and for state groups, ascending.

    The caller holds the room's lock, so numbers of one room are taken in the order of its changes.
    """
    txn.execute(
        "SELECT ARRAY(SELECT nextval('synrepl._event_numbers') FROM generate_series(1, %s)),"
        " ARRAY(SELECT nextval('synrepl._group_numbers') FROM generate_series(1, %s))",
        (events, groups),
    )
    event_nos, group_nos = txn.fetchone()
    return list(event_nos), list(group_nos)


class OpenedRoom(NamedTuple):
    """A locked room, with numbers to use.

    :ivar now_ms: the time of the transaction, in milliseconds since 1970
    :ivar known: those of the events that were asked for that are here, in whatever room
    """

    room: RoomRow
    event_nos: list[int]
    group_nos: list[int]
    now_ms: int
    known: frozenset[str]


#: Of up to so many events, each is a parameter of its own.
_MAX_FEW = 16

_OF_ROOM = "FROM synrepl._rooms WHERE room_no = %s"
_LOCK = PlannedOnce("SELECT pg_advisory_xact_lock(%s, %s)")


def _open(ids: str) -> OpeningScript:
    """Opens a room for several events.

    :param ids: a table of theirs; they are looked up one by one: while the table of events grows quickly, PostgreSQL
        would take it for small, and read it as a whole
    """
    return OpeningScript(
        [
            _LOCK,
            PlannedOnce(
                f"SELECT {ROOM_COLUMNS},"
                " ARRAY(SELECT nextval('synrepl._event_numbers') FROM generate_series(1, %s)),"
                " ARRAY(SELECT nextval('synrepl._group_numbers') FROM generate_series(1, %s)),"
                " (extract(epoch FROM now()) * 1000)::bigint,"
                f" ARRAY(SELECT e.event_id FROM {ids} AS a (event_id) CROSS JOIN LATERAL"
                "  (SELECT event_id FROM synrepl._room_events WHERE event_id = a.event_id OFFSET 0) AS e),"
                f" {OPENING_COLUMNS} {_OF_ROOM}"
            ),
        ]
    )


_OPEN_FOR_MANY_SCRIPT = _open("unnest(%s::text[])")
# With an array, PostgreSQL plans again each time.
_FOR_ONE = (
    f"SELECT {ROOM_COLUMNS}, ARRAY[nextval('synrepl._event_numbers')],"
    " CASE %s::int WHEN 0 THEN ARRAY[]::bigint[] ELSE ARRAY[nextval('synrepl._group_numbers')] END,"
    " (extract(epoch FROM now()) * 1000)::bigint,"
    " ARRAY(SELECT e.event_id FROM synrepl._room_events e WHERE e.event_id = %s)"
)
_OPEN_FOR_ONE_SCRIPT = OpeningScript(
    [_LOCK, PlannedOnce(f"{_FOR_ONE}, {OPENING_COLUMNS} {_OF_ROOM}")]
)
_OPEN_FOR_FEW_SCRIPTS = {
    count: _open(f"(VALUES {', '.join(['(%s::text)'] * count)})") for count in (2, 4, 8, _MAX_FEW)
}
# A statement of its own: the row is read with a snapshot that is not older than the lock.
_TRY_LOCK = PlannedOnce(
    "SELECT set_config('synrepl.has_room', pg_try_advisory_xact_lock(%s, %s)::text, true)"
)


@lru_cache(100)
def _reopening_script(tokens: str) -> OpeningScript:
    unchanged = "epoch = %s AND revision = %s AND current_setting('synrepl.has_room') = 'true'"
    return OpeningScript(
        [
            _TRY_LOCK,
            PlannedOnce(f"{_FOR_ONE}, {tokens}, {OPENING_COLUMNS} {_OF_ROOM} AND {unchanged}"),
        ]
    )


def open_room(txn: Transaction, room_no: int, event_ids: Sequence[str], groups: int) -> OpenedRoom:
    """:func:`lock_room`, :func:`take_numbers` and which events are known, in one round trip.

    :param event_ids: events that are likely to be new; as many numbers are taken
    :param groups: state groups that are likely to be made; fewer numbers may be taken

    :raises NumberWithoutRow: the room is not here any more
    """
    script: OpeningScript
    wanted: tuple[object, ...]
    if len(event_ids) == 1:
        script, wanted = _OPEN_FOR_ONE_SCRIPT, (min(groups, 1), event_ids[0])
    elif 0 < len(event_ids) <= _MAX_FEW:
        count, script = next(
            each for each in _OPEN_FOR_FEW_SCRIPTS.items() if each[0] >= len(event_ids)
        )
        again = [event_ids[-1]] * (count - len(event_ids))
        wanted = (len(event_ids), groups, *event_ids, *again)
    else:
        script, wanted = _OPEN_FOR_MANY_SCRIPT, (len(event_ids), groups, array_text(event_ids))
    txn.execute(script, (ROOM_LOCKS, room_no, *wanted, room_no))
    found = txn.fetchone_or_none()
    if found is None:
        raise NumberWithoutRow(what="room", number=room_no, room_no=room_no)
    return _opened(found)


class RoomRevision(NamedTuple):
    """A room as it was remembered."""

    room_no: int
    epoch: int
    revision: int


def reopening(room: RoomRevision, event_id: str, groups: int, tokens: EarlyTokens) -> Opening:
    """:func:`open_room` for one event, with tokens reserved in the same round trip.

    It does not wait for the room's lock, and returns no row and reserves nothing unless the room is as it was.
    """
    room_no, epoch, revision = room
    params = (
        *(ROOM_LOCKS, room_no, groups, event_id),
        *tokens.params,
        *(room_no, epoch, revision),
    )
    return Opening(_reopening_script(tokens.column), params)


def reopened(found: Record, tokens: EarlyTokens) -> OpenedRoom:
    """The room from the row of :func:`reopening`."""
    tokens.take(found[12])
    return _opened(found)


def _opened(found: Record) -> OpenedRoom:
    room = room_row(found)
    return OpenedRoom(room, list(found[8]), list(found[9]), int(found[10]), frozenset(found[11]))
