"""Receipts of users, in tables."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core import jsons
from synrepl.core.errors import InputError, Refused
from synrepl.core.tokens import Token
from synrepl.rooms import server_of
from synrepl.storage.clients.written_values import LOCK, StoredFact, append_with, upsert
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.numbers import UnknownRoom
from synrepl.streams.synapse.receipts import RECEIPTS, ReceiptRow

#: Maximum number of receipts of a user in a room, one for each thread. Beyond it, the oldest goes.
MAX_RECEIPTS_OF_USER = 1_000

#: The thread of everything that is in no other one.
MAIN_THREAD = "main"

#: Relations that are followed from an event to the thread that it is in.
MAX_HOPS = 3

_WRITE = upsert(
    "_receipts",
    "room_no, user_id, receipt_type, thread_id, event_id, ts, stream_id, writer",
    "room_no, user_id, receipt_type, thread_id",
)

_READ_LOCKED = Script(
    [
        LOCK,
        PlannedOnce(
            "SELECT event_id, writer, stream_id FROM synrepl._receipts WHERE room_no = %s"
            " AND user_id = %s AND receipt_type = %s AND thread_id = %s"
        ),
    ]
)


class NotAMember(Refused):
    """user {user_id} is not in room {room_id}"""


class EventNotInRoom(InputError):
    """event {event_id} is not in room {room_id}"""


class NotInThread(InputError):
    """event {event_id} is not in the thread {thread_id}"""


class NewReceipt(NamedTuple):
    """A receipt that a user sends; see :class:`~.values.Receipt`."""

    room_id: str
    receipt_type: str
    user_id: str
    event_id: str
    thread_id: str | None
    ts: int


class ReadPlace(NamedTuple):
    """Where an event is in a room.

    :ivar stream_id: its stream ordering; None if it is not stored
    """

    room_no: int
    stream_id: int | None


def may_be_member(txn: Transaction, room_no: int, user_id: str) -> bool:
    """Whether a user of another server may have been in a room before this server joined it with partial state.

    Its server was in the room, and no membership says otherwise.
    """
    txn.execute(
        "SELECT FROM synrepl._partial_room_servers s WHERE s.room_no = %s AND s.server_name = %s"
        " AND NOT EXISTS (SELECT FROM synrepl._memberships m"
        "  WHERE m.room_no = s.room_no AND m.user_id = %s)",
        (room_no, server_of(user_id), user_id),
    )
    return txn.fetchone_or_none() is not None


def place_of(
    txn: Transaction, room_id: str, user_id: str, event_id: str, *, is_foreign: bool = False
) -> ReadPlace:
    """Where a member of a room has read up to.

    :param is_foreign: whether the user is of another server: then it may be a member of which a partial room does not know
    :raises UnknownRoom: :raises NotAMember:
    """
    txn.execute(
        "SELECT r.room_no, m.membership, e.stream_id FROM synrepl._rooms r"
        " LEFT JOIN synrepl._memberships m ON m.room_no = r.room_no AND m.user_id = %s"
        " LEFT JOIN synrepl._room_events e ON e.event_id = %s AND e.room_no = r.room_no"
        " WHERE r.room_id = %s",
        (user_id, event_id, room_id),
    )
    found = txn.fetchone_or_none()
    if found is None:
        raise UnknownRoom(room_id=room_id)
    room_no, membership, stream_id = found
    is_member = membership == "join" or (is_foreign and may_be_member(txn, room_no, user_id))
    if not is_member:
        raise NotAMember(user_id=user_id, room_id=room_id)
    return ReadPlace(room_no, stream_id)


def stream_id_of(txn: Transaction, room_no: int, event_id: str) -> int | None:
    """The stream ordering of an event of a room; None if it is not stored."""
    txn.execute(
        "SELECT stream_id FROM synrepl._room_events WHERE event_id = %s AND room_no = %s",
        (event_id, room_no),
    )
    found = txn.fetchone_or_none()
    return None if found is None else found[0]


def is_before(stream_id: int | None, other: int | None) -> bool:
    """Whether an event comes before another one; not if one of them is not stored."""
    return stream_id is not None and other is not None and stream_id < other


def write_receipt(
    txn: Transaction, outbox: Outbox, writer: str, receipt: NewReceipt, *, is_foreign: bool
) -> StoredFact | None:
    """Write a receipt with its fact, unless the user has read further already.

    :param writer: this process
    :param is_foreign: whether the user is of another server: then the event may not be here yet
    :returns: the fact of the receipt that was there before
    :raises UnknownRoom: :raises NotAMember: :raises EventNotInRoom: :raises NotInThread:
    """
    room_id, kind, user_id, event_id, thread_id, ts = receipt
    room_no, stream_id = place_of(txn, room_id, user_id, event_id, is_foreign=is_foreign)
    if stream_id is None and not is_foreign:
        raise EventNotInRoom(event_id=event_id, room_id=room_id)
    if thread_id is not None and not is_foreign:
        _check_thread(txn, room_no, event_id, thread_id)
    key = room_no, user_id, kind, thread_id or ""
    txn.execute(_READ_LOCKED, ("\n".join(("receipt", *map(str, key))), *key))
    found, fact = txn.fetchone_or_none(), None
    if found is not None:
        fact = StoredFact(found[1], found[2])
        if found[0] == event_id or is_before(stream_id, stream_id_of(txn, room_no, found[0])):
            return fact
    elif thread_id is not None:
        _drop_oldest(txn, room_no, user_id)

    def write(txn: Transaction, token: Token) -> None:
        txn.execute(_WRITE, (*key, event_id, ts, token, writer))

    row = ReceiptRow(room_id, kind, user_id, event_id, {"ts": ts}, thread_id)
    append_with(outbox, RECEIPTS, [row], write)
    return fact


def _drop_oldest(txn: Transaction, room_no: int, user_id: str) -> None:
    """Make place for a receipt of one more thread."""
    txn.execute(
        "DELETE FROM synrepl._receipts WHERE room_no = %s AND user_id = %s AND stream_id <= ("
        "SELECT stream_id FROM synrepl._receipts WHERE room_no = %s AND user_id = %s"
        " ORDER BY stream_id DESC OFFSET %s LIMIT 1)",
        (room_no, user_id, room_no, user_id, MAX_RECEIPTS_OF_USER - 1),
    )


def _check_thread(txn: Transaction, room_no: int, event_id: str, thread_id: str) -> None:
    """Check that an event is in a thread, directly or by what it relates to.

    Source: https://spec.matrix.org/v1.16/client-server-api/#threaded-read-receipts

    :raises NotInThread:
    """
    found = _thread_of(txn, room_no, event_id)
    if thread_id not in (found, event_id) or (thread_id == event_id and found != MAIN_THREAD):
        raise NotInThread(event_id=event_id, thread_id=thread_id[:255])


def _thread_of(txn: Transaction, room_no: int, event_id: str) -> str:
    for _ in range(MAX_HOPS):
        txn.execute(
            "SELECT j.raw FROM synrepl._room_events e JOIN synrepl._room_event_json j USING (event_no)"
            " WHERE e.event_id = %s AND e.room_no = %s",
            (event_id, room_no),
        )
        found = txn.fetchone_or_none()
        if found is None:
            break
        event, _ = jsons.decode_exactly(bytes(found[0]), "a stored event")
        content = event.get("content")
        relation = content.get("m.relates_to") if isinstance(content, dict) else None
        if not isinstance(relation, dict):
            break
        target = relation.get("event_id")
        if not isinstance(target, str) or "\0" in target:
            break
        if relation.get("rel_type") == "m.thread":
            return target
        event_id = target
    return MAIN_THREAD
