"""Idempotency keys: a repeated request gets the answer of the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from synrepl.core.tokens import Token
from synrepl.storage.database import Transaction
from synrepl.storage.store import AppendResult, KeyReused
from synrepl.streams.row import Row


def digest(facts: Sequence[Sequence[Row]]) -> bytes:
    """A digest that identifies the rows of a request."""
    named = [[(type(row).__name__, row) for row in rows] for rows in facts]
    return hashlib.sha256(msgspec.json.encode(named)).digest()


def recall(
    txn: Transaction, stream: str, key: str, rows_digest: bytes, writer: str
) -> AppendResult | None:
    """The recorded answer for a key, if there is one.

    :param writer: the requesting writer; it stands in for the original one where that is
        unknown, because an older process recorded the answer and the facts are trimmed or had
        no rows, so that there is nothing left to wait for
    :raises KeyReused: the key was used with other rows
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
    """Record the answer for a key.

    A concurrent request with the same key waits here and then fails on the primary
    key; its retry finds the answer.
    """
    txn.execute(
        "INSERT INTO synrepl._idempotency_keys (stream, key, digest, tokens, writer)"
        " VALUES (%s, %s, %s, %s, %s)",
        (stream, key, rows_digest, list(answer.tokens), answer.writer),
    )


def _writer_of(txn: Transaction, stream: str, tokens: Sequence[Token]) -> str | None:
    """The writer of the facts, according to their rows."""
    ids = [sign * token for token in tokens for sign in (1, -1)]
    txn.execute(f'SELECT writer FROM synrepl."{stream}" WHERE stream_id = ANY(%s) LIMIT 1', (ids,))
    row = txn.fetchone_or_none()
    return None if row is None else str(row[0])


def forget(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete expired keys, up to ``at_most``; return their number."""
    txn.execute(
        """
        DELETE FROM synrepl._idempotency_keys WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM synrepl._idempotency_keys
            WHERE created_at < now() - make_interval(secs => %s) LIMIT %s))
        """,
        (older_than_s, at_most),
    )
    return txn.rowcount
