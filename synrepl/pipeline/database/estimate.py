"""Row counts estimated by the planner of PostgreSQL."""

from __future__ import annotations

from synrepl.storage.database import Transaction


def planned_rows(txn: Transaction, statement: str) -> int:
    """The estimated number of rows of ``statement``; as accurate as the table statistics."""
    plan = txn.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])
