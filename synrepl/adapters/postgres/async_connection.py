"""A connection in libpq's asynchronous mode, which the reactor waits for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import psycopg2
from psycopg2 import extensions
from twisted.internet.defer import Deferred

from synrepl.driver.connection import DatabaseAddress, close
from synrepl.driver.errors import VALUE_ERRORS, is_lost
from synrepl.storage.database import Record


class AsyncSocket:
    """A connection's socket, as a descriptor for the reactor.

    It duplicates the descriptor: libpq may close its own at any time, and a closed
    descriptor cannot be removed from the reactor.
    """

    def __init__(self, reactor: Any, socket: int, ready: Callable[[], None]) -> None:
        self._reactor = reactor
        self._socket = os.dup(socket)
        self._ready = ready

    def is_for(self, socket: int) -> bool:
        """Whether this is the socket in use; it may change while the connection is being made."""
        return os.path.samestat(os.fstat(self._socket), os.fstat(socket))

    def read(self) -> None:
        """Call ``ready`` whenever there is something to read."""
        self._reactor.addReader(self)

    def write(self) -> None:
        """Call ``ready`` once, when there is room to send."""
        self._reactor.addWriter(self)

    def stop(self) -> None:
        """Stop watching, and close the descriptor."""
        if self._socket >= 0:
            self._reactor.removeReader(self)
            self._reactor.removeWriter(self)
            os.close(self._socket)
            self._socket = -1

    def fileno(self) -> int:
        """``IFileDescriptor``: the duplicate."""
        return self._socket

    def doRead(self) -> None:
        """``IReadDescriptor``: there is something to read."""
        self._ready()

    def doWrite(self) -> None:
        """``IWriteDescriptor``: there is room to send."""
        self._reactor.removeWriter(self)
        self._ready()

    def connectionLost(self, reason: object) -> None:
        """``IReadDescriptor``: the driver notices the loss when it is polled."""
        self._ready()

    def logPrefix(self) -> str:
        """``ILoggingContext``: a name for logs."""
        return "postgres"


class AsyncConnection:
    """Runs one text of statements after the other.

    :param reactor: watches the connection
    """

    def __init__(self, reactor: Any, address: DatabaseAddress) -> None:
        self._reactor = reactor
        self._address = address
        self._connection: extensions.connection | None = None
        self._socket: AsyncSocket | None = None
        self._cursor: Any = None
        self._waiting: Deferred[None] | None = None
        self._is_open = False

    def is_lost(self, error: Exception) -> bool:
        """Whether an error of :meth:`run` means that the connection is lost: the statements may have taken effect."""
        if not isinstance(error, psycopg2.Error):
            return False
        connection = self._connection
        return connection is None or error.pgcode is None or is_lost(connection, error)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, here or while nothing ran on it."""
        return self._connection is None

    @property
    def backend_pid(self) -> int:
        """The process ID of the server's backend."""
        assert self._connection is not None
        return self._connection.info.backend_pid

    async def open(self) -> None:
        """Connect.

        :raises psycopg2.Error: the server cannot be reached
        """
        self._connection = self._address.begin_connecting()
        await self._done()
        self._is_open = True

    async def run(self, sql: str, params: Sequence[object] | None) -> list[Record]:
        """Send statements; returns the rows of the last one, if it has rows.

        :raises psycopg2.Error: one of them failed, or the connection is lost
        """
        assert self._connection is not None
        self._cursor = self._connection.cursor()
        self._cursor.execute(sql, params or None)
        await self._done()
        return [] if self._cursor.description is None else list(self._cursor.fetchall())

    def close(self) -> None:
        """Disconnect; what runs fails."""
        connection, self._connection = self._connection, None
        if self._socket is not None:
            self._socket.stop()
            self._socket = None
        if connection is not None:
            close(connection)
        self._end(psycopg2.OperationalError("the connection was closed"))

    def _done(self) -> Deferred[None]:
        waiting: Deferred[None] = Deferred()
        self._waiting = waiting
        self._poll()
        return waiting

    def _poll(self) -> None:
        """Let the driver proceed, and watch the socket for what it waits for."""
        connection = self._connection
        if connection is None:
            return
        try:
            state = connection.poll()
        except (psycopg2.Error, *VALUE_ERRORS) as error:
            if self._waiting is None:
                self.close()
            self._end(error)
            return
        socket = self._watched(connection)
        if state == extensions.POLL_WRITE:
            socket.write()
            return
        socket.read()
        if state == extensions.POLL_OK:
            self._end(None)

    def _watched(self, connection: extensions.connection) -> AsyncSocket:
        """The socket, which may be another one each time while connecting."""
        socket = self._socket
        if socket is not None and (self._is_open or socket.is_for(connection.fileno())):
            return socket
        if socket is not None:
            socket.stop()
        self._socket = AsyncSocket(self._reactor, connection.fileno(), self._poll)
        return self._socket

    def _end(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if error is None:
            waiting.callback(None)
        else:
            waiting.errback(error)
