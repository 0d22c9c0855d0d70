"""EDUs that other processes hand to senders, on the stream ``federation``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from synrepl.core.clock import Scheduler
from synrepl.core.tokens import Token
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.handlers import Batch, Handler
from synrepl.streams.synapse.federation import FEDERATION, FederationRow

#: Seconds after its start for which a process keeps such EDUs until it owns its destinations.
_START_S = 10.0

_LOOK_S = 0.1


class Acknowledges(Protocol):
    """See :meth:`synrepl.services.sending.commands.Commands.federation_ack`."""

    def federation_ack(self, token: Token) -> None: ...


class HandedOverEdus(Handler):
    """Gives such EDUs to the queues of destinations, and acknowledges them.

    A sender that restarts continues where it was, and a new one begins with the oldest that all have not acknowledged.

    :param commands: returns what acknowledges
    """

    streams = frozenset({FEDERATION.name})

    def __init__(
        self, scheduler: Scheduler, sender: FederationSender, commands: Callable[[], Acknowledges]
    ) -> None:
        self._scheduler = scheduler
        self._sender = sender
        self._commands = commands
        self._until = scheduler.seconds() + _START_S

    async def on_rows(self, batch: Batch) -> None:
        """Take rows of ``federation``."""
        while self._sender.owner.missing and self._scheduler.seconds() < self._until:
            await self._scheduler.sleep(_LOOK_S)
        for row in batch.rows:
            if isinstance(row, FederationRow):
                self._sender.edus.take_handed(row)
        self._commands().federation_ack(batch.upto)
