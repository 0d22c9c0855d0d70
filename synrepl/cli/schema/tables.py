"""Compares stream tables with their declarations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from synrepl.storage.database import Transaction
from synrepl.storage.tables import HEAD
from synrepl.streams.columns import columns
from synrepl.streams.definition import Stream

_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
WHERE n.nspname = 'synrepl' AND c.relkind IN ('r', 'p') AND c.relname = ANY(%s)
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""


class ColumnState(NamedTuple):
    """One column: its type in the declaration and in the table, with ``?`` if it is nullable.

    The type is None where the column does not exist.
    """

    name: str
    declared: str | None
    found: str | None

    @property
    def same(self) -> bool:
        """Whether declaration and table agree."""
        return self.declared == self.found

    def __str__(self) -> str:
        if self.same:
            return f"{self.name} {self.declared}"
        if self.found is None:
            return f"{self.name} {self.declared} (not in the table yet)"
        if self.declared is None:
            return f"{self.name} {self.found} (not declared)"
        return f"{self.name} {self.declared} (the table has {self.found})"


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of one stream's table.

    :ivar state: ``as declared``, ``differs``, ``not made yet`` or ``in memory``
    """

    stream: str
    state: str
    columns: tuple[ColumnState, ...]

    def to_json(self) -> dict[str, object]:
        """``{"stream", "state", "columns": [{"name", "declared", "found"}]}``."""
        shown = [column._asdict() for column in self.columns]
        return {"stream": self.stream, "state": self.state, "columns": shown}


def compare(txn: Transaction, streams: Iterable[Stream]) -> list[TableState]:
    """Compare the tables of streams with their declarations; changes and locks nothing."""
    wanted = list(streams)
    txn.execute(_COLUMNS, ([stream.name for stream in wanted],))
    tables: dict[str, dict[str, str]] = {}
    for table, name, kind, nullable in txn.fetchall():
        found = tables.setdefault(table, {})
        if name not in HEAD:
            found[name] = _spelt(kind, nullable)
    return [_state(stream, tables.get(stream.name)) for stream in wanted]


def _state(stream: Stream, found: dict[str, str] | None) -> TableState:
    declared = {column.name: _spelt(column.type.sql, column.nullable) for column in columns(stream)}
    if stream.in_memory or found is None:
        state = "in memory" if stream.in_memory else "not made yet"
        listed = tuple(ColumnState(name, kind, None) for name, kind in declared.items())
        return TableState(stream.name, state, listed)
    names = dict.fromkeys((*declared, *found))
    both = tuple(ColumnState(name, declared.get(name), found.get(name)) for name in names)
    same = all(column.same for column in both)
    return TableState(stream.name, "as declared" if same else "differs", both)


def _spelt(kind: str, nullable: bool) -> str:
    return f"{kind}?" if nullable else kind
