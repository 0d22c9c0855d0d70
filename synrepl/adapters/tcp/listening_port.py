"""A TCP port that accepts a bounded number of connections per reactor turn."""

# mypy: disable-error-code="no-untyped-call"
# (the methods of Twisted's port have no types)

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

#: Connections accepted per turn of the reactor. Each needs a descriptor at once; a connection
#: that it displaces releases its own only in the next turn.
ACCEPTS = 16

#: Connections that the kernel queues. Beyond that, clients retry after a second.
BACKLOG = 1024

#: Pause in seconds when none of the queued connections can be accepted. The process is then out
#: of descriptors, and would otherwise retry in a busy loop.
PAUSE_S = 0.2


class ListeningPort(tcp.Port):
    """Accepts few connections per turn, and pauses when it cannot accept any.

    :param address: address of the interface to listen on
    :param places: number of connections above which a new one displaces an idle one. Fewer
        connections must be accepted before a new connection is first read
    """

    def __init__(
        self, port: int, factory: Any, address: str, reactor: Any, places: int = 3 * ACCEPTS
    ) -> None:
        self._max_accepts = max(1, min(ACCEPTS, places // 3))
        super().__init__(port, factory, BACKLOG, address, reactor)
        self._accepted = 0
        self._failed_turns = 0

    @property
    def numberAccepts(self) -> int:
        """Connections accepted in the next turn; Twisted adjusts this to the traffic."""
        return self._accepts

    @numberAccepts.setter
    def numberAccepts(self, count: int) -> None:
        self._accepts = min(count, self._max_accepts)

    def doRead(self) -> None:
        """Accept connections."""
        self._accepted = 0
        super().doRead()
        if self._accepted:
            self._failed_turns = 0
            return
        self._failed_turns += 1
        if self._failed_turns > 1:  # a single time, the client may have disconnected
            self._failed_turns = 0
            self.stopReading()
            self.reactor.callLater(PAUSE_S, self._resume)

    def _buildAddr(self, address: Any) -> Any:
        self._accepted += 1
        return super()._buildAddr(address)

    def _resume(self) -> None:
        if self.connected and not self.disconnecting:
            self.startReading()
