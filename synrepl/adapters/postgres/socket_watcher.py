"""Watches the socket of an idle connection."""

from __future__ import annotations

import os
from collections.abc import Callable

from synrepl.adapters.reactor import Reactor
from synrepl.driver.connection import PostgresConnection


class SocketWatcher:
    """Calls back when a connection's socket is readable.

    It watches a duplicate of the descriptor: libpq closes its own as soon as it
    reads an end of file, and the number may then be reused at once.

    :param readable: called in the reactor's thread, repeatedly until the data is read
    """

    def __init__(
        self, reactor: Reactor, connection: PostgresConnection, readable: Callable[[], object]
    ) -> None:
        self._reactor = reactor
        self._readable = readable
        self._descriptor = os.dup(connection.fileno())

    def resume(self) -> None:
        """Start watching, or resume."""
        if self._descriptor >= 0:
            self._reactor.addReader(self)

    def pause(self) -> None:
        """Stop watching while a thread uses the connection."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)

    def close(self) -> None:
        """Stop watching, and close the descriptor."""
        self.pause()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        """``IFileDescriptor``: the duplicate; -1 once closed."""
        return self._descriptor

    def doRead(self) -> None:
        """``IReadDescriptor``: the socket is readable."""
        self._readable()

    def connectionLost(self, reason: object) -> None:
        """``IReadDescriptor``: called instead of :meth:`doRead` at an end of file."""
        self._readable()

    def logPrefix(self) -> str:
        """``ILoggingContext``: a name for logs."""
        return "postgres"
