"""The transaction that work functions get, over one psycopg2 cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Self

import psycopg2
from psycopg2 import extensions, extras

from synrepl.driver.connection import DatabaseAddress, PostgresConnection
from synrepl.driver.errors import VALUE_ERRORS, is_lost, translate
from synrepl.storage.database import NoRow, Record, Script, Values, WorkEndedTransaction

#: Rows per statement of ``insert_many``.
PAGE_ROWS = 1000

_STATES = {
    extensions.TRANSACTION_STATUS_IDLE: "ended",
    extensions.TRANSACTION_STATUS_INERROR: "failed",
}


class PostgresTransaction:
    """Implements :class:`synrepl.storage.database.Transaction`.

    :param name: name of the work, for errors
    """

    def __init__(self, connection: PostgresConnection, address: DatabaseAddress, name: str) -> None:
        self._connection = connection
        self._address = address
        self._name = name
        self._cursor = connection.cursor()
        self._rowcount = -1

    @property
    def rowcount(self) -> int:
        """Rows that the last statement returned or changed."""
        return self._rowcount

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one statement, or a script without parameters."""
        with self._errors_named():
            if isinstance(sql, Script):
                self._connection.plans.run(
                    sql, lambda text: self._cursor.execute(text, params or None)
                )
            else:
                self._cursor.execute(sql, params or None)
        self._rowcount = self._cursor.rowcount
        return self

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run one multi-row statement per :data:`PAGE_ROWS` rows."""
        returned: list[Record] = []
        count, remaining = 0, iter(rows)
        while page := list(islice(remaining, PAGE_ROWS)):
            with self._errors_named():
                extras.execute_values(self._cursor, sql, page, template, PAGE_ROWS)
                count += self._cursor.rowcount
                if self._cursor.description is not None:
                    returned += self._cursor.fetchall()
        self._rowcount = count
        return returned

    def fetchone(self) -> Record:
        """The next row."""
        row = self.fetchone_or_none()
        if row is None:
            raise NoRow(name=self._name)
        return row

    def fetchone_or_none(self) -> Record | None:
        """The next row, or None after the last one."""
        with self._errors_named():
            return self._cursor.fetchone()

    def fetchall(self) -> list[Record]:
        """The remaining rows."""
        with self._errors_named():
            return self._cursor.fetchall()

    def __iter__(self) -> Iterator[Record]:
        while (row := self.fetchone_or_none()) is not None:
            yield row

    def copy_in(self, sql: str, chunks: Iterable[str] | Iterable[bytes]) -> int:
        """Feed ``COPY … FROM STDIN``."""
        with self._errors_named():
            self._cursor.copy_expert(sql, _Source(chunks))
        self._rowcount = self._cursor.rowcount
        return self._rowcount

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Pass the output of ``COPY … TO STDOUT`` to ``write``."""
        with self._errors_named():
            self._cursor.copy_expert(sql, _Sink(write))
        self._rowcount = self._cursor.rowcount
        return self._rowcount

    def close(self) -> None:
        """Check that the work left the transaction open, and close its cursor.

        :raises WorkEndedTransaction: the work committed, rolled back or ignored an error
        """
        self._cursor.close()
        state = self._connection.info.transaction_status
        if state != extensions.TRANSACTION_STATUS_INTRANS:
            raise WorkEndedTransaction(name=self._name, state=_STATES.get(state, "unknown"))

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            if is_lost(self._connection, error):
                raise self._address.away(error) from None
            raise translate(self._name, error) from error
        except VALUE_ERRORS as error:
            raise translate(self._name, error) from error


class _Source:
    """A file for COPY that reads from an iterable."""

    def __init__(self, chunks: Iterable[str] | Iterable[bytes]) -> None:
        self._chunks: Iterator[str | bytes] = iter(chunks)
        self._buffer = b""

    def read(self, size: int = 8192) -> bytes:
        parts, length = [self._buffer], len(self._buffer)
        while length < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            data = chunk.encode() if isinstance(chunk, str) else chunk
            parts.append(data)
            length += len(data)
        whole = b"".join(parts)
        self._buffer = whole[size:]
        return whole[:size]

    def readline(self, size: int = 8192) -> bytes:  # psycopg2 requires it
        raise NotImplementedError


class _Sink:
    """A file for COPY that writes to a function."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> None:
        self._write(data)
