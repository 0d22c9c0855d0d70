"""The connections to Redis, from what a configuration or a command line says.

The adapters are imported where they are used: importing txredisapi installs Twisted's default
reactor, which ``twistd --reactor`` and processes without Redis must not find installed.
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
    """What makes a process's connections to Redis; None where it is not configured."""
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
    """The connections to a Redis, not started yet.

    :param channels: what to subscribe to
    :param owner: hears, and may speak
    :param log: told (a sentence, its facts) about connections made and lost
    :param must_be_master: a replica is refused, which needs the right to ask ``ROLE``
    :param warn: told when they end because one side did not read; None for ``log``
    """
    where = redis_location(redis, must_be_master)
    from synrepl.adapters.redis.pubsub import RedisPubSub

    return RedisPubSub(reactor, scheduler, where, list(channels), owner, log, warn)


def redis_location(redis: RedisConfig, must_be_master: bool = False) -> RedisAddress | Sentinels:
    """Where the server is, or who knows it.

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
