"""Follows a server over Redis for ``synrepl tail``: subscribes to its channels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.connection import RedisAway, RedisPublisher, RedisSubscriber
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.cli.raw_peer import CommandInbox, NoMaster
from synrepl.cli.terminal import printable
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.wire.closing import CloseReason
from synrepl.wire.codec import write_line
from synrepl.wire.commands import Command, Replicate
from synrepl.wire.dialects import CURRENT


class _NoLog(Logger):
    """Discards reports of messages that are not commands: they contain no rows."""

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Do nothing."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Do nothing."""


class RedisTail:
    """A subscriber and a publisher connection; when one is lost, both are closed.

    A :class:`~synrepl.cli.raw_peer.RawUpstream`.

    :param where: the address of the Redis server, for people
    """

    def __init__(self, scheduler: Scheduler, where: str, channels: Channels) -> None:
        self._channels = channels
        self._reader = BusReader("", _NoLog())  # no process on the channel has an empty name
        self._subscriber = RedisSubscriber(scheduler, self._messages_received)
        self._publisher = RedisPublisher(scheduler)
        self._inbox = CommandInbox(self._subscriber.pause_reading, self._subscriber.resume_reading)
        self._ended: str | None = None
        self.address = f"{where}, channel {printable(channels.main)}"
        for link in (self._subscriber, self._publisher):
            link.gone.addCallback(self._end)

    @property
    def has_greeted(self) -> bool:
        """True: there is no greeting on Redis, and the subscription is established."""
        return True

    async def connect(self, reactor: Any, server: RedisAddress, streams: Collection[str]) -> None:
        """Connect both, and subscribe.

        :raises RedisAway: Redis cannot be reached, or refuses
        """
        await self._subscriber.connect(reactor, server)
        await self._subscriber.listen(self._channels.subscriptions(streams, user_ip=False), server)
        await self._publisher.connect(reactor, server)
        self._publisher.begin()

    def send(self, command: Command) -> None:
        """Publish a command to all processes."""
        line = write_line(command, CURRENT)
        self._publisher.publish_all(self._channels.of_command(command), [line])

    async def commands(self) -> list[Command]:
        """As :meth:`.RawUpstream.commands`."""
        return await self._inbox.take()

    def close(self, reason: CloseReason) -> None:
        """Close both connections."""
        self._end("closed")

    @property
    def reason(self) -> str:
        """As :attr:`.RawUpstream.reason`."""
        return printable((self._ended or "the connection is lost").rstrip("."))

    def refusal(self) -> SynreplError | None:
        """None: a new connection to Redis may succeed."""
        return None

    def _messages_received(self, messages: Sequence[bytes]) -> None:
        """Queue commands, except REPLICATE."""
        commands = self._reader.commands(messages)
        self._inbox.put([command for command in commands if not isinstance(command, Replicate)])

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._subscriber.abort(why)
            self._publisher.abort(why)
            self._inbox.end()


async def connect_to_redis(
    reactor: Any,
    scheduler: Scheduler,
    where: RedisAddress | Sentinels,
    server_name: str,
    per_stream: bool,
    streams: Collection[str],
) -> RedisTail:
    """Connect to Redis, without retries.

    :param per_stream: whether each stream has its own channel
    :raises NoMaster: Redis cannot be reached, or refuses
    """
    tail = RedisTail(scheduler, f"Redis at {where}", Channels(server_name, per_stream))
    try:
        server = await where.find(reactor, scheduler)
        await tail.connect(reactor, server, streams)
    except RedisAway as error:
        tail.close(CloseReason.LOCAL)
        reason = str(error.facts["reason"]).rstrip(".")
        raise NoMaster(where=tail.address, reason=reason) from None
    return tail
