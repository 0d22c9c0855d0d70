"""Who is to be erased from copies of the streams, as functions of a transaction."""

from __future__ import annotations

from synrepl.storage.database import Transaction


def erased_subjects(txn: Transaction) -> frozenset[str]:
    """What ``synrepl.erase()`` was called with; nothing in a database that has no such function yet."""
    return _texts(txn, "synrepl._erased_subjects", "subject")


def erased_users(txn: Transaction) -> frozenset[str]:
    """The users that a real Synapse has erased; nothing where its release keeps no list.

    One that comes back is taken off the list.
    """
    return _texts(txn, "erased_users", "user_id")


def _texts(txn: Transaction, table: str, column: str) -> frozenset[str]:
    there = txn.execute(f"SELECT to_regclass('{table}') IS NOT NULL").fetchone()[0]
    if not there:
        return frozenset()
    rows = txn.execute(f"SELECT {column} FROM {table}").fetchall()
    return frozenset(str(text) for (text,) in rows)
