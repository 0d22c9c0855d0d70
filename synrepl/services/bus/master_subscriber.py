"""A master's subscriber of the bus: relays commands, and mirrors in-memory streams of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synrepl.services.bus.mirror import Mirror
from synrepl.services.following.follower import Upstream
from synrepl.wire.batching import BatchTooLarge
from synrepl.wire.closing import reason_and_text
from synrepl.wire.commands import Command, Position, Rdata, Replicate


class MasterBusSubscriber:
    """Relays commands; rows and positions of streams with a table are read from the database.

    It sends REPLICATE like any other process, because its peers expect that of a newcomer. The
    answers cost it nothing.

    :param handle: called with each command that is not about streams
    :param mirror: gets the rows and positions of in-memory streams
    :param joined: called when the bus is connected
    :param left: called when the connections are lost
    """

    def __init__(
        self,
        handle: Callable[[Command], object],
        mirror: Mirror | None = None,
        joined: Callable[[], object] = lambda: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        self._handle = handle
        self._mirror = mirror
        self._joined = joined
        self._left = left
        self._upstream: Upstream | None = None

    def connected(self, upstream: Upstream) -> None:
        """Send REPLICATE, as a newcomer does."""
        self._upstream = upstream
        upstream.send(Replicate())
        self._joined()

    def received(self, commands: Sequence[Command]) -> None:
        """Pass commands on to the mirror and the handler."""
        if self._mirror is not None:
            try:
                self._mirror.received(commands)
            except BatchTooLarge as error:
                if self._upstream is not None:
                    self._upstream.close(*reason_and_text(error))
        for command in commands:
            if not isinstance(command, Rdata | Position):
                self._handle(command)

    def disconnected(self) -> None:
        """Messages are lost from now on."""
        self._upstream = None
        if self._mirror is not None:
            self._mirror.disconnected()
        self._left()
