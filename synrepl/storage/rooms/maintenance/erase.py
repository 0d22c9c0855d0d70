"""Erasure of a user: the JSON of the events that the user sent is replaced by its redacted form.

First the user is recorded as erased, in one transaction: from then on, others get the redacted form of what the user
sent, events that come later included. Then the JSON is replaced, in batches.

The redacted form (:mod:`.erased_form`) has the same event ID and the same signatures, so it can still be served to
other servers, and states and auth chains stay what they are. Its content does not fit its content hash any more, which the flag
``ERASED`` tells.
"""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import InputError
from synrepl.rooms import (
    BadEvent,
    is_user_id,
    parse_event,
    room_version,
)
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.maintenance.erased_form import erased_form
from synrepl.storage.rooms.maintenance.marks import announce_room
from synrepl.storage.rooms.maintenance.purge import PURGED_CACHE
from synrepl.storage.rooms.tables.events import (
    CorruptEvent,
    EventFlags,
    checksum,
)
from synrepl.storage.rooms.tables.numbers import lock_room


class NotAUser(InputError):
    """{text!r} is no user ID, such as @alice:example.org; nothing of it was erased"""


class SentEvents(NamedTuple):
    """Events of a user in a stretch of the table that are not erased yet.

    :ivar by_room: their numbers, by the number of their room
    :ivar scanned_to: where to go on; None at the end
    """

    by_room: dict[int, list[int]]
    scanned_to: int | None


def is_erasable(text: str) -> bool:
    """Whether a text may be the sender of a stored event."""
    return is_user_id(text) and "\0" not in text


def record_erased(txn: Transaction, user_id: str) -> None:
    """Record that a user was erased.

    :raises NotAUser: it is no user ID
    """
    if not is_erasable(user_id):
        raise NotAUser(text=user_id)
    txn.execute(
        "INSERT INTO synrepl._erased_users (user_id) VALUES (%s) ON CONFLICT DO NOTHING", (user_id,)
    )


def sent_events(txn: Transaction, user_id: str, after: int, scan: int) -> SentEvents:
    """Find events of a user. There is no index by sender, so the table is read once, in stretches.

    :param after: the event number where the stretch begins
    :param scan: the length of the stretch
    """
    txn.execute(
        "SELECT max(event_no) FROM (SELECT event_no FROM synrepl._room_events"
        "  WHERE event_no > %s ORDER BY event_no LIMIT %s) s",
        (after, scan),
    )
    (end,) = txn.fetchone()
    if end is None:
        return SentEvents({}, None)
    txn.execute(
        "SELECT room_no, event_no FROM synrepl._room_events WHERE event_no > %s AND event_no <= %s"
        f" AND sender = %s AND flags & {int(EventFlags.ERASED)} = 0 ORDER BY room_no, event_no",
        (after, end, user_id),
    )
    by_room: dict[int, list[int]] = {}
    for room_no, event_no in txn.fetchall():
        by_room.setdefault(room_no, []).append(int(event_no))
    return SentEvents(by_room, int(end))


def erase_events(txn: Transaction, room_no: int, numbers: list[int]) -> int:
    """Replace the JSON of some events of a room by their redacted form; returns the number of events.

    :raises CorruptEvent: the JSON of one is damaged, or its redacted form would be another event
    """
    room = lock_room(txn, room_no)
    version = room_version(room.version)
    txn.execute(
        "SELECT e.event_no, e.event_id, j.raw FROM synrepl._room_events e"
        " JOIN synrepl._room_event_json j USING (event_no)"
        " WHERE e.room_no = %s AND e.event_no = ANY (%s::bigint[])",
        (room_no, numbers),
    )
    erased: list[int] = []
    sums: list[int] = []
    raws: list[bytes] = []
    for event_no, event_id, raw in txn.fetchall():
        try:
            redacted = erased_form(parse_event(bytes(raw), version))
            same = parse_event(redacted, version).event_id == event_id
        except BadEvent as error:
            raise CorruptEvent(event_id=event_id, event_no=event_no, reason=str(error)) from error
        if not same:
            reason = "their redacted form has another ID"
            raise CorruptEvent(event_id=event_id, event_no=event_no, reason=reason)
        erased.append(event_no)
        sums.append(checksum(event_id, redacted))
        raws.append(redacted)
    for event_no, stored_sum, redacted in zip(erased, sums, raws, strict=True):
        txn.execute(
            "UPDATE synrepl._room_event_json SET checksum = %s, raw = %s WHERE event_no = %s",
            (stored_sum, redacted, event_no),
        )
    txn.execute(
        f"UPDATE synrepl._room_events SET flags = flags | {int(EventFlags.ERASED)}"
        " WHERE event_no = ANY (%s::bigint[])",
        (erased,),
    )
    txn.execute("UPDATE synrepl._rooms SET revision = revision + 1 WHERE room_no = %s", (room_no,))
    announce_room(txn, PURGED_CACHE, room.room_id)
    return len(erased)


class WaitingOfUser(NamedTuple):
    """Events of a user in a page of those that wait.

    :ivar by_room: their IDs, by the number of their room
    :ivar next_page: where to go on; None at the end
    """

    by_room: dict[int, list[str]]
    next_page: tuple[int, str] | None


def waiting_of(txn: Transaction, user_id: str, after: tuple[int, str], limit: int) -> WaitingOfUser:
    """Find waiting events of a user: they are not judged yet, so their senders are in no column.

    :param after: number of the room and event ID where the page begins
    """
    txn.execute(
        "SELECT w.room_no, w.event_id, w.raw, r.version FROM synrepl._waiting_events w"
        " JOIN synrepl._rooms r USING (room_no) WHERE (w.room_no, w.event_id) > (%s, %s)"
        " ORDER BY w.room_no, w.event_id LIMIT %s",
        (*after, limit),
    )
    by_room: dict[int, list[str]] = {}
    last: tuple[int, str] | None = None
    count = 0
    for room_no, event_id, raw, version in txn:
        count += 1
        last = room_no, event_id
        if parse_event(bytes(raw), room_version(version)).sender == user_id:
            by_room.setdefault(room_no, []).append(event_id)
    return WaitingOfUser(by_room, last if count == limit else None)


def drop_waiting(txn: Transaction, room_no: int, event_ids: list[str]) -> int:
    """Remove waiting events; returns their number. They can be requested again when they are needed."""
    lock_room(txn, room_no)
    txn.execute(
        "DELETE FROM synrepl._waiting_events WHERE room_no = %s AND event_id = ANY (%s::text[])",
        (room_no, event_ids),
    )
    count = txn.rowcount
    txn.execute(
        "UPDATE synrepl._room_heads SET waiting = waiting - %s WHERE room_no = %s",
        (count, room_no),
    )
    txn.execute("UPDATE synrepl._rooms SET revision = revision + 1 WHERE room_no = %s", (room_no,))
    return count
