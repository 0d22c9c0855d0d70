"""Idempotency keys: a request that is repeated gets the first one's answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction
from synrepl.storage.store import AppendResult, KeyReused
from synrepl.streams.row import Row


def digest(facts: Sequence[Sequence[Row]]) -> bytes:
    """What identifies the rows of a request."""
    named = [[(type(row).__name__, row) for row in rows] for rows in facts]
    return hashlib.sha256(msgspec.json.encode(named)).digest()


def recall(
    txn: Transaction, stream: str, key: str, rows_digest: bytes, writer: str
) -> AppendResult | None:
    """The answer that was given for this key before, if any.

    :param writer: who asks; named as the writer when nothing says who it was, because an
        older process kept the answer and the facts are trimmed or had no rows, so that there
        is nothing left to wait for
    :raises KeyReused: when the key came with other rows then
    """
    txn.execute(
        "SELECT digest, tokens, writer FROM synrepl._idempotency_keys"
        " WHERE stream = %s AND key = %s",
        (stream, key),
    )
    row = txn.fetchone_or_none()
    if row is None:
        return None
    if bytes(row[0]) != rows_digest:
        raise KeyReused(key=key)
    tokens = [int(token) for token in row[1]]
    return AppendResult(tokens, row[2] or _writer_of(txn, stream, tokens) or writer, replayed=True)


def remember(
    txn: Transaction, stream: str, key: str, rows_digest: bytes, answer: AppendResult
) -> None:
    """Keep the answer under its key.

    A second request that runs at the same time waits here and then fails on the
    primary key; its retry finds the answer.
    """
    txn.execute(
        "INSERT INTO synrepl._idempotency_keys (stream, key, digest, tokens, writer)"
        " VALUES (%s, %s, %s, %s, %s)",
        (stream, key, rows_digest, list(answer.tokens), answer.writer),
    )


def _writer_of(txn: Transaction, stream: str, tokens: Sequence[Token]) -> str | None:
    """Who wrote the facts, according to their rows."""
    ids = [sign * token for token in tokens for sign in (1, -1)]
    txn.execute(f'SELECT writer FROM synrepl."{stream}" WHERE stream_id = ANY(%s) LIMIT 1', (ids,))
    row = txn.fetchone_or_none()
    return None if row is None else str(row[0])


def forget(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete some keys past their keeping time; returns how many."""
    txn.execute(
        """
        DELETE FROM synrepl._idempotency_keys WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM synrepl._idempotency_keys
            WHERE created_at < now() - make_interval(secs => %s) LIMIT %s))
        """,
        (older_than_s, at_most),
    )
    return txn.rowcount
