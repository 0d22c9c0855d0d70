"""The sources of ``synrepl watch``: a replication listener or a Redis channel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from synrepl.cli.dsn import host_and_port
from synrepl.cli.raw_peer import connect
from synrepl.cli.redis_url import redis_from_options
from synrepl.cli.watch.redis import RedisLiveSource
from synrepl.cli.watch.tcp import TcpLiveSource
from synrepl.core.clock import Scheduler
from synrepl.core.errors import ConfigError
from synrepl.core.names import BadName
from synrepl.core.names import server_name as checked
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import make_pubsub
from synrepl.services.bus.channels import Channels
from synrepl.tools.watch.announcements import Announcements
from synrepl.wire.dialects import Dialect


class WhereToListen(ConfigError):
    """watch listens either at a replication listener (--tcp HOST:PORT) or on a Redis (--redis URL, and --redis-password-path FILE with it): give exactly one of the two"""


class NoChannel(ConfigError):
    """--redis needs --server-name NAME: a Synapse's processes talk on the channel that is called as the server is (server_name in its homeserver.yaml)"""


class LiveSource(Protocol):
    """Listens from :meth:`start` to :meth:`stop`, over one connection after the other."""

    @property
    def dialect(self) -> Dialect | None:
        """In which the server was understood; None until it was."""

    @property
    def is_receiving(self) -> bool:
        """Whether it is heard now."""

    @property
    def trouble(self) -> str | None:
        """Why it is not, for a person."""

    @property
    def bad(self) -> int:
        """How many of its lines could not be read."""

    def start(self) -> None:
        """Begin.

        :raises ConfigError: that can never succeed
        """

    async def stop(self) -> None:
        """End."""


class SourceAddress(Protocol):
    """A place to listen at; its text is for a person."""

    @property
    def announces_moves(self) -> bool:
        """Whether writers announce positions that have moved without rows there."""

    @property
    def note(self) -> str | None:
        """What cannot be known there, for a person."""

    def open(self, reactor: Any, scheduler: Scheduler, announcements: Announcements) -> LiveSource:
        """Ears for it, which do not listen yet."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A replication listener.

    :ivar server_name: what the server has to be called; None takes any
    """

    host: str
    port: int
    server_name: str | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def announces_moves(self) -> bool:
        """As :attr:`SourceAddress.announces_moves`: recorded servers only say so when they are asked."""
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
    """A channel on a Redis."""

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
        """As :attr:`SourceAddress.note`: every process is heard."""
        return None

    def open(self, reactor: Any, scheduler: Scheduler, announcements: Announcements) -> LiveSource:
        """As :meth:`SourceAddress.open`."""
        channels = Channels(self.server_name)
        return RedisLiveSource(
            scheduler,
            channels,
            # What is asked on a replica never gets to those who should answer.
            lambda source: make_pubsub(
                reactor, scheduler, self.redis, [channels.main], source, source.info, True
            ),
            announcements,
        )


def source_address(
    tcp: str | None, url: str | None, password_path: Path | None, server_name: str | None
) -> SourceAddress:
    """Where to listen.

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
