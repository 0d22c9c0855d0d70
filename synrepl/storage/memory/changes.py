"""The transaction that work functions get from the in-memory store, which has no tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, Self

from synrepl.core.errors import StorageError
from synrepl.storage.database import Record, Values


class NoTables(StorageError):
    """the store in memory runs no SQL ({sql!r}); use a database, or give MemoryStore a begin_changes that understands it"""


class MemoryChanges:
    """A transaction of a database without tables: it refuses all SQL.

    Subclasses support the statements that their tests need, and apply them in
    :meth:`commit`, which is called at the moment when the facts become visible.
    Implements :class:`~.database.Transaction`.
    """

    def commit(self) -> None:
        """Apply the changes. An error raised here rolls back the facts, too."""

    def roll_back(self) -> None:
        """Discard the changes."""

    @property
    def rowcount(self) -> int:
        """Rows of the last statement."""
        return -1

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one statement."""
        self._refuse(sql)

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run a multi-row statement."""
        self._refuse(sql)

    def fetchone(self) -> Record:
        """The next row."""
        self._refuse("")

    def fetchone_or_none(self) -> Record | None:
        """The next row, if any."""
        self._refuse("")

    def fetchall(self) -> list[Record]:
        """The remaining rows."""
        self._refuse("")

    def __iter__(self) -> Iterator[Record]:
        self._refuse("")

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Feed ``COPY``."""
        self._refuse(sql)

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Read ``COPY``."""
        self._refuse(sql)

    def _refuse(self, sql: str) -> NoReturn:
        raise NoTables(sql=sql[:100])
