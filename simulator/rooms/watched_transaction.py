"""A transaction that calls back before each of its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from synrepl.storage.database import Record, Transaction, Values


class WatchedTransaction:
    """Implements :class:`synrepl.storage.database.Transaction`.

    :param before: called with each statement before it runs; what it raises, the statement raises
    """

    def __init__(self, inner: Transaction, before: Callable[[str], object]) -> None:
        self._inner = inner
        self._before = before

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run a statement."""
        self._before(sql)
        self._inner.execute(sql, params)
        return self

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run a multi-row statement."""
        self._before(sql)
        return self._inner.insert_many(sql, rows, template)

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Run COPY."""
        self._before(sql)
        return self._inner.copy_in(sql, chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __iter__(self) -> Any:
        return iter(self._inner)
