"""Filters of users, by number."""

from __future__ import annotations

from hashlib import sha256

from synrepl.core.errors import Refused
from synrepl.storage.database import Transaction

#: Maximum number of filters that a user stores.
MAX_FILTERS = 1_000


class TooManyFilters(Refused):
    """user {user_id} has stored {most} filters already, which is the maximum"""


def add_filter(txn: Transaction, user_id: str, text: bytes) -> int:
    """Store a filter; the number that it has among those of the user.

    :raises TooManyFilters: there are :data:`MAX_FILTERS` others
    """
    digest = sha256(text).digest()
    txn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"filters {user_id}",))
    txn.execute(
        "SELECT filter_no, (SELECT count(*) FROM synrepl._client_filters WHERE user_id = %s)"
        " FROM (SELECT) AS one LEFT JOIN synrepl._client_filters"
        " ON user_id = %s AND digest = %s",
        (user_id, user_id, digest),
    )
    number, count = txn.fetchone()
    if number is not None:
        return int(number)
    if count >= MAX_FILTERS:
        raise TooManyFilters(user_id=user_id, most=MAX_FILTERS)
    txn.execute(
        "INSERT INTO synrepl._client_filters (user_id, filter_no, digest, filter)"
        " VALUES (%s, %s, %s, %s)",
        (user_id, count + 1, digest, text),
    )
    return int(count) + 1


def read_filter(txn: Transaction, user_id: str, number: int) -> bytes | None:
    """A filter; None if there is none with this number."""
    txn.execute(
        "SELECT filter FROM synrepl._client_filters WHERE user_id = %s AND filter_no = %s",
        (user_id, number),
    )
    found = txn.fetchone_or_none()
    return None if found is None else bytes(found[0])
