"""Single-statement transactions on an asynchronous connection, without threads.

For small statements whose latency matters: on a connection in libpq's asynchronous
mode, watched by the reactor, they cost one round trip and no hand-over between
threads. Everything else goes through :mod:`synrepl.adapters.postgres.database`.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres.async_connection import AsyncSocket
from synrepl.core.errors import SynreplError
from synrepl.driver.connection import DatabaseAddress, close
from synrepl.driver.errors import VALUE_ERRORS, is_lost, translate
from synrepl.storage.database import CommitUnknown, DatabaseBusy, Prepared, Record, Values

#: Maximum number of statements that wait for the connection.
MAX_WAITING = 1_000

#: The statement that was to be executed is not prepared, its result would have another type, or one that was
#: to be prepared is there already. See :mod:`synrepl.driver.prepared_plans`.
_STALE = frozenset({"26000", "0A000", "42P05"})


@dataclass(slots=True, eq=False)
class _Statement:
    """A statement, and the Deferred of its rows."""

    prepared: Prepared
    params: Values
    result: Deferred[list[Record]]
    #: It was sent on a connection whose prepared statements were stale.
    was_stale: bool = False


class PostgresSingles:
    """Implements :class:`synrepl.storage.database.Statements`; connects when first used.

    :param reactor: watches the connection
    :param dsn: a libpq URI or key=value string
    :param instance: the process's name, which the server shows
    :param settings: server settings for the connection
    :raises BadDsn: ``dsn`` cannot be read
    """

    def __init__(
        self, reactor: Any, dsn: str, instance: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._reactor = reactor
        self._address = DatabaseAddress(
            dsn, instance, settings={"idle_session_timeout": "0", **(settings or {})}
        )
        self._connection: extensions.connection | None = None
        self._watch: AsyncSocket | None = None
        self._connecting = False
        self._preparing = False
        self._closed = False
        self._cursor: Any = None
        self._running: _Statement | None = None
        self._waiting: deque[_Statement] = deque()
        self._known: set[str] = set()

    @staticmethod
    def can_reach(dsn: str) -> bool:
        """Whether all hosts are addresses or folders of sockets; looking up a name would block the reactor."""
        try:
            given = extensions.parse_dsn(dsn)
            for host in (given.get("hostaddr") or given.get("host", "")).split(","):
                if not host.startswith("/"):
                    ipaddress.ip_address(host)
        except (psycopg2.Error, ValueError):
            return False
        return True

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._connection is not None and not self._connecting

    async def run(self, prepared: Prepared, params: Values) -> list[Record]:
        """Run one statement; see :meth:`synrepl.storage.database.Statements.run`."""
        if len(self._waiting) >= MAX_WAITING:
            raise DatabaseBusy(waiting=len(self._waiting), connections=1, where=self._address.where)
        statement = _Statement(prepared, params, Deferred())
        self._waiting.append(statement)
        self._next()
        return await statement.result

    def close(self) -> None:
        """Disconnect; statements without an answer fail."""
        self._closed = True
        self._lose("this process closed it")

    # -- running statements ---------------------------------------------------------------

    def _next(self) -> None:
        if self._running is not None or self._connecting or not self._waiting:
            return
        if self._closed:
            self._lose("this process closed it")
        elif self._connection is None:
            self._connect()
        else:
            self._start(self._connection, self._waiting.popleft())

    def _connect(self) -> None:
        self._connecting = True
        try:
            self._connection = self._address.begin_connecting()
        except psycopg2.Error as error:
            self._lose(self._address.redacted(error))
            return
        self._poll()

    def _start(self, connection: extensions.connection, statement: _Statement) -> None:
        """Run a statement; the first of its kind on this connection is prepared before."""
        prepared, params = statement.prepared, statement.params
        self._running = statement
        self._preparing = prepared.name not in self._known
        if self._preparing:
            sql, params = f'PREPARE "{prepared.name}" AS {prepared.sql}', ()
        else:
            sql = f'EXECUTE "{prepared.name}"'
            if params:
                sql += f" ({', '.join(['%s'] * len(params))})"
        try:
            self._cursor = connection.cursor()
            self._cursor.execute(sql, params or None)
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            self._failed(connection, error)
            return
        self._poll()

    def _poll(self) -> None:
        """Let the driver proceed, and watch the socket for what it waits for."""
        connection = self._connection
        if connection is None:
            return
        try:
            state = connection.poll()
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            self._failed(connection, error)
            return
        watch = self._watcher_of(connection)
        if state == extensions.POLL_WRITE:
            watch.write()
            return
        watch.read()
        if state == extensions.POLL_OK:
            self._idle()

    def _watcher_of(self, connection: extensions.connection) -> AsyncSocket:
        if self._watch is not None and self._connecting:
            if self._watch.is_for(connection.fileno()):
                return self._watch
            self._watch.stop()
            self._watch = None
        if self._watch is None:
            self._watch = AsyncSocket(self._reactor, connection.fileno(), self._poll)
        return self._watch

    def _idle(self) -> None:
        """Handle a finished operation of the driver: a connection, or the answer to a statement."""
        self._connecting = False
        statement, self._running = self._running, None
        if statement is not None and self._preparing:
            self._known.add(statement.prepared.name)
            self._waiting.appendleft(statement)
        elif statement is not None:
            statement.result.callback(self._cursor.fetchall())
        self._next()

    def _failed(self, connection: extensions.connection, error: Exception) -> None:
        if self._connecting or _ends(connection, error):
            self._lose(self._address.redacted(error))
            return
        statement, self._running = self._running, None
        if statement is None:
            pass
        elif getattr(error, "pgcode", None) in _STALE and not statement.was_stale:
            # It was not executed. A new connection has no prepared statements.
            statement.was_stale = True
            self._waiting.appendleft(statement)
            self._disconnect()
        else:
            statement.result.errback(translate(statement.prepared.name, error))
        self._next()

    def _lose(self, reason: str) -> None:
        """Drop the connection, and fail all statements.

        The outcome of the statement that was sent is unknown; the others were not run.
        """
        self._disconnect()
        running, self._running = self._running, None
        waiting = list(self._waiting)
        self._waiting.clear()
        if running is not None and self._preparing:
            waiting.insert(0, running)
        elif running is not None:
            running.result.errback(self._unknown(running, reason))
        for statement in waiting:
            statement.result.errback(self._address.away(reason))

    def _disconnect(self) -> None:
        """Drop the connection, with what was prepared on it."""
        connection, self._connection = self._connection, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        if connection is not None:
            close(connection)
        self._known.clear()
        self._connecting = False

    def _unknown(self, statement: _Statement, reason: str) -> SynreplError:
        return CommitUnknown(
            where=self._address.where, name=statement.prepared.name, xid="?", reason=reason
        )


def _ends(connection: extensions.connection, error: Exception) -> bool:
    """Whether this error ends the connection; libpq's own errors have no SQLSTATE."""
    if not isinstance(error, psycopg2.Error):
        return False
    own = isinstance(error, psycopg2.OperationalError) and error.pgcode is None
    return own or is_lost(connection, error)
