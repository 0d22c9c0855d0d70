"""Small conveniences over a transaction."""

from __future__ import annotations

from typing import Any

from synrepl.storage.database import Transaction, Values


def value(txn: Transaction, sql: str, params: Values = ()) -> Any:
    """The first column of the one row that a statement is bound to return."""
    return txn.execute(sql, params).fetchone()[0]
