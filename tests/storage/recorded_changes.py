"""Changes for the in-memory store: one table, in which only commits are visible."""

from __future__ import annotations

from typing import Any, Self

from synrepl.storage.database import Values
from synrepl.storage.memory.changes import MemoryChanges


class RecordedChanges(MemoryChanges):
    """Supports one statement, an INSERT of one value.

    :param table: the values that were committed
    """

    def __init__(self, table: list[Any]) -> None:
        self._table = table
        self._inserted: list[Any] = []

    def execute(self, sql: str, params: Values = ()) -> Self:
        assert sql.startswith("INSERT INTO changes"), sql
        self._inserted += params
        return self

    def commit(self) -> None:
        self._table += self._inserted
        self._inserted = []

    def roll_back(self) -> None:
        self._inserted = []
