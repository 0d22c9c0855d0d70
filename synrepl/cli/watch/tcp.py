"""The TCP source of ``synrepl watch``: a connection to a server that is re-established when lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from synrepl.cli.raw_follower import RawFollower
from synrepl.cli.raw_peer import NoMaster, RawPeer, ask_for_all
from synrepl.core.clock import Scheduler
from synrepl.core.retry import BackOff
from synrepl.tools.watch.announcements import Announcements
from synrepl.wire.commands import Command, Position, Rdata
from synrepl.wire.dialects import LEGACY, TRANSITIONAL_OR_MODERN, Dialect

#: The order in which dialects are tried: a legacy server refuses the newer ones' command.
DIALECTS = (TRANSITIONAL_OR_MODERN, LEGACY)

_BACK_OFF = BackOff(0.5, 10.0)


class TcpLiveSource:
    """Receives a server's announcements, and detects its dialect.

    :param connect: connects in a dialect
    :ivar dialect: the server's dialect; None until it is known
    :ivar is_receiving: whether there is a connection on which the server was understood
    :ivar trouble: why there is none, for people
    :ivar bad: the number of lines that could not be parsed; each ended a connection
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connect: Callable[[Dialect], Awaitable[RawPeer]],
        announcements: Announcements,
    ) -> None:
        self._scheduler = scheduler
        self._follower = RawFollower(scheduler, connect, DIALECTS, _BACK_OFF, self)
        self._announcements = announcements
        self._understood = False
        self.dialect: Dialect | None = None
        self.is_receiving = False
        self.trouble: str | None = "not connected yet"
        self.bad = 0

    def start(self) -> None:
        """Start receiving."""
        self._scheduler.spawn("listen", self.run())

    async def stop(self) -> None:
        """Do nothing: receiving ends with the scheduler."""

    async def run(self) -> None:
        """Receive, and reconnect when needed, until cancelled."""
        await self._follower.run()

    # -- RawListener ---------------------------------------------------------------------

    def unreachable(self, error: NoMaster) -> None:
        """Record why the connection could not be made."""
        self.trouble = str(error)

    def connected(self, upstream: RawPeer) -> None:
        """Subscribe to everything."""
        self._understood = False
        upstream.send(ask_for_all(upstream.requested_dialect))

    async def received(self, upstream: RawPeer, commands: Sequence[Command]) -> bool:
        """Record announcements. A POSITION or a row proves that the dialect was understood."""
        if any(isinstance(command, (Position, Rdata)) for command in commands):
            self._understood = self.is_receiving = True
            self.trouble = None
        if self._understood:
            self.dialect = upstream.session.dialect
        self._announcements.received(commands)
        return True

    def disconnected(self) -> None:
        """Record that nothing is received."""
        self.is_receiving = False

    def dialect_understood(self, upstream: RawPeer) -> bool:
        """Record why the connection was lost."""
        self.trouble = f"the connection is lost: {upstream.reason}"
        if self._understood:
            self.bad += upstream.session.fault is not None
        return self._understood
