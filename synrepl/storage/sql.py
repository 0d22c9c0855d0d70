"""Helpers for SQL statements."""

from __future__ import annotations

from typing import Any

from synrepl.storage.database import Transaction, Values


def value(txn: Transaction, sql: str, params: Values = ()) -> Any:
    """The first column of the first row of a statement; it must return one."""
    return txn.execute(sql, params).fetchone()[0]
