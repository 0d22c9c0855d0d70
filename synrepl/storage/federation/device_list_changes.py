"""Users of this server whose devices have changed, and the rooms by which other servers are concerned."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from synrepl.storage.database import Transaction
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.storage.tables import table_name
from synrepl.streams.synapse.device_lists import DEVICE_LISTS


def changed_users(txn: Transaction, own: str, after: int, upto: int) -> Mapping[str, int]:
    """Users of this server whose devices have changed, each with the stream ID of the last change.

    :param own: the name of this server
    :param after: a position of ``device_lists``, likewise ``upto``
    """
    txn.execute(
        f"SELECT entity, max(stream_id) FROM {table_name(DEVICE_LISTS)}"
        " WHERE stream_id > %s AND stream_id <= %s AND entity LIKE '@%%'"
        " AND substr(entity, strpos(entity, ':') + 1) = %s GROUP BY entity",
        (after, upto, own),
    )
    return {str(user): int(stream_id) for user, stream_id in txn.fetchall()}


def rooms_of(txn: Transaction, users: Collection[str]) -> Mapping[str, Collection[int]]:
    """The rooms that users are in."""
    txn.execute(
        "SELECT user_id, room_no FROM synrepl._memberships"
        " WHERE user_id = ANY (%s::text[]) AND membership = 'join'",
        (array_text(list(users)),),
    )
    found: dict[str, set[int]] = {user: set() for user in users}
    for user, room_no in txn.fetchall():
        found[user].add(int(room_no))
    return found
