"""The server that ``synrepl tail`` follows, from the command line and the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import click

from synrepl.cli.addresses import (
    AnyPort,
    HttpAddress,
    NoHttpListener,
    master_http,
    reachable,
)
from synrepl.cli.dsn import host_and_port
from synrepl.cli.raw_peer import RawUpstream, connect
from synrepl.core.clock import Scheduler
from synrepl.core.errors import ConfigError
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import LOOPBACK, MasterConfig, WorkerConfig, load
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation
from synrepl.wire.dialects import CLIENT_DIALECTS, CURRENT, Dialect


class NoListener(ConfigError):
    """the configuration has no listener for followers: set 'listeners', or say HOST:PORT"""


class OnlyOneDialect(ConfigError):
    """--dialect: over Redis there is only one; leave it out, or say HOST:PORT for a listener"""


class TailEndpoint(Protocol):
    """A place that rows can be received from."""

    async def connect(self, reactor: Any, scheduler: Scheduler) -> RawUpstream:
        """Connect, without retries.

        :raises NoMaster: the connection cannot be made
        """


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """A master's listener for followers.

    :ivar server_name: the server name that the master must have; None accepts any
    """

    host: str
    port: int
    dialect: Dialect
    server_name: str | None

    async def connect(self, reactor: Any, scheduler: Scheduler) -> RawUpstream:
        """As :meth:`TailEndpoint.connect`."""
        return await connect(
            reactor, scheduler, self.host, self.port, self.dialect, self.server_name
        )


@dataclass(frozen=True, slots=True)
class RedisEndpoint:
    """The channels of a server on Redis.

    :ivar streams: the names of the streams that may have their own channels
    """

    redis: RedisConfig
    server_name: str
    streams: tuple[str, ...]

    async def connect(self, reactor: Any, scheduler: Scheduler) -> RawUpstream:
        """As :meth:`TailEndpoint.connect`."""
        where = redis_location(self.redis)
        from synrepl.cli.tail.redis import connect_to_redis

        per_stream = self.redis.channel_per_stream
        return await connect_to_redis(
            reactor, scheduler, where, self.server_name, per_stream, self.streams
        )


@dataclass(frozen=True, slots=True)
class TailTarget:
    """The server to follow, and what is known about it.

    :ivar streams: the catalogue of the configuration; None without a configuration
    :ivar foreign: whether it may be a real Synapse
    :ivar rows: the generation of its row shapes
    :ivar http: where missed rows can be fetched; None if nowhere
    """

    endpoint: TailEndpoint
    dialect: Dialect
    streams: Catalogue | None
    foreign: bool
    rows: Generation
    http: HttpAddress | None


def find_target(
    where: str | None, config: Sequence[Path], dialect: str | None, server_name: str | None
) -> TailTarget:
    """Find the server that the command line names.

    :param where: HOST:PORT, which overrides the configuration's address
    :raises ConfigError: the configuration is invalid, or names no server
    """
    if not config:
        if where is None:
            raise click.UsageError("name a master: HOST:PORT, or a configuration with -c")
        endpoint = ListenerEndpoint(
            *host_and_port(where), CLIENT_DIALECTS[dialect or "auto"], server_name
        )
        return TailTarget(endpoint, endpoint.dialect, None, True, Generation.MODERN, None)
    loaded = load(config)
    known = catalogue(loaded)
    foreign = isinstance(loaded, WorkerConfig) and loaded.master.foreign
    try:
        http = master_http(loaded)
    except (NoHttpListener, AnyPort):
        http = None
    if where is None and loaded.redis is not None and _follows_redis(loaded):
        if dialect is not None:
            raise OnlyOneDialect()
        names = tuple(stream.name for stream in known)
        channels = RedisEndpoint(loaded.redis, server_name or loaded.server_name, names)
        return TailTarget(channels, CURRENT, known, foreign, Generation.CURRENT, http)
    endpoint = _listener(loaded, where, dialect, server_name or loaded.server_name)
    return TailTarget(endpoint, endpoint.dialect, known, foreign, _rows(loaded), http)


def _follows_redis(config: MasterConfig | WorkerConfig) -> bool:
    """Whether to follow over Redis: a worker does; a master only without listeners."""
    return isinstance(config, WorkerConfig) or not config.listeners


def _rows(config: MasterConfig | WorkerConfig) -> Generation:
    if isinstance(config, MasterConfig) and config.listeners:
        return config.listeners[0].generation
    return Generation.MODERN


def _listener(
    config: MasterConfig | WorkerConfig,
    where: str | None,
    dialect: str | None,
    server_name: str,
) -> ListenerEndpoint:
    """The address given, otherwise a worker's master or a master's first listener."""
    if isinstance(config, WorkerConfig):
        chosen_dialect = CLIENT_DIALECTS[dialect or config.dialect]
        host, port = config.master.host, config.master.port
    else:
        chosen_dialect = CLIENT_DIALECTS[dialect or "auto"]
        host, port = _first(config, where)
    if where is not None:
        host, port = host_and_port(where)
    return ListenerEndpoint(host, port, chosen_dialect, server_name)


def _first(config: MasterConfig, where: str | None) -> tuple[str, int]:
    """The address of the first listener; a placeholder if ``where`` overrides it."""
    if where is not None:
        return LOOPBACK, 0
    if not config.listeners:
        raise NoListener()
    first = config.listeners[0]
    if first.port == 0:
        raise AnyPort(key="listeners", option="HOST:PORT")
    return reachable(first.bind_address), first.port
