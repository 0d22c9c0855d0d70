"""The transaction that work functions get, over one psycopg2 cursor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Self

import psycopg2
from psycopg2 import extensions, extras

from synrepl.driver.commit_status import CommitTicket
from synrepl.driver.connection import DatabaseAddress, PostgresConnection
from synrepl.driver.errors import VALUE_ERRORS, is_lost, translate
from synrepl.storage.database import (
    OPENING_COLUMNS,
    DeferredScript,
    Isolation,
    NoRow,
    OpeningScript,
    Record,
    Script,
    Values,
    WorkEndedTransaction,
)

#: Bytes that are sent at once by COPY.
_COPY_BYTES = 1 << 16

#: Rows per statement of ``insert_many``.
PAGE_ROWS = 1000

_STATES = {
    extensions.TRANSACTION_STATUS_IDLE: "ended",
    extensions.TRANSACTION_STATUS_INERROR: "failed",
}


def begin_text(isolation: Isolation, *, read_only: bool) -> str:
    """The statement that begins a transaction."""
    return f"BEGIN ISOLATION LEVEL {isolation} READ {'ONLY' if read_only else 'WRITE'}"


class PostgresTransaction:
    """Implements :class:`synrepl.storage.database.Transaction`.

    It begins with the first statement, and in the same round trip where that is possible.

    :param name: name of the work, for errors
    :ivar ticket: what is needed to look up the outcome of the commit; None while nothing was changed
    """

    def __init__(
        self,
        connection: PostgresConnection,
        address: DatabaseAddress,
        name: str,
        read_only: bool = False,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> None:
        self._connection = connection
        self._address = address
        self._name = name
        self._read_only = read_only
        self._begin = begin_text(isolation, read_only=read_only)
        self._has_begun = False
        self.ticket: CommitTicket | None = None
        # What is sent with the next statement.
        self._deferred: list[str] = []
        self._deferred_params: list[object] = []
        self._cursor = connection.cursor()
        self._rowcount = -1

    @property
    def rowcount(self) -> int:
        """Rows that the last statement returned or changed."""
        return self._rowcount

    def execute(self, sql: str, params: Values = ()) -> Self:
        """Run one statement, or a script without parameters."""
        if isinstance(sql, DeferredScript):
            assert not isinstance(params, Mapping)
            self._deferred += sql.parts if params else map(_doubled, sql.parts)
            self._deferred_params += params
            return self
        with self._errors_named():
            if not self._has_begun:
                self._begin_with(sql)
            if self._deferred or isinstance(sql, Script):
                self._send(sql, params)
            else:
                self._cursor.execute(sql, params or None)
            if isinstance(sql, OpeningScript) and self.ticket is None:
                self._take_ticket()
        self._rowcount = self._cursor.rowcount
        return self

    def _begin_with(self, sql: str) -> None:
        """Begin, in the round trip of the first statement where that is possible."""
        self._has_begun = True
        if self._read_only:
            self._deferred.insert(0, self._begin)
            return
        self._connection.incarnation  # noqa: B018  # not in the transaction, which a refusal would end
        if isinstance(sql, OpeningScript):
            self._deferred.insert(0, self._begin)
        else:
            self._ask_for_ticket(f"{self._begin}; ")

    def _take_ticket(self) -> None:
        """Take the transaction's ID from the first row; ask for it if there is none."""
        row = self._cursor.fetchone()
        if row is None:
            self._ask_for_ticket("")
        else:
            self._cursor.scroll(0, "absolute")
            self._set_ticket(row[-2])

    def _ask_for_ticket(self, before: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(f"{before}SELECT {OPENING_COLUMNS}")
            row = cursor.fetchone()
            assert row is not None
            self._set_ticket(row[0])

    def _set_ticket(self, xid: str) -> None:
        connection = self._connection
        self.ticket = CommitTicket(xid, connection.info.backend_pid, connection.incarnation)

    def _send(self, sql: str, params: Values) -> None:
        """Send what was deferred, and a statement or a script."""
        parts = sql.parts if isinstance(sql, Script) else (sql,)
        plans, send = self._connection.plans, self._cursor.execute
        if isinstance(params, Mapping) and (self._deferred_params or not params):
            self._flush()
        if not self._deferred:
            plans.run(self._name, parts, lambda text: send(text, params or None))
            return
        if isinstance(params, Mapping):
            parts, self._deferred = (*self._deferred, *parts), []
            plans.run(self._name, parts, lambda text: send(text, params))
            return
        values = [*self._deferred_params, *params]
        parts = (*self._deferred, *(parts if params else map(_doubled, parts)))
        self._deferred, self._deferred_params = [], []
        if values:
            plans.run(self._name, parts, lambda text: send(text, values))
        else:
            plans.run(self._name, parts, lambda text: send(text.replace("%%", "%")))

    def _flush(self) -> None:
        """Send what was deferred."""
        if not self._has_begun:
            self._begin_with("")
        if self._deferred:
            self._send(Script(()), ())

    def insert_many(
        self, sql: str, rows: Iterable[Values], template: str | None = None
    ) -> list[Record]:
        """Run one multi-row statement per :data:`PAGE_ROWS` rows."""
        returned: list[Record] = []
        count, remaining = 0, iter(rows)
        while page := list(islice(remaining, PAGE_ROWS)):
            with self._errors_named():
                self._flush()
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
        """Feed ``COPY … FROM STDIN``. What ``chunks`` raises, this raises.

        :raises BadValue: a chunk is text with a lone surrogate
        """
        source = _Source(self._name, chunks)
        with self._errors_named():
            self._flush()
            try:
                self._cursor.copy_expert(sql, source, _COPY_BYTES)
            except extensions.QueryCanceledError:
                # What psycopg2 makes of an error of the source.
                if source.error is None:
                    raise
        if source.error is not None:
            raise source.error
        self._rowcount = self._cursor.rowcount
        return self._rowcount

    def copy_out(self, sql: str, write: Callable[[bytes], object]) -> int:
        """Pass the output of ``COPY … TO STDOUT`` to ``write``."""
        with self._errors_named():
            self._flush()
            self._cursor.copy_expert(sql, _Sink(write))
        self._rowcount = self._cursor.rowcount
        return self._rowcount

    def check_open(self) -> None:
        """Check that the work left the transaction open.

        :raises WorkEndedTransaction: the work committed, rolled back or ignored an error
        """
        state = self._connection.info.transaction_status
        if self._has_begun and state != extensions.TRANSACTION_STATUS_INTRANS:
            raise WorkEndedTransaction(name=self._name, state=_STATES.get(state, "unknown"))

    def commit(self) -> None:
        """Commit, with what was deferred in the same round trip.

        :raises psycopg2.Error: :raises ValueError: what was deferred, or the commit, failed; or the connection
            was lost, and the commit may have taken effect
        :raises StalePlans: what was deferred could not be run, so nothing was committed
        """
        if self._deferred and not self._has_begun:
            self._begin_with("")
        if self._has_begun:
            self._send("COMMIT", ())
        self._cursor.close()

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


def _doubled(part: str) -> str:
    """A statement without parameters, to be sent with some that have them."""
    return part.replace("%", "%%") if "%" in part else part


class _Source:
    """A file for COPY that reads from an iterable.

    :param name: name of the work, for errors
    :ivar error: what the iterable raised, or the error of a chunk that cannot be encoded
    """

    def __init__(self, name: str, chunks: Iterable[str] | Iterable[bytes]) -> None:
        self._name = name
        self._chunks: Iterator[str | bytes] = iter(chunks)
        self._buffer = b""
        self.error: BaseException | None = None

    def read(self, size: int = 8192) -> bytes:
        try:
            return self._read(size)
        except BaseException as error:
            self.error = error
            raise

    def _read(self, size: int) -> bytes:
        parts, length = [self._buffer], len(self._buffer)
        while length < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            data = self._encoded(chunk) if isinstance(chunk, str) else chunk
            parts.append(data)
            length += len(data)
        whole = b"".join(parts)
        self._buffer = whole[size:]
        return whole[:size]

    def _encoded(self, chunk: str) -> bytes:
        try:
            return chunk.encode()
        except UnicodeEncodeError as error:
            raise translate(self._name, error) from error

    def readline(self, size: int = 8192) -> bytes:  # psycopg2 requires it
        raise NotImplementedError


class _Sink:
    """A file for COPY that writes to a function."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def write(self, data: bytes) -> None:
        self._write(data)
