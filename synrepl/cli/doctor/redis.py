"""Checks that the Redis of a configuration can be reached from this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.errors import Unavailable
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.redis_pubsub import redis_location


@dataclass(frozen=True, slots=True)
class RedisReach:
    """The result of an attempt to reach Redis.

    :ivar where: its address
    :ivar reason: why it could not be reached; None if it could
    """

    where: str
    reason: str | None


async def reach(reactor: Any, redis: RedisConfig, channel: str) -> RedisReach:
    """Connect for subscribing and for publishing, and disconnect; nothing is published."""
    where = redis_location(redis)
    from synrepl.cli.tap.redis import TapLink

    link = TapLink(reactor, TwistedScheduler(reactor), where)
    try:
        await link.listen([channel], lambda messages: None)
        await link.publisher()
    except Unavailable as error:
        return RedisReach(redis.where, str(error).rstrip("."))
    finally:
        await link.close()
    return RedisReach(redis.where, None)
