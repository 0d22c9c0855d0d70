"""Single statements, each a transaction of its own, without a thread in between.

For what is one small statement and wants its answer soon: on a connection in
libpq's asynchronous mode, which the reactor watches, it costs one round trip
and no hand-over between threads. Everything else goes through
:mod:`synrepl.adapters.postgres`.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.adapters.postgres_connection import Address, close
from synrepl.adapters.postgres_errors import VALUE_ERRORS, is_lost, translate
from synrepl.core.errors import SynreplError
from synrepl.storage.database import CommitUnknown, DatabaseBusy, Prepared, Record, Values

#: Statements that may wait for the connection.
MAX_WAITING = 1_000


@dataclass(slots=True, eq=False)
class _Statement:
    """A statement, and the promise of its rows."""

    prepared: Prepared
    params: Values
    result: Deferred[list[Record]]


class PostgresSingles:
    """Implements :class:`synrepl.storage.database.Statements`. It connects when first used.

    :param reactor: watches the connection
    :param dsn: a libpq URI or key=value string
    :param instance: the process's name, which the server shows
    :raises BadDsn: ``dsn`` cannot be read
    """

    def __init__(self, reactor: Any, dsn: str, instance: str) -> None:
        self._reactor = reactor
        self._address = Address(dsn, instance, settings={"idle_session_timeout": "0"})
        self._connection: extensions.connection | None = None
        self._connecting = False
        self._closed = False
        self._cursor: Any = None
        self._running: _Statement | None = None
        self._waiting: deque[_Statement] = deque()
        self._known: set[str] = set()

    @staticmethod
    def can_reach(dsn: str) -> bool:
        """Whether the host is an address: looking a name up would block the reactor."""
        try:
            host = extensions.parse_dsn(dsn).get("host", "")
            ipaddress.ip_address(host)
        except (psycopg2.Error, ValueError):
            return False
        return True

    async def run(self, prepared: Prepared, params: Values) -> list[Record]:
        """Run one statement; see :meth:`synrepl.storage.database.Statements.run`."""
        if len(self._waiting) >= MAX_WAITING:
            raise DatabaseBusy(waiting=len(self._waiting), connections=1, where=self._address.where)
        statement = _Statement(prepared, params, Deferred())
        self._waiting.append(statement)
        self._next()
        return await statement.result

    def close(self) -> None:
        """Disconnect; what has no answer yet fails."""
        self._closed = True
        self._lose("this process closed it")

    # -- for the reactor ----------------------------------------------------------------

    def fileno(self) -> int:
        """The descriptor; negative once it is closed."""
        connection = self._connection
        return -1 if connection is None or connection.closed else connection.fileno()

    def doRead(self) -> None:
        """Something has come: an answer, or the end."""
        self._poll()

    def doWrite(self) -> None:
        """There is room to send more."""
        self._reactor.removeWriter(self)
        self._poll()

    def connectionLost(self, reason: object) -> None:
        """The reactor found the descriptor unusable."""
        self._lose("the connection was closed")

    def logPrefix(self) -> str:
        """For the reactor."""
        return "postgres singles"

    # -- how it is done -------------------------------------------------------------------

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
        prepared = statement.prepared
        sql = f'EXECUTE "{prepared.name}" ({", ".join(["%s"] * len(statement.params))})'
        self._running = statement
        try:
            self._cursor = connection.cursor()
            if prepared.name not in self._known:
                values = self._cursor.mogrify(sql, statement.params).decode()
                self._cursor.execute(f'PREPARE "{prepared.name}" AS {prepared.sql}; {values}')
            else:
                self._cursor.execute(sql, statement.params)
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            self._failed(connection, error)
            return
        self._poll()

    def _poll(self) -> None:
        """Let the driver go on, and do what it waits for."""
        connection = self._connection
        if connection is None:
            return
        try:
            state = connection.poll()
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            self._failed(connection, error)
            return
        if state == extensions.POLL_WRITE:
            self._reactor.addWriter(self)
            return
        self._reactor.addReader(self)
        if state == extensions.POLL_OK:
            self._idle()

    def _idle(self) -> None:
        """The driver has nothing left to do: we are connected, or have an answer."""
        self._connecting = False
        statement, self._running = self._running, None
        if statement is not None:
            self._known.add(statement.prepared.name)
            statement.result.callback(self._cursor.fetchall())
        self._next()

    def _failed(self, connection: extensions.connection, error: Exception) -> None:
        if self._connecting or _ends(connection, error):
            self._lose(self._address.redacted(error))
            return
        statement, self._running = self._running, None
        if statement is not None:
            statement.result.errback(translate(statement.prepared.name, error))
        self._next()

    def _lose(self, reason: str) -> None:
        """Without a connection: what was sent may have been done, what was not was not."""
        connection = self._connection
        if connection is not None:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            close(connection)
        self._connection = None
        running, self._running = self._running, None
        waiting = list(self._waiting)
        self._waiting.clear()
        self._known.clear()
        self._connecting = False
        if running is not None:
            running.result.errback(self._unknown(running, reason))
        for statement in waiting:
            statement.result.errback(self._address.away(reason))

    def _unknown(self, statement: _Statement, reason: str) -> SynreplError:
        return CommitUnknown(
            where=self._address.where, name=statement.prepared.name, xid="?", reason=reason
        )


def _ends(connection: extensions.connection, error: Exception) -> bool:
    """Whether this error is the end of the connection; libpq's own errors have no code."""
    if not isinstance(error, psycopg2.Error):
        return False
    own = isinstance(error, psycopg2.OperationalError) and error.pgcode is None
    return own or is_lost(connection, error)
