"""What ``synrepl watch`` hears with over TCP: a connection to a server, made again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle

from synrepl.core.clock import Scheduler
from synrepl.core.errors import Unavailable
from synrepl.core.retry import BackOff, Retry
from synrepl.daemon.cli.tail_peer import TailPeer
from synrepl.daemon.cli.terminal import printable
from synrepl.services.watching.heard import Heard
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Position, Rdata, Replicate
from synrepl.wire.dialects import LEGACY, TRANSITIONAL_OR_MODERN, Dialect

#: The order in which dialects are tried: a legacy server refuses the newer ones' command.
DIALECTS = (TRANSITIONAL_OR_MODERN, LEGACY)

_BACK_OFF = BackOff(0.5, 10.0)


class Listening:
    """Listens for as long as it runs; finds the dialect by itself.

    :param connect: makes a connection in a dialect
    :ivar dialect: in which the server was understood; None until it was
    :ivar hears: whether there is a connection on which it was
    :ivar trouble: why there is none, for a person
    :ivar bad: how many lines of it could not be read; each was the end of a connection
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connect: Callable[[Dialect], Awaitable[TailPeer]],
        heard: Heard,
    ) -> None:
        self._scheduler = scheduler
        self._connect = connect
        self._heard = heard
        self.dialect: Dialect | None = None
        self.hears = False
        self.trouble: str | None = "not connected yet"
        self.bad = 0

    def start(self) -> None:
        """Begin to listen."""
        self._scheduler.spawn("listen", self.run())

    async def stop(self) -> None:
        """Nothing: that ends with the scheduler."""

    async def run(self) -> None:
        """Listen, over one connection after the other; ends by being cancelled."""
        retry, dialects = Retry(_BACK_OFF, self._scheduler.random), cycle(DIALECTS)
        spoken = next(dialects)
        while True:
            try:
                peer = await self._connect(spoken)
            except Unavailable as error:  # which says nothing of the dialect
                self.trouble = str(error)
            else:
                try:
                    understood = await self._listen(peer, spoken)
                finally:
                    peer.close(CloseReason.LOCAL)
                self.hears = False
                self.trouble = _why(peer)
                if understood:
                    retry.succeeded()
                    self.bad += peer.session.fault is not None
                else:
                    last, spoken = spoken, next(dialects)
                    if last is not DIALECTS[-1]:
                        continue  # the next one, at once
            await self._scheduler.sleep(retry.failed())

    async def _listen(self, peer: TailPeer, dialect: Dialect) -> bool:
        """Listen to one connection; whether anything was understood on it."""
        peer.send(Replicate() if dialect.per_writer else Replicate("ALL", None))
        understood = False
        while commands := await peer.commands():
            if not understood and _tells(commands):
                understood = self.hears = True
                self.trouble = None
            self.dialect = peer.session.dialect if understood else self.dialect
            self._heard.received(commands)
        return understood


def _why(peer: TailPeer) -> str:
    session = peer.session
    reason = session.peer_error or session.fault or "the server closed it"
    return f"the connection is lost: {printable(str(reason))}"


def _tells(commands: Sequence[Command]) -> bool:
    return any(isinstance(command, (Position, Rdata)) for command in commands)
