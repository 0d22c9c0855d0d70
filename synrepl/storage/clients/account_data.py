"""Account data of users, in tables."""

from __future__ import annotations

from typing import NamedTuple

from synrepl.core.errors import Refused
from synrepl.core.tokens import Token
from synrepl.storage.clients.written_values import LOCK, StoredFact, append_with, upsert
from synrepl.storage.database import PlannedOnce, Script, Transaction
from synrepl.storage.outbox import Outbox
from synrepl.streams.synapse.account_data import ACCOUNT_DATA, AccountDataRow

#: Maximum number of types of account data that a user has in one room, or in none, and in all together.
MAX_TYPES, MAX_ENTRIES = 1_000, 100_000

_READ = Script(
    [
        PlannedOnce(
            "SELECT content, writer, stream_id FROM synrepl._account_data"
            " WHERE user_id = %s AND room_id = %s AND type = %s"
        )
    ]
)
_READ_LOCKED = Script([LOCK, *_READ.parts])

_WRITE = upsert(
    "_account_data",
    "user_id, room_id, type, content, stream_id, writer",
    "user_id, room_id, type",
)


class TooMuchAccountData(Refused):
    """user {user_id} has {most} entries of account data already, which is the maximum; change one of these"""


class StoredAccountData(NamedTuple):
    """Account data that is stored.

    :ivar content: JSON; None without any
    """

    content: bytes | None = None
    fact: StoredFact | None = None


def read_account_data(
    txn: Transaction, user_id: str, room_id: str | None, kind: str, *, lock: bool = False
) -> StoredAccountData:
    """Account data of a user.

    :param room_id: None for data that belongs to no room
    :param lock: nobody else changes it until the transaction ends
    """
    key = user_id, room_id or "", kind
    if lock:
        txn.execute(_READ_LOCKED, ("\n".join(("account data", *key)), *key))
    else:
        txn.execute(_READ, key)
    found = txn.fetchone_or_none()
    if found is None:
        return StoredAccountData()
    content, writer, stream_id = found
    return StoredAccountData(bytes(content), StoredFact(writer, stream_id))


def read_in_rooms(txn: Transaction, user_id: str, kind: str) -> dict[str, bytes]:
    """The contents of one type of account data, as JSON, by room ID."""
    txn.execute(
        "SELECT room_id, content FROM synrepl._account_data"
        " WHERE user_id = %s AND room_id <> '' AND type = %s",
        (user_id, kind),
    )
    return {str(room_id): bytes(content) for room_id, content in txn.fetchall()}


def write_account_data(
    txn: Transaction,
    outbox: Outbox,
    writer: str,
    user_id: str,
    room_id: str | None,
    kind: str,
    content: bytes,
    *,
    is_new: bool,
) -> None:
    """Write account data with its fact. Who calls it has read it with a lock.

    :param writer: this process
    :raises TooMuchAccountData: it is new, and would be one too many
    """
    if is_new:
        _check_number(txn, user_id, room_id or "")

    def write(txn: Transaction, token: Token) -> None:
        txn.execute(_WRITE, (user_id, room_id or "", kind, content, token, writer))

    append_with(outbox, ACCOUNT_DATA, [AccountDataRow(user_id, room_id, kind)], write)


def _check_number(txn: Transaction, user_id: str, room_id: str) -> None:
    txn.execute(
        "SELECT (SELECT count(*) FROM synrepl._account_data WHERE user_id = %s AND room_id = %s),"
        " (SELECT count(*) FROM (SELECT FROM synrepl._account_data WHERE user_id = %s LIMIT %s) AS t)",
        (user_id, room_id, user_id, MAX_ENTRIES),
    )
    types, entries = txn.fetchone()
    if types >= MAX_TYPES:
        raise TooMuchAccountData(user_id=user_id, most=MAX_TYPES)
    if entries >= MAX_ENTRIES:
        raise TooMuchAccountData(user_id=user_id, most=MAX_ENTRIES)
