"""How many rows of a table a piece of work reads, as EXPLAIN ANALYZE counts them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from synrepl.storage.database import DeferredScript, Transaction, Values


class RowCounter:
    """A transaction that explains each query before it runs it.

    :ivar rows: those that were read of the table, whether they were used or not
    """

    def __init__(self, txn: Transaction, table: str) -> None:
        self._txn, self._table = txn, table
        self.rows = 0

    def execute(self, sql: str, params: Values = ()) -> Transaction:
        """Count, and run."""
        if isinstance(sql, DeferredScript):  # it reads nothing
            return self._txn.execute(sql, params)
        explained = f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {sql}"
        plan = self._txn.execute(explained, params).fetchone()[0]
        if isinstance(plan, str):
            plan = json.loads(plan)
        self.rows += sum(_rows(node) for node in _scans(plan[0]["Plan"], self._table))
        return self._txn.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


def _scans(node: Mapping[str, Any], table: str) -> Iterator[Mapping[str, Any]]:
    if node.get("Relation Name") == table:
        yield node
    for child in node.get("Plans", ()):
        yield from _scans(child, table)


def _rows(node: Mapping[str, Any]) -> int:
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    each = node["Actual Rows"] + sum(node.get(name, 0) for name in removed)
    return int(each * node["Actual Loops"])
