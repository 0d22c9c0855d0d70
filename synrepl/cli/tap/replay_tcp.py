"""Replays a recording to TCP clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.cli.raw_peer import LINE_LIMIT
from synrepl.cli.terminal import printable
from synrepl.core.clock import Clock
from synrepl.core.errors import InputError, Unavailable
from synrepl.daemon.config.config import LOOPBACK
from synrepl.tools.tap.recording import read_recording
from synrepl.tools.tap.replay import Burst, lines_for_client, replay
from synrepl.tools.tap.replay_plan import ReplayPlan
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Replicate
from synrepl.wire.dialects import Side
from synrepl.wire.lines import LineChunk
from synrepl.wire.session import ProtocolSession, SessionLimits

#: The limit of simultaneous clients, each of which opens the recording.
MAX_CLIENTS = 100


class CannotListen(Unavailable):
    """cannot listen on port {port}: {reason}"""


async def serve(reactor: Any, plan: ReplayPlan, port: int, notify: Callable[[str], object]) -> None:
    """Listen on loopback, and replay to each client, until cancelled.

    :param port: the port to listen on; 0 for any free one
    :param notify: prints a sentence about progress
    :raises CannotListen: the port is taken
    """
    factory = ReplayFactory(reactor, plan)
    try:
        listening = reactor.listenTCP(port, factory, interface=LOOPBACK)
    except CannotListenError as error:
        raise CannotListen(port=port, reason=str(error.socketError)) from None
    where = f"{LOOPBACK}:{listening.getHost().port}"
    name, dialect = printable(plan.server_name), plan.over_tcp.name
    notify(f"{name} listens on {where}, {dialect} dialect")
    forever: Deferred[None] = Deferred()
    await forever


class ReplayPeer(LinePeer):
    """A client that the recording is replayed to.

    :param scheduler: this connection's own, because it is stopped with the connection
    """

    def __init__(
        self,
        scheduler: TwistedScheduler,
        session: ProtocolSession,
        plan: ReplayPlan,
        factory: ReplayFactory,
    ) -> None:
        super().__init__(scheduler, session)
        self._own_scheduler = scheduler
        self._plan = plan
        self._factory = factory
        self._playing = False

    def commands_received(self, commands: Sequence[Command]) -> None:
        """Start the replay at the first REPLICATE; ignore everything else."""
        if not self._playing and any(isinstance(command, Replicate) for command in commands):
            self._playing = True
            self.scheduler.spawn("replay", self._play())

    def session_ended(self, reason: CloseReason) -> None:
        """Stop the replay to this client, and admit another one."""
        self._own_scheduler.stop()
        self._factory.client_left()

    async def _play(self) -> None:
        plan = self._plan
        try:
            with closing(read_recording(plan.path)) as recording:
                part = lines_for_client(recording, plan.connection)
                await replay(self.scheduler, part, plan.speed, self._send)
        except InputError as error:
            click.echo(f"synrepl: {error}", err=True)
            self.close(CloseReason.LOCAL, "the recording ends here")

    async def _send(self, burst: Burst) -> bool:
        if not await self.room():
            return False
        self.send_chunk(LineChunk.of(b"\n".join([*burst.lines, b""])))
        return await self.room()


class ReplayFactory(ServerFactory):
    """Makes a :class:`ReplayPeer` for each client, up to :data:`MAX_CLIENTS` at a time."""

    noisy = False

    def __init__(self, clock: Clock, plan: ReplayPlan) -> None:
        self._clock = clock
        self._plan = plan
        self._clients = 0

    def buildProtocol(self, addr: IAddress | None) -> ReplayPeer | None:
        """A peer for a new connection; None drops it."""
        if self._clients >= MAX_CLIENTS:
            return None
        self._clients += 1
        session = ProtocolSession(
            Side.SERVER,
            server_name=self._plan.server_name,
            dialect=self._plan.over_tcp,
            now=self._clock.seconds(),
            limits=SessionLimits(peer_line=LINE_LIMIT),
        )
        return ReplayPeer(TwistedScheduler(self._clock), session, self._plan, self)

    def client_left(self) -> None:
        """Record that a client has disconnected."""
        self._clients -= 1
