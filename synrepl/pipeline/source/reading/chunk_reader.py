"""Reads the rows of a chunk with ADBC, over a connection that a worker of Spark keeps.

A worker is a Python process that runs many tasks, one after the other, and ends a minute after the
last. Connecting takes some 40 ms, because the driver reads the server's catalogue of types. A garbage
collection, which Spark requests after each task, takes 25 ms, most of it for modules.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from adbc_driver_manager import AdbcStatusCode
from adbc_driver_manager import dbapi as manager
from adbc_driver_manager._reader import AdbcRecordBatchReader
from adbc_driver_postgresql import dbapi
from pyspark import TaskContext

from synrepl.core.errors import StorageError, Unavailable
from synrepl.driver.connection import DatabaseAddress
from synrepl.driver.errors import one_line
from synrepl.pipeline.source.database.packing import PackedScan
from synrepl.pipeline.source.database.sql import literal
from synrepl.pipeline.source.plan.chunks import ScanChunk
from synrepl.pipeline.source.reading.event_form import in_form
from synrepl.pipeline.source.reading.unpacking import group_span, unpack
from synrepl.storage.store import Trimmed

#: Target size of a batch of rows, in bytes. A task holds two at a time.
BATCH_BYTES = 4 << 20

#: The same for groups of rows: so that a batch is one group, unless groups are small.
_GROUPS_BYTES = 1 << 17

#: Planner settings without which the server scans the whole table for each chunk.
READ_SETTINGS = {
    "enable_seqscan": "off",
    "jit": "off",
    "standard_conforming_strings": "on",
    "max_parallel_workers_per_gather": "0",
    "enable_memoize": "off",  # would keep a copy of each group of rows
}

#: Number of chunks in one statement that checks what has been trimmed.
_CHECKED_AT_ONCE = 100

_BATCH_BYTES_OPTION = "adbc.postgresql.batch_size_hint_bytes"


#: SQLSTATEs of a server that ends a connection whose transaction is idle for too long, and of a standby that ends a
#: statement because the primary removed rows that it might have needed.
_ENDED = frozenset({"25P03", "25P04", "40001"})


#: SQLSTATE of a missing table: a standby that is far behind, or another database, may lack synrepl's.
NO_TABLE = "42P01"


class ReadFailed(StorageError):
    """tokens {after} to {upto} of stream {stream!r} could not be read (SQLSTATE {sqlstate}): {reason}"""

    @property
    def is_bad_value(self) -> bool:
        """True if a value in the table does not fit the column that it is read as."""
        return str(self.facts["sqlstate"]).startswith("22")


class ReadingAway(Unavailable):
    """the database went away while tokens {after} to {upto} of stream {stream!r} were read: {reason}"""


class ReadElsewhere(StorageError):
    """a task that was to read stream {stream!r} reached another database than the driver looked at, or a standby that is behind it, so what it read does not count; the DSN has to lead to the same server from every machine: name its host, and of several hosts the primary (target_session_attrs=primary)"""


class ChunkReader:
    """Reads chunks in a task, over a connection that is not shared.

    :param dsn: the database, for libpq
    """

    def __init__(self, dsn: str, instance: str = "pipeline") -> None:
        self._address = DatabaseAddress(dsn, instance, settings=READ_SETTINGS)
        self._idle = worker_idle_connection()
        self._together: _ReadTogether | None = None

    @contextmanager
    def reading_together(self) -> Iterator[None]:
        """Read several chunks as if they were one.

        They are read over one connection. It is checked once whether that leads to the database that
        the chunks were planned for, and once, at the end, whether facts have been trimmed. Until then
        the rows of all these chunks may be incomplete.

        :raises Trimmed: :raises ReadingAway: at the end
        """
        together = self._together = _ReadTogether()
        try:
            yield
            chunks = [*together.unchecked.values()]
            for begin in range(0, len(chunks), _CHECKED_AT_ONCE):
                some = chunks[begin : begin + _CHECKED_AT_ONCE]
                with self._named(some[0]), self._connected() as held:
                    _check_not_trimmed(held.connection, some)
        finally:
            self._together = None
            if together.held is not None:
                self._give_back(together.held)

    @contextmanager
    def keeping_connection(self) -> Iterator[None]:
        """Read several chunks over one connection, not one connection each; Spark's workers always do."""
        if self._idle is not None:
            yield
            return
        self._idle = IdleConnection()
        try:
            yield
        finally:
            self._idle.close()
            self._idle = None

    def batches(self, chunk: ScanChunk, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the rows of a chunk, batch by batch, as the server sends them.

        :param schema: of the columns that the chunk's statement selects
        :raises ReadFailed: the server refused or cancelled the statement
        :raises ReadingAway: the connection was lost
        :raises ReadElsewhere: this is not the database that the chunk was planned for
        :raises Trimmed: facts of the range have been trimmed, so the rows read are incomplete
        """
        with self._named(chunk), self._connected() as held:
            _check_identity(held, chunk)
            with _at_snapshot(held.connection, chunk):
                yield from self._rows(held.connection, chunk, schema)
            # Last, because rows that are trimmed during the read are missing from it.
            if self._together is None:
                _check_not_trimmed(held.connection, [chunk])
            else:
                self._together.check_later(chunk)

    def _rows(
        self, connection: dbapi.Connection, chunk: ScanChunk, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        if chunk.packed is not None:
            yield from self._unpacked(connection, chunk, chunk.packed, schema)
            return
        for batch in _selected(connection, chunk.sql, BATCH_BYTES):
            if chunk.scan.has_form:
                cells = batch.select(list(range(batch.num_columns - 1)))
                yield in_form(with_schema(cells, schema), batch.column(len(schema)))
            else:
                yield with_schema(batch, schema)

    def _unpacked(
        self, connection: dbapi.Connection, chunk: ScanChunk, packed: PackedScan, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        statement, rest = packed.scan.between(chunk.tokens), None
        with closing(_selected(connection, statement, _GROUPS_BYTES)) as selected:
            for groups, at, low, high in _groups_with_rows(selected):
                batch = unpack(groups, at, schema, packed.columns)
                if batch is not None:
                    yield batch
                elif packed.careful is None:
                    # Over another connection, as this one is still sending.
                    yield from self.batches(chunk.within(low - 1, high).row_by_row(), schema)
                else:
                    rest = chunk.within(low - 1, chunk.upto)
                    break
        if rest is not None and packed.careful is not None:
            # Statistics that are wrong here may be wrong for all that is left.
            yield from self._unpacked(connection, rest, packed.careful, schema)

    def check_not_trimmed(self, chunk: ScanChunk) -> None:
        """Check that no facts of a chunk have been trimmed.

        :raises Trimmed: :raises ReadingAway:
        """
        with self._named(chunk), self._connected() as held:
            _check_not_trimmed(held.connection, [chunk])

    @contextmanager
    def _connected(self) -> Iterator[_HeldConnection]:
        held = self._take()
        sound = False
        try:
            yield held
            sound = True
        except manager.Error as error:
            sound = not is_lost(error, sqlstate_of(error))
            raise
        finally:
            if sound:
                self._give_back(held)
            else:
                held.connection.close()

    def _take(self) -> _HeldConnection:
        if self._together is not None and self._together.held is not None:
            held, self._together.held = self._together.held, None
            return held
        conninfo = self._address.conninfo()
        connection = None if self._idle is None else self._idle.take(conninfo)
        return _HeldConnection(conninfo, connection or dbapi.connect(conninfo, autocommit=True))

    def _give_back(self, held: _HeldConnection) -> None:
        if self._together is not None and self._together.held is None:
            self._together.held = held
        elif self._idle is not None:
            self._idle.keep(held.conninfo, held.connection)
        else:
            held.connection.close()

    @contextmanager
    def _named(self, chunk: ScanChunk) -> Iterator[None]:
        where = {"stream": chunk.stream, "after": chunk.after, "upto": chunk.upto}
        try:
            yield
        except manager.Error as error:
            reason, state = self._address.redacted(server_reason(error)), sqlstate_of(error)
            if is_lost(error, state):
                raise ReadingAway(**where, reason=reason) from None
            raise ReadFailed(**where, reason=reason, sqlstate=state) from None


@contextmanager
def _at_snapshot(connection: dbapi.Connection, chunk: ScanChunk) -> Iterator[None]:
    """A transaction at the snapshot of a chunk, if it has one.

    After another error than the server's it is left open, and the connection has to be closed.

    :raises ReadingAway: nobody holds the snapshot
    """
    if not chunk.snapshot:
        yield
        return
    _run(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        _join_snapshot(connection, chunk)
        yield
    except manager.Error:
        with suppress(manager.Error):  # so that the first error is the one that is reported
            _run(connection, "ROLLBACK")
        raise
    _run(connection, "COMMIT")


def _join_snapshot(connection: dbapi.Connection, chunk: ScanChunk) -> None:
    try:
        _run(connection, f"SET TRANSACTION SNAPSHOT {literal(chunk.snapshot)}")
    except manager.Error as error:
        if is_lost(error, sqlstate_of(error)):
            raise
        reason = (
            f"it does not have the snapshot that the driver holds ({server_reason(error)}); either the driver"
            " lost its connection, or the DSN leads to another server"
        )
        where = {"stream": chunk.stream, "after": chunk.after, "upto": chunk.upto}
        raise ReadingAway(**where, reason=reason) from None


def _run(connection: dbapi.Connection, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _selected(
    connection: dbapi.Connection, sql: str, batch_bytes: int
) -> Generator[pa.RecordBatch]:
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{_BATCH_BYTES_OPTION: str(batch_bytes)})
        cursor.execute(sql)
        stream = cursor.fetch_arrow()  # has to outlive its reader
        # Errors of the cursor's own reader have no SQLSTATE.
        with AdbcRecordBatchReader._import_from_c(stream.address) as batches:
            yield from batches


def _groups_with_rows(
    selected: Iterable[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, int, int, int]]:
    """The batch that each group is in, its place there, and its least and greatest stream ID."""
    for groups in selected:
        for at in range(groups.num_rows):
            low, high, rows = group_span(groups, at)
            if rows != 0:
                yield groups, at, low, high


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to exactly this schema; names of list elements and nullability may differ."""
    if batch.schema.equals(schema):
        return batch
    columns: list[Any] = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(slots=True)
class _HeldConnection:
    """A connection, and the statement that was true in its database; "" if none was checked."""

    conninfo: str
    connection: dbapi.Connection
    identity_sql: str = ""


@dataclass(slots=True)
class _ReadTogether:
    """The state of chunks that are read together.

    :ivar held: the connection, while it is not in use
    :ivar unchecked: by statement for what has been trimmed, the chunk that reaches back furthest
    """

    held: _HeldConnection | None = None
    unchecked: dict[str, ScanChunk] = field(default_factory=dict)

    def check_later(self, chunk: ScanChunk) -> None:
        """Note a chunk that has been read."""
        if chunk.trimmed_sql is not None:
            before = self.unchecked.setdefault(chunk.trimmed_sql, chunk)
            if chunk.after < before.after:
                self.unchecked[chunk.trimmed_sql] = chunk


def _check_identity(held: _HeldConnection, chunk: ScanChunk) -> None:
    if held.identity_sql == chunk.identity_sql:
        return
    try:
        (reached,) = select_values(held.connection, chunk.identity_sql)
    except manager.Error as error:
        if sqlstate_of(error) != NO_TABLE:
            raise
        reached = False
    if not reached:
        raise ReadElsewhere(stream=chunk.stream)
    held.identity_sql = chunk.identity_sql


def _check_not_trimmed(connection: dbapi.Connection, chunks: Sequence[ScanChunk]) -> None:
    trimming = [(chunk, chunk.trimmed_sql) for chunk in chunks if chunk.trimmed_sql is not None]
    if not trimming:
        return
    found = select_values(connection, f"SELECT {', '.join(f'({sql})' for _, sql in trimming)}")
    for (chunk, _), trimmed in zip(trimming, found, strict=True):
        if trimmed > chunk.after:
            raise Trimmed(stream=chunk.stream, trimmed=trimmed, after=chunk.after)


def select_values(connection: dbapi.Connection, sql: str) -> tuple[Any, ...]:
    """The cells of the only row that a statement selects."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchone())


def server_reason(error: manager.Error) -> str:
    """The server's message and detail without the statement, or libpq's message."""
    # The keys are bytes, though they are declared as text.
    said = {
        key.decode() if isinstance(key, bytes) else key: value.decode(errors="replace")
        for key, value in error.details or ()
    }
    primary = said.get("PG_DIAG_MESSAGE_PRIMARY")
    if primary is None:
        return one_line(error)
    detail = said.get("PG_DIAG_MESSAGE_DETAIL")
    return " ".join((primary if detail is None else f"{primary}: {detail}").split())


def sqlstate_of(error: manager.Error) -> str:
    return (error.sqlstate or "").strip("\0")


def is_lost(error: manager.Error, state: str) -> bool:
    """True if the connection or its snapshot was lost; libpq's own errors have no SQLSTATE."""
    if not state:
        return error.status_code is AdbcStatusCode.IO
    return state.startswith(("08", "57P")) or state in _ENDED


class IdleConnection:
    """Holds the connection used last while it is idle; thread-safe."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, dbapi.Connection]] = []  # one at most

    def take(self, conninfo: str) -> dbapi.Connection | None:
        """Take out the connection if it has this conninfo and is alive; otherwise close it."""
        for where, connection in self._emptied():
            if where == conninfo and _alive(connection):
                return connection
            connection.close()
        return None

    def keep(self, conninfo: str, connection: dbapi.Connection) -> None:
        """Hold a working connection that is not in a transaction, and close the previous one."""
        self.close()
        self._idle.append((conninfo, connection))

    def close(self) -> None:
        """Close the held connection."""
        for _, connection in self._emptied():
            connection.close()

    def _emptied(self) -> Iterator[tuple[str, dbapi.Connection]]:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                yield self._idle.pop()


def worker_idle_connection() -> IdleConnection | None:
    """The idle connection of this process; None if it is not running a task of Spark."""
    return None if TaskContext.get() is None else _worker_idle_connection()


@cache
def _worker_idle_connection() -> IdleConnection:
    # Objects that exist by now, mostly modules, are excluded from later garbage collections.
    gc.collect()
    gc.freeze()
    return IdleConnection()


def _alive(connection: dbapi.Connection) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone() is not None
    except manager.Error:
        return False
