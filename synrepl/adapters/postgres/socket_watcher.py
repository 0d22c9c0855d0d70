"""Noticing what arrives on an idle connection."""

from __future__ import annotations

import os
from collections.abc import Callable

from synrepl.adapters.reactor import Reactor
from synrepl.driver.connection import PostgresConnection


class SocketWatcher:
    """Calls back when a connection's socket has something to read.

    It watches a duplicate of the descriptor: libpq closes its own as soon as it
    reads an end of file, and the number may be somebody else's a moment later.

    :param readable: called in the reactor's thread, and again until it has read
    """

    def __init__(
        self, reactor: Reactor, connection: PostgresConnection, readable: Callable[[], object]
    ) -> None:
        self._reactor = reactor
        self._readable = readable
        self._descriptor = os.dup(connection.fileno())

    def resume(self) -> None:
        """Watch."""
        if self._descriptor >= 0:
            self._reactor.addReader(self)

    def pause(self) -> None:
        """Let somebody else read."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)

    def close(self) -> None:
        """Stop for good."""
        self.pause()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def fileno(self) -> int:
        """For the reactor."""
        return self._descriptor

    def doRead(self) -> None:
        """For the reactor."""
        self._readable()

    def connectionLost(self, reason: object) -> None:
        """For the reactor, which says so when there is an end and nothing else to read."""
        self._readable()

    def logPrefix(self) -> str:
        """For the reactor."""
        return "postgres"
