"""``synrepl tap replay``: replays a recording to TCP clients, or on Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp.line_peer import LinePeer
from synrepl.cli.raw_peer import LINE_LIMIT
from synrepl.cli.redis_url import password_option, redis_from_options
from synrepl.cli.running import run
from synrepl.cli.terminal import printable
from synrepl.core.clock import Clock
from synrepl.core.errors import ConfigError, InputError, Unavailable
from synrepl.core.names import server_name as checked
from synrepl.daemon.config.config import LOOPBACK
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location
from synrepl.tools.tap.recording import read_recording
from synrepl.tools.tap.replay import Burst, ReplayPlan, lines_for_client, plan_replay, replay
from synrepl.wire.closing import CloseReason
from synrepl.wire.commands import Command, Replicate
from synrepl.wire.dialects import DIALECTS, Side
from synrepl.wire.lines import LineChunk
from synrepl.wire.session import ProtocolSession, SessionLimits


class WhereToPlay(ConfigError):
    """replay plays either to clients (--port PORT) or on a Redis (--redis URL, and --redis-password-path FILE, --unasked with it): give one of the two"""


@click.command("replay")
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on, on loopback. Default: a free one, which is printed.",
)
@click.option(
    "--redis", "url", metavar="URL", help="A Redis server to replay on, which no real server uses."
)
@password_option
@click.option(
    "--unasked", is_flag=True, help="On Redis: start without waiting for the first REPLICATE."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Speed relative to the recording; 0 for as fast as possible.",
)
@click.option(
    "--connection", type=int, help="Connection to replay, of a recording of several (its 'conn')."
)
@click.option(
    "--server-name",
    help="Server name to use, on Redis for the channels, too. Default: as recorded.",
)
@click.option(
    "--dialect",
    type=click.Choice(list(DIALECTS)),
    help="Dialect of the recording. Default: detected.",
)
def command(
    path: Path,
    port: int | None,
    url: str | None,
    redis_password_path: Path | None,
    unasked: bool,
    speed: float,
    connection: int | None,
    server_name: str | None,
    dialect: str | None,
) -> None:
    """Replay a recording from its beginning, and keep serving it until Ctrl-C.

    Over TCP, each client is served the recording from its REPLICATE on. Rows,
    POSITIONs, SYNC and REMOTE_SERVER_UP are replayed; the greeting and PINGs are
    generated. A recording from Redis is replayed in the modern dialect.

    On Redis, the replay starts once, at the first REPLICATE, and publishes
    everything but REPLICATE itself. Later REPLICATEs are answered with the current
    positions. Never replay on a channel that a real server uses: its processes
    would take the recording for real.
    """
    if (url is None and (redis_password_path is not None or unasked)) or (
        url is not None and port is not None
    ):
        raise WhereToPlay()
    recorded_dialect = None if dialect is None else DIALECTS[dialect]
    plan = plan_replay(path, speed, connection, server_name, recorded_dialect)

    def notify(text: str) -> None:
        click.echo(f"synrepl: {text}", err=True)

    if url is None:
        run(lambda reactor: serve(reactor, plan, port or 0, notify))
        return
    redis = redis_from_options(url, redis_password_path)
    plan.check_for_redis()
    checked(plan.server_name)
    run(lambda reactor: _publish(reactor, plan, redis, unasked, notify))


async def _publish(
    reactor: Any,
    plan: ReplayPlan,
    redis: RedisConfig,
    unasked: bool,
    notify: Callable[[str], object],
) -> None:
    """Replay on Redis, importing Redis only here."""
    where = redis_location(redis)
    from synrepl.cli.tap.replay_redis import RedisReplay

    await RedisReplay(where, plan.server_name, unasked).play(reactor, plan, notify)


#: The limit of simultaneous clients; each opens the recording.
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
