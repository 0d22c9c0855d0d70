"""Reads the database of a real Synapse with plain SQL, independently of synrepl."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import psycopg2

from interop.redis_wire import Key

#: Names of streams in ``stream_positions`` that differ from those on the wire.
_RECORDED_AS = {
    "presence_stream": "presence",
    "push_rules_stream": "push_rules",
    "device_lists_stream": "device_lists",
}

_WRITES = """
SELECT pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name = %s
  AND state = 'idle in transaction' AND backend_xid IS NOT NULL
"""

_OLDEST = """
SELECT pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
  AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1
"""


class OpenTransaction(NamedTuple):
    """An open transaction.

    :ivar pid: process ID of its backend
    :ivar process: name of the Synapse process that opened it
    """

    pid: int
    process: str


class SynapseTables:
    """A read-only connection; a context manager, which closes it.

    :param dsn: of a role that may read all tables and see all connections
    """

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)
        self._connection.set_session(readonly=True, autocommit=True)

    def positions(self) -> dict[Key, int]:
        """The recorded positions, by stream and writer."""
        rows = self._read("SELECT stream_name, instance_name, stream_id FROM stream_positions")
        return {(_RECORDED_AS.get(name, name), who): abs(at) for name, who, at in rows}

    def open_writes(self, process: str) -> list[OpenTransaction]:
        """Idle transactions of a process that have written something."""
        return [OpenTransaction(*row) for row in self._read(_WRITES, process)]

    def oldest(self) -> OpenTransaction | None:
        """The oldest open transaction; None if there is none."""
        rows = self._read(_OLDEST)
        return OpenTransaction(*rows[0]) if rows else None

    def _read(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return cursor.fetchall()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
