"""What the database's planner expects of a statement."""

from __future__ import annotations

from synrepl.storage.database import Transaction


def planned_rows(txn: Transaction, statement: str) -> int:
    """About how many rows ``statement`` will give; as good as the statistics are."""
    plan = txn.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])
