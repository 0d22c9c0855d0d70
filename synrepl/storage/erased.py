"""Subjects to be erased from copies of the streams, as functions of a transaction."""

from __future__ import annotations

from synrepl.storage.database import Transaction


def erased_subjects(txn: Transaction) -> frozenset[str]:
    """The arguments of all calls of ``synrepl.erase()``, and the users of rooms whose accounts were erased.

    Empty where a database lacks the tables, and without the users where this role may not read their table.
    """
    subjects = _texts(txn, "synrepl._erased_subjects", "subject")
    may = "coalesce(has_table_privilege(to_regclass('synrepl._erased_users'), 'SELECT'), false)"
    if not txn.execute(f"SELECT {may}").fetchone()[0]:
        return subjects
    return subjects | _texts(txn, "synrepl._erased_users", "user_id")


def erased_users(txn: Transaction) -> frozenset[str]:
    """The users that a real Synapse has erased; none where its release keeps no list.

    A user that comes back is removed from the list.
    """
    return _texts(txn, "erased_users", "user_id")


def _texts(txn: Transaction, table: str, column: str) -> frozenset[str]:
    there = txn.execute(f"SELECT to_regclass('{table}') IS NOT NULL").fetchone()[0]
    if not there:
        return frozenset()
    rows = txn.execute(f"SELECT {column} FROM {table}").fetchall()
    return frozenset(str(text) for (text,) in rows)
