"""The presence of users, in tables."""

from __future__ import annotations

from collections.abc import Sequence

from synrepl.core.tokens import Token
from synrepl.storage.clients.values import Presence
from synrepl.storage.clients.written_values import StoredFact, append_with, upsert
from synrepl.storage.database import Transaction
from synrepl.storage.outbox import Outbox
from synrepl.storage.rooms.tables.pending_rows import array_text
from synrepl.streams.synapse.presence import PRESENCE, PresenceRow

_COLUMNS = "user_id, state, status_msg, last_active_ts, currently_active"
_WRITE = upsert("_presence", f"{_COLUMNS}, stream_id, writer", "user_id")


def read_presence(txn: Transaction, users: Sequence[str]) -> dict[str, Presence]:
    """The presence of users; users that were never seen are left out."""
    txn.execute(
        f"SELECT {_COLUMNS}, stream_id FROM synrepl._presence WHERE user_id = ANY (%s::text[])",
        (array_text(users),),
    )
    return {str(row[0]): Presence._make(row) for row in txn.fetchall()}


def presence_fact(txn: Transaction, user_id: str) -> StoredFact | None:
    """The last fact that tells of a user's presence; None: there is none."""
    txn.execute("SELECT writer, stream_id FROM synrepl._presence WHERE user_id = %s", (user_id,))
    row = txn.fetchone_or_none()
    return None if row is None else StoredFact(*row)


def read_present(txn: Transaction) -> list[Presence]:
    """The presence of all users that are not offline."""
    txn.execute(f"SELECT {_COLUMNS}, stream_id FROM synrepl._presence WHERE state <> 'offline'")
    return [Presence._make(row) for row in txn.fetchall()]


def shares_room(txn: Transaction, user_id: str, other: str) -> bool:
    """Whether two users are in the same room."""
    txn.execute(
        "SELECT FROM synrepl._memberships a JOIN synrepl._memberships b USING (room_no)"
        " WHERE a.user_id = %s AND a.membership = 'join'"
        " AND b.user_id = %s AND b.membership = 'join' LIMIT 1",
        (user_id, other),
    )
    return txn.fetchone_or_none() is not None


def write_presence(
    txn: Transaction, outbox: Outbox, writer: str, changed: Sequence[Presence], now_ms: int
) -> None:
    """Write the presence of users, each with a fact.

    :param writer: this process
    """
    # In one order, so that two processes do not wait for each other.
    for each in sorted(changed):
        _write_one(outbox, writer, each, now_ms)


def _write_one(outbox: Outbox, writer: str, each: Presence, now_ms: int) -> None:
    user_id, state, status_msg, active_ts, active, _ = each
    synced_ts = 0 if state == "offline" else now_ms
    row = PresenceRow(user_id, state, active_ts, 0, synced_ts, status_msg, active)

    def write(txn: Transaction, token: Token) -> None:
        txn.execute(_WRITE, (user_id, state, status_msg, active_ts, active, token, writer))

    append_with(outbox, PRESENCE, [row], write)
