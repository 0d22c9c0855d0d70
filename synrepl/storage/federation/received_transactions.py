"""Transactions that other servers sent, with their answers.

Source: https://spec.matrix.org/v1.16/server-server-api/#transactions: a transaction that is sent again gets the answer
of the first time.
"""

from __future__ import annotations

from synrepl.storage.database import PlannedOnce, Script, Transaction

_FIND = Script(
    [
        PlannedOnce(
            "SELECT answer FROM synrepl._received_transactions WHERE origin = %s AND txn_id = %s"
        )
    ]
)

# The update writes nothing new. It returns the row of whoever was first, also if that one has just committed.
_RECORD = Script(
    [
        PlannedOnce(
            "INSERT INTO synrepl._received_transactions AS t (origin, txn_id, answer)"
            " VALUES (%s, %s, %s) ON CONFLICT (origin, txn_id) DO UPDATE SET answer = t.answer"
            " RETURNING answer"
        )
    ]
)


def recorded_answer(txn: Transaction, origin: str, txn_id: str) -> bytes | None:
    """The answer that a transaction got; None if it was not answered yet."""
    found = txn.execute(_FIND, (origin, txn_id)).fetchone_or_none()
    return None if found is None else bytes(found[0])


def record_answer(txn: Transaction, origin: str, txn_id: str, answer: bytes) -> bytes:
    """Record the answer of a transaction, unless it has one.

    :returns: the answer that counts
    """
    return bytes(txn.execute(_RECORD, (origin, txn_id, answer)).fetchone()[0])


def forget_transactions(txn: Transaction, older_than_s: float, at_most: int) -> int:
    """Delete old transactions, up to ``at_most``; returns their number."""
    txn.execute(
        "DELETE FROM synrepl._received_transactions WHERE ctid = ANY (ARRAY("
        "SELECT ctid FROM synrepl._received_transactions"
        " WHERE received_at < now() - make_interval(secs => %s) LIMIT %s))",
        (older_than_s, at_most),
    )
    return txn.rowcount
