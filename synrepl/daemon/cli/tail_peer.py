"""A connection to a master whose commands are taken when somebody is ready for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectError, DNSLookupError

from synrepl.adapters.line_peer import LinePeer
from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command
from synrepl.wire.dialects import Dialect, Side
from synrepl.wire.session import Limits, Session

#: Commands that may wait before the master is asked to stop (by not reading on).
HIGH_WATER = 20_000

#: A row is shown whatever its length, within reason; in bytes.
LINE_LIMIT = 16 * 2**20


class NoMaster(Unavailable):
    """cannot connect to {where}: {reason}"""


class TailPeer(LinePeer):
    """The client's end of a connection to a master."""

    def __init__(self, scheduler: Scheduler, session: Session) -> None:
        super().__init__(scheduler, session)
        self._inbox: list[Command] = []
        self._held = False
        self._over = False
        self._wanted: Deferred[None] | None = None

    async def commands(self) -> list[Command]:
        """What came since the last call, waiting for it; nothing once the connection is gone."""
        if not self._inbox and not self._over:
            self._wanted = Deferred()
            await self._wanted
        taken, self._inbox = self._inbox, []
        if self._held and not self._over:
            self._held = False
            self._transport().resumeProducing()
        return taken

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Keep them; read no more while too many wait."""
        self._inbox += commands
        if len(self._inbox) > HIGH_WATER and not self._held:
            self._held = True
            self._transport().pauseProducing()
        self._wake()

    def session_ended(self, reason: CloseReason) -> None:
        """The connection is gone."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            wanted.callback(None)


async def connect(
    reactor: Any,
    scheduler: Scheduler,
    host: str,
    port: int,
    dialect: Dialect,
    server_name: str | None,
) -> TailPeer:
    """Connect to a master once.

    :param server_name: what the master must be called; None takes any
    :raises NoMaster: nobody is there
    """
    session = Session(
        Side.CLIENT,
        server_name=server_name,
        name="synrepl-tail",
        dialect=dialect,
        now=scheduler.seconds(),
        limits=Limits(line=LINE_LIMIT),
    )
    endpoint = HostnameEndpoint(reactor, host, port)
    try:
        peer: TailPeer = await connectProtocol(endpoint, TailPeer(scheduler, session))
    except (ConnectError, DNSLookupError, OSError) as error:
        raise NoMaster(where=f"{host}:{port}", reason=str(error).rstrip(".")) from None
    return peer
