"""Events of rooms: their rows and their JSON, read and written in bulk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntFlag
from hashlib import blake2b
from typing import NamedTuple

from synrepl.core.errors import StorageError
from synrepl.rooms import BadEvent, Check, Event, Refusal, RoomVersion, parse_event
from synrepl.storage.database import Record, Transaction
from synrepl.storage.rooms.tables.pending_rows import RoomTable, array_text


class CorruptEvent(StorageError):
    """the stored bytes of event {event_id} (number {event_no}) are not those of the event: {reason}; they are not served; get the event from another server again, and run 'synrepl rooms verify'"""


class MissingJson(StorageError):
    """event {event_id} (number {event_no}) has no JSON in the store; run 'synrepl rooms verify' to see what else is damaged"""


class EventFlags(IntFlag):
    """The stored outcome of an event.

    An outlier is known by its auth events only: it has no state and no ordering, and nobody may see it. The
    JSON of an erased event is in the redacted form, so that its content does not fit its content hash. An unconfirmed
    event is judged again when the room has its full state, though it has no partial state itself: its verdict
    may lean on events that have. An outgoing event is sent to the other servers in the room. An abandoned event had
    partial state when the last users of this server left: nothing is built on it until somebody joins the room again,
    when it is partial again. An event after a gap came as news although events before it had not: clients are told
    of the gap.
    """

    OUTLIER = 1
    REJECTED = 2
    SOFT_FAILED = 4
    PARTIAL = 8
    ERASED = 16
    UNCONFIRMED = 32
    OUTGOING = 64
    ABANDONED = 128
    AFTER_GAP = 256


#: What stays when an event is judged again: it does not depend on verdicts.
STAYING_FLAGS = EventFlags.ERASED | EventFlags.OUTGOING | EventFlags.AFTER_GAP


# Operations on members of an enumeration are slow, and these are looked at all the time.
_OUTLIER = int(EventFlags.OUTLIER)
_REJECTED = int(EventFlags.REJECTED)
_UNPASSED = int(EventFlags.REJECTED | EventFlags.SOFT_FAILED)
_PENDING = int(EventFlags.PARTIAL | EventFlags.UNCONFIRMED)
_STATELESS = int(EventFlags.OUTLIER | EventFlags.ABANDONED)


class StoredEvent(NamedTuple):
    """An event without its JSON; see the migration for the columns.

    :ivar refusal: check, code and sentence; see :func:`refusal_of`
    """

    event_no: int
    event_id: str
    room_no: int
    type: str
    slot: int | None
    sender: str
    depth: int
    origin_server_ts: int
    stream_id: int | None
    topological: int | None
    prev_nos: Sequence[int]
    auth_nos: Sequence[int]
    flags: int
    refusal: str | None
    redacted_by: int | None
    audience: int | None
    group_before: int | None
    group_after: int | None
    reach: int | None = None

    @property
    def is_outlier(self) -> bool:
        """Whether it has no state."""
        return bool(self.flags & _OUTLIER)

    @property
    def can_be_followed(self) -> bool:
        """Whether the state after it is known well enough to derive others from it."""
        return not self.flags & _STATELESS

    @property
    def is_rejected(self) -> bool:
        """Whether it was rejected."""
        return bool(self.flags & _REJECTED)

    @property
    def passed_all_checks(self) -> bool:
        """Whether it was neither rejected nor soft-failed."""
        return not self.flags & _UNPASSED

    @property
    def is_judged_again(self) -> bool:
        """Whether it is judged again when the room has its full state."""
        return bool(self.flags & _PENDING)


#: The columns of a :class:`StoredEvent`; the tables are ``e`` and ``t``.
STORED_EVENT = (
    "e.event_no, e.event_id, e.room_no, t.type, e.slot, e.sender, e.depth, e.origin_server_ts,"
    " e.stream_id, e.topological, e.prev_nos, e.auth_nos, e.flags, e.refusal, e.redacted_by,"
    " e.audience, e.group_before, e.group_after, e.reach"
)

#: Where they are.
FROM_EVENTS = "FROM synrepl._room_events e JOIN synrepl._event_types t USING (type_no)"

# Events of a list, looked up one by one (OFFSET 0): while the table grows quickly, PostgreSQL would take it for small, and
# read it as a whole for each list.
_FROM_LISTED = (
    "FROM unnest(%s::{kind}[]) AS a ({column}) CROSS JOIN LATERAL"
    " (SELECT * FROM synrepl._room_events WHERE {column} = a.{column} OFFSET 0) AS e"
    " JOIN synrepl._event_types t USING (type_no)"
)
_BY_ID = f"SELECT {STORED_EVENT} {_FROM_LISTED.format(kind='text', column='event_id')}"
_BY_NUMBER = f"SELECT {STORED_EVENT} {_FROM_LISTED.format(kind='bigint', column='event_no')}"

EVENTS_TABLE = RoomTable(
    "synrepl._room_events",
    "event_no, event_id, room_no, type_no, slot, sender, depth, origin_server_ts, stream_id,"
    " topological, prev_nos, auth_nos, flags, refusal, redacted_by, audience, group_before, group_after,"
    " reach",
)

JSON_TABLE = RoomTable("synrepl._room_event_json", "event_no, checksum, raw")


def stored_event(row: Record) -> StoredEvent:
    """A row of :data:`STORED_EVENT`."""
    return StoredEvent._make(row)


def events_by_id(txn: Transaction, event_ids: Collection[str]) -> dict[str, StoredEvent]:
    """Events by ID, of whatever room; those that are not here are left out."""
    if not event_ids:
        return {}
    txn.execute(_BY_ID, (array_text(event_ids),))
    return {each.event_id: each for each in map(stored_event, txn.fetchall())}


def events_by_number(txn: Transaction, numbers: Collection[int]) -> dict[int, StoredEvent]:
    """Events by number; those that are not here are left out."""
    if not numbers:
        return {}
    txn.execute(_BY_NUMBER, (array_text(numbers),))
    return {each.event_no: each for each in map(stored_event, txn.fetchall())}


def unpassed_ancestors(txn: Transaction, numbers: Collection[int]) -> dict[int, StoredEvent]:
    """Some events; below each that was rejected or soft-failed, also its prev events, and so on.

    Forward extremities are computed from these.
    """
    if not numbers:
        return {}
    txn.execute(
        "WITH RECURSIVE walk (event_no) AS (SELECT unnest(%s::bigint[]) UNION"
        " SELECT unnest(e.prev_nos) FROM walk JOIN synrepl._room_events e USING (event_no)"
        f" WHERE e.flags & {_UNPASSED} <> 0)"
        f" SELECT {STORED_EVENT} {FROM_EVENTS} JOIN walk USING (event_no)",
        (array_text(numbers),),
    )
    return {each.event_no: each for each in map(stored_event, txn.fetchall())}


def checksum(event_id: str, raw: bytes) -> int:
    """The checksum of an event's JSON.

    It covers what the reference hash does not: the content, ``unsigned`` and ``signatures``, and bytes that
    belong to another event.
    """
    return int.from_bytes(
        blake2b(event_id.encode() + b"\0" + raw, digest_size=8).digest(), "big", signed=True
    )


def raw_json(txn: Transaction, events: Iterable[StoredEvent]) -> dict[str, bytes]:
    """The JSON of events as it came, by ID.

    :raises MissingJson: an event has none
    :raises CorruptEvent: the bytes do not fit their checksum
    """
    wanted = {each.event_no: each.event_id for each in events}
    if not wanted:
        return {}
    txn.execute(
        "SELECT j.event_no, j.checksum, j.raw FROM unnest(%s::bigint[]) AS a (event_no) CROSS JOIN LATERAL"
        " (SELECT * FROM synrepl._room_event_json WHERE event_no = a.event_no OFFSET 0) AS j",
        (array_text(wanted),),
    )
    found: dict[str, bytes] = {}
    for event_no, stored_sum, raw in txn.fetchall():
        event_id, raw = wanted[event_no], bytes(raw)
        if checksum(event_id, raw) != stored_sum:
            reason = "they do not fit their checksum"
            raise CorruptEvent(event_id=event_id, event_no=event_no, reason=reason)
        found[event_id] = raw
    for event_no, event_id in wanted.items():
        if event_id not in found:
            raise MissingJson(event_id=event_id, event_no=event_no)
    return found


def parsed_events(
    txn: Transaction, version: RoomVersion, events: Collection[StoredEvent]
) -> dict[str, Event]:
    """Events with their JSON, by ID.

    :raises MissingJson: an event has none
    :raises CorruptEvent: the bytes do not fit their checksum, or do not hash to the event's ID
    """
    numbers = {each.event_id: each.event_no for each in events}
    found: dict[str, Event] = {}
    for event_id, raw in raw_json(txn, events).items():
        try:
            event = parse_event(raw, version)
        except BadEvent as error:
            raise CorruptEvent(
                event_id=event_id, event_no=numbers[event_id], reason=str(error)
            ) from error
        if event.event_id != event_id:
            reason = f"their ID is {event.event_id}"
            raise CorruptEvent(event_id=event_id, event_no=numbers[event_id], reason=reason)
        found[event_id] = event
    return found


def json_row(event_no: int, event: Event) -> tuple[object, ...]:
    """A row of :data:`JSON_TABLE`."""
    return event_no, checksum(event.event_id, event.raw), event.raw


def event_row(stored: StoredEvent, types: Mapping[str, int]) -> tuple[object, ...]:
    """A row of :data:`EVENTS_TABLE`.

    :param types: numbers of event types
    """
    return (
        *stored[:3],
        types[stored.type],
        *stored[4:10],
        list(stored.prev_nos),
        list(stored.auth_nos),
        *stored[12:],
    )


def refusal_text(check: Check | None, refusal: Refusal) -> str:
    """A refusal as stored. NUL, which no text in PostgreSQL can have, becomes U+FFFD."""
    return f"{check} {refusal.code} {refusal.sentence}".replace("\0", "\ufffd")


def refusal_of(text: str) -> tuple[Check, Refusal]:
    """A stored refusal: the check that the event failed, and why."""
    check, code, sentence = text.split(" ", 2)
    return Check(check), Refusal(code, sentence)
