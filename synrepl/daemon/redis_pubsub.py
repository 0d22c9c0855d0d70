"""Makes the connections to Redis from a configuration or a command line.

The adapters are imported in the functions: importing txredisapi installs Twisted's default
reactor, which would break ``twistd --reactor`` and is not needed without Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from synrepl.core.clock import Scheduler
from synrepl.core.log import Logger
from synrepl.daemon.config.config import Config
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.process_bus import ConnectToBus

if TYPE_CHECKING:
    from synrepl.adapters.redis.address import RedisAddress
    from synrepl.adapters.redis.pubsub import RedisPubSub, RedisPubSubOwner
    from synrepl.adapters.redis.sentinel import Sentinels


def bus_connector(
    reactor: Any, scheduler: Scheduler, config: Config, log: Logger
) -> ConnectToBus | None:
    """A function that makes a process's connections to Redis; None if Redis is not configured."""
    redis = config.redis
    if redis is None:
        return None
    return lambda channels, bus: make_pubsub(
        reactor, scheduler, redis, channels, bus, log.info, warn=log.warn
    )


def make_pubsub(
    reactor: Any,
    scheduler: Scheduler,
    redis: RedisConfig,
    channels: Collection[str],
    owner: RedisPubSubOwner,
    log: Callable[..., object],
    must_be_master: bool = False,
    warn: Callable[..., object] | None = None,
) -> RedisPubSub:
    """Make the connections to a Redis server, without starting them.

    :param channels: names of the channels to subscribe to
    :param owner: receives messages, and may publish
    :param log: logs (format, fields) connections made and lost
    :param must_be_master: refuse a replica; requires the right to run ``ROLE``
    :param warn: logs connections that ended because one side did not read; None for ``log``
    """
    where = redis_location(redis, must_be_master)
    from synrepl.adapters.redis.pubsub import RedisPubSub

    return RedisPubSub(reactor, scheduler, where, list(channels), owner, log, warn)


def redis_location(redis: RedisConfig, must_be_master: bool = False) -> RedisAddress | Sentinels:
    """The address of the server, or the sentinels that know it.

    :param must_be_master: see :func:`make_pubsub`
    """
    from synrepl.adapters.redis.address import RedisAddress
    from synrepl.adapters.redis.sentinel import Sentinels

    server = RedisAddress(
        host=redis.host,
        port=redis.port,
        path=redis.path,
        username=redis.username,
        password=_revealed(redis.password),
        database=redis.database,
        tls=redis.tls,
        ca_file=redis.ca_file,
        must_be_master=must_be_master,
    )
    if redis.service is None:
        return server
    password = _revealed(redis.sentinel_password)
    sentinels = [
        RedisAddress(
            host=at.host, port=at.port, password=password, tls=redis.tls, ca_file=redis.ca_file
        )
        for at in redis.sentinels
    ]
    return Sentinels(sentinels, redis.service, server)


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()
