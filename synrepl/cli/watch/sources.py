"""The sources of ``synrepl watch``: a replication listener or a Redis channel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from synrepl.cli.dsn import host_and_port
from synrepl.cli.raw_peer import NoMaster, RawFollower, RawPeer, ask_for_all, connect
from synrepl.cli.redis_url import redis_from_options
from synrepl.cli.watch.redis import RedisLiveSource
from synrepl.core.clock import Scheduler
from synrepl.core.errors import ConfigError
from synrepl.core.names import BadName
from synrepl.core.names import server_name as checked
from synrepl.core.retry import BackOff
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import make_pubsub
from synrepl.services.bus.channels import Channels
from synrepl.tools.watch.announcements import Announcements
from synrepl.wire.commands import Command, Position, Rdata
from synrepl.wire.dialects import LEGACY, TRANSITIONAL_OR_MODERN, Dialect


class WhereToListen(ConfigError):
    """watch listens either at a replication listener (--tcp HOST:PORT) or on a Redis (--redis URL, and --redis-password-path FILE with it): give exactly one of the two"""


class NoChannel(ConfigError):
    """--redis needs --server-name NAME: a Synapse's processes talk on the channel that is called as the server is (server_name in its homeserver.yaml)"""


class LiveSource(Protocol):
    """Receives announcements from :meth:`start` to :meth:`stop`, and reconnects when needed."""

    @property
    def dialect(self) -> Dialect | None:
        """The server's dialect; None until it is known."""

    @property
    def is_receiving(self) -> bool:
        """Whether announcements are being received."""

    @property
    def trouble(self) -> str | None:
        """Why not, for people."""

    @property
    def bad(self) -> int:
        """The number of lines or messages that could not be parsed."""

    def start(self) -> None:
        """Start receiving.

        :raises ConfigError: the settings can never lead to a connection
        """

    async def stop(self) -> None:
        """Stop receiving."""


class SourceAddress(Protocol):
    """The address of a source; its ``str`` is for people."""

    @property
    def announces_moves(self) -> bool:
        """Whether writers announce positions that advanced without rows."""

    @property
    def note(self) -> str | None:
        """What this source cannot observe, for people; None for nothing."""

    def open(self, reactor: Any, scheduler: Scheduler, announcements: Announcements) -> LiveSource:
        """Create the source, without starting it."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """The address of a replication listener.

    :ivar server_name: the server name that the server must have; None accepts any
    """

    host: str
    port: int
    server_name: str | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def announces_moves(self) -> bool:
        """As :attr:`SourceAddress.announces_moves`: recorded servers do so only when asked."""
        return False

    @property
    def note(self) -> str | None:
        """As :attr:`SourceAddress.note`."""
        return "over TCP only the main process is heard: whether its workers run is not known"

    def open(self, reactor: Any, scheduler: Scheduler, announcements: Announcements) -> LiveSource:
        """As :meth:`SourceAddress.open`."""
        return TcpLiveSource(
            scheduler,
            lambda dialect: connect(
                reactor, scheduler, self.host, self.port, dialect, self.server_name
            ),
            announcements,
        )


@dataclass(frozen=True, slots=True)
class RedisChannel:
    """The channel of a server on Redis."""

    redis: RedisConfig
    server_name: str

    def __str__(self) -> str:
        return f"{self.redis.where}, channel {self.server_name}"

    @property
    def announces_moves(self) -> bool:
        """As :attr:`SourceAddress.announces_moves`."""
        return True

    @property
    def note(self) -> str | None:
        """As :attr:`SourceAddress.note`: None, for every process is observed."""
        return None

    def open(self, reactor: Any, scheduler: Scheduler, announcements: Announcements) -> LiveSource:
        """As :meth:`SourceAddress.open`."""
        channels = Channels(self.server_name)
        return RedisLiveSource(
            scheduler,
            channels,
            # True: a replica is refused, because a REPLICATE published there reaches nobody.
            lambda source: make_pubsub(
                reactor, scheduler, self.redis, [channels.main], source, source.info, True
            ),
            announcements,
        )


def source_address(
    tcp: str | None, url: str | None, password_path: Path | None, server_name: str | None
) -> SourceAddress:
    """Return the address of the source that the options name.

    :raises WhereToListen: :raises NoChannel: :raises click.BadParameter:
    :raises SynreplError: what :func:`.redis_from_options` raises
    """
    if (tcp is None) == (url is None) or (url is None and password_path is not None):
        raise WhereToListen()
    if tcp is not None:
        return TcpAddress(*host_and_port(tcp), server_name)
    assert url is not None
    if server_name is None:
        raise NoChannel()
    try:
        channel = checked(server_name)
    except BadName as error:
        raise click.BadParameter(str(error), param_hint="--server-name") from None
    return RedisChannel(redis_from_options(url, password_path), channel)


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
