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
    """For messages that are no commands: they are nobody's rows."""

    def info(self, format: str, **facts: object) -> None:  # noqa: A002
        """Nothing."""

    def warn(self, format: str, **facts: object) -> None:  # noqa: A002
        """Nothing."""


class RedisTail:
    """A connection that listens and one that asks; when either is lost, both are over.

    A :class:`~synrepl.cli.raw_peer.RawUpstream`.

    :param where: of the Redis, for a person
    """

    def __init__(self, scheduler: Scheduler, where: str, channels: Channels) -> None:
        self._channels = channels
        self._hearing = BusReader("", _NoLog())  # nothing on the channel has that for its author
        self._listener = RedisSubscriber(scheduler, self._heard)
        self._speaker = RedisPublisher(scheduler)
        self._inbox = CommandInbox(self._listener.pause_reading, self._listener.resume_reading)
        self._ended: str | None = None
        self.address = f"{where}, channel {printable(channels.main)}"
        for link in (self._listener, self._speaker):
            link.gone.addCallback(self._end)

    @property
    def greeted(self) -> bool:
        """Nobody greets there: the subscription stands."""
        return True

    async def connect(self, reactor: Any, server: RedisAddress, streams: Collection[str]) -> None:
        """Subscribe, and make ready to ask.

        :raises RedisAway: it cannot be reached, or refuses
        """
        await self._listener.connect(reactor, server)
        await self._listener.listen(self._channels.subscriptions(streams, user_ip=False), server)
        await self._speaker.connect(reactor, server)
        self._speaker.begin()

    def send(self, command: Command) -> None:
        """Say something to all."""
        line = write_line(command, CURRENT)
        self._speaker.publish_all(self._channels.of_command(command), [line])

    async def commands(self) -> list[Command]:
        """What was said since the last call, waiting for it; nothing once it is over."""
        return await self._inbox.take()

    def close(self, reason: CloseReason) -> None:
        """End both connections."""
        self._end("closed")

    @property
    def reason(self) -> str:
        """Why it is over."""
        return printable((self._ended or "the connection is lost").rstrip("."))

    def refusal(self) -> SynreplError | None:
        """None: Redis may do better the next time."""
        return None

    def _heard(self, messages: Sequence[bytes]) -> None:
        """Keep commands, but for what asks."""
        commands = self._hearing.commands(messages)
        self._inbox.put([each for each in commands if not isinstance(each, Replicate)])

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._listener.abort(why)
            self._speaker.abort(why)
            self._inbox.end()


async def connect_to_redis(
    reactor: Any,
    scheduler: Scheduler,
    where: RedisAddress | Sentinels,
    server_name: str,
    per_stream: bool,
    streams: Collection[str],
) -> RedisTail:
    """Connect once.

    :param per_stream: streams have channels of their own
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
