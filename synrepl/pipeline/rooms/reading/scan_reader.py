"""Reads parts of tables in tasks, at a snapshot that the driver holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from adbc_driver_manager import dbapi as manager
from adbc_driver_manager._reader import AdbcRecordBatchReader
from adbc_driver_postgresql import dbapi

from synrepl.core.errors import StorageError, Unavailable
from synrepl.driver.connection import DatabaseAddress
from synrepl.pipeline.rooms.tables import EVENTS, TableColumns
from synrepl.pipeline.source.database.sql import literal
from synrepl.pipeline.source.reading.chunk_reader import (
    BATCH_BYTES,
    READ_SETTINGS,
    is_lost,
    server_reason,
    sqlstate_of,
    with_schema,
    worker_idle_connection,
)
from synrepl.pipeline.source.reading.event_form import in_shown_form

_BATCH_BYTES_OPTION = "adbc.postgresql.batch_size_hint_bytes"

#: SQLSTATEs of a snapshot that the server does not have: undefined object, invalid parameter value.
_NO_SNAPSHOT = frozenset({"42704", "22023"})

#: Events are looked up by index; other tables may be read whole.
_SETTINGS = {**READ_SETTINGS, "enable_seqscan": "on"}


class TableReadFailed(StorageError):
    """table {table!r} of rooms could not be read (SQLSTATE {sqlstate}): {reason}"""


class TableReadAway(Unavailable):
    """the database went away while table {table!r} of rooms was read: {reason}"""


class SnapshotGone(StorageError):
    """a task could not read at the snapshot that the driver holds: {reason}; the DSN has to lead to the same server from every machine, and the tables can be read only while they are open"""


class ScanReader(NamedTuple):
    """Reads the parts of one table. It is pickled for the tasks.

    :ivar dsn: the database, for libpq
    :ivar snapshot: the name of an exported snapshot
    :ivar statements: one for each part
    :ivar as_stored: whether events come as stored, even where a redaction applies
    """

    dsn: str
    snapshot: str
    table: TableColumns
    statements: Sequence[str]
    as_stored: bool = False

    def rows(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the parts with these numbers, batch by batch."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._part(self.statements[number])

    def _part(self, statement: str) -> Iterator[pa.RecordBatch]:
        is_shown = self.table.name == EVENTS.name and not self.as_stored
        for batch in SnapshotReader(self.dsn, self.snapshot, self.table).batches(statement):
            yield in_shown_form(batch) if is_shown else batch


class SnapshotReader(NamedTuple):
    """Reads rows of one table at a snapshot, over the connection of the process.

    :ivar dsn: the database, for libpq
    :ivar snapshot: the name of an exported snapshot
    """

    dsn: str
    snapshot: str
    table: TableColumns

    def batches(self, statement: str, *, by_index: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows that a statement selects, batch by batch, as the server sends them.

        :param by_index: have rows found by index, also where the server expects that to take longer than reading
            whole tables
        :raises TableReadFailed: the server refused or cancelled the statement
        :raises TableReadAway: the connection was lost
        :raises SnapshotGone: the snapshot is not held any more, or by another server
        """
        schema = self.table.arrow
        address = DatabaseAddress(self.dsn, "rooms", settings=_SETTINGS)
        conninfo, idle = address.conninfo(), worker_idle_connection()
        connection = None if idle is None else idle.take(conninfo)
        sound = False
        try:
            if connection is None:
                connection = dbapi.connect(conninfo, autocommit=True)
            with connection.cursor() as cursor:
                cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal(self.snapshot)}")
                if by_index:
                    cursor.execute("SET LOCAL enable_seqscan = off")
                cursor.adbc_statement.set_options(**{_BATCH_BYTES_OPTION: str(BATCH_BYTES)})
                cursor.execute(statement)
                stream = cursor.fetch_arrow()  # has to outlive its reader
                with AdbcRecordBatchReader._import_from_c(stream.address) as batches:
                    for batch in batches:
                        yield with_schema(batch, schema)
                cursor.execute("COMMIT")
            sound = True
        except manager.Error as error:
            reason, state = address.redacted(server_reason(error)), sqlstate_of(error)
            if state in _NO_SNAPSHOT:
                raise SnapshotGone(reason=reason) from None
            if is_lost(error, state):
                raise TableReadAway(table=self.table.name, reason=reason) from None
            raise TableReadFailed(table=self.table.name, reason=reason, sqlstate=state) from None
        finally:
            if connection is not None:
                if sound and idle is not None:
                    idle.keep(conninfo, connection)
                else:
                    connection.close()
