"""Connections to Redis for ``synrepl tap``: opened once; a lost one is not re-established."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.connection import RedisPublisher, RedisSubscriber
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.core.clock import Scheduler
from synrepl.tools.tap.recorders import Published

OnMessages = Callable[[Sequence[Published]], object]


class TapSubscriber(RedisSubscriber):
    """A subscriber that passes on each message with its channel."""

    def __init__(self, scheduler: Scheduler, on_messages: OnMessages) -> None:
        super().__init__(scheduler, self._dispatch)
        self._on_messages = on_messages
        self._channels: list[bytes] = []

    def messageReceived(self, pattern: bytes | None, channel: bytes, message: bytes) -> None:
        """Queue a message, and its channel, until the whole read is parsed."""
        self._channels.append(channel)
        super().messageReceived(pattern, channel, message)

    def _dispatch(self, messages: Sequence[bytes]) -> None:
        channels, self._channels = self._channels, []
        self._on_messages(
            [
                Published(channel.decode(errors="replace"), message)
                for channel, message in zip(channels, messages, strict=True)
            ]
        )


class TapPublisher(RedisPublisher):
    """A publisher that waits until Redis acknowledges its messages."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._unacknowledged = 0
        self._waiting: list[Deferred[bool]] = []

    async def publish_some(self, channel: str, lines: Sequence[bytes]) -> bool:
        """Publish lines at once; return True when all are acknowledged, False if they never will be."""
        if not self.connected:
            return False
        self._unacknowledged += len(lines)
        self.publish_all(channel, lines)
        if not self._unacknowledged:
            return True
        acknowledged: Deferred[bool] = Deferred()
        self._waiting.append(acknowledged)
        return await acknowledged

    def replyReceived(self, reply: object) -> None:
        """Count an acknowledgement: the reply to PUBLISH is the number of receivers."""
        super().replyReceived(reply)
        if isinstance(reply, int) and self._unacknowledged:
            self._unacknowledged -= 1
            if not self._unacknowledged:
                self._wake(True)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Wake up publishers: nothing more will be acknowledged."""
        super().connectionLost(reason)
        self._wake(False)

    def _wake(self, acknowledged: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for deferred in waiting:
            deferred.callback(acknowledged)


class TapLink:
    """A subscriber and, on request, a publisher, on the same Redis server."""

    def __init__(self, reactor: Any, scheduler: Scheduler, where: RedisAddress | Sentinels) -> None:
        self._reactor = reactor
        self._scheduler = scheduler
        self._where = where
        self._server: RedisAddress | None = None
        self._links: list[TapSubscriber | TapPublisher] = []
        self._over: Deferred[str | None] = Deferred()

    @property
    def is_over(self) -> bool:
        """Whether a connection was lost or :meth:`end` was called."""
        return bool(self._over.called)

    async def listen(self, channels: Sequence[str], on_messages: OnMessages) -> None:
        """Subscribe; return once the subscription is established.

        :raises RedisAway: Redis cannot be reached, or refuses
        """
        listener = TapSubscriber(self._scheduler, on_messages)
        await listener.listen(channels, await self._connect(listener))

    async def publisher(self) -> TapPublisher:
        """Connect a publisher.

        :raises RedisAway: Redis cannot be reached, or refuses
        """
        publisher = TapPublisher(self._scheduler)
        await self._connect(publisher)
        publisher.begin()
        return publisher

    async def until_over(self, seconds: float | None = None) -> str | None:
        """Wait until a connection is lost and return why; None after :meth:`end` or ``seconds``."""
        ending = None if seconds is None else self._scheduler.callLater(seconds, self.end)
        try:
            return await self._over
        finally:
            if ending is not None and ending.active():
                ending.cancel()

    def end(self, why: str | None = None) -> None:
        """End :meth:`until_over`."""
        if not self._over.called:
            self._over.callback(why)

    async def close(self) -> None:
        """Close the connections, once everything published is written."""
        for link in self._links:
            if isinstance(link, TapPublisher):
                link.end()
            else:
                link.abort("closed")
        await gatherResults([link.gone for link in self._links if link.connected])

    async def _connect(self, link: TapSubscriber | TapPublisher) -> RedisAddress:
        self._links.append(link)
        link.gone.addCallback(self.end)
        if self._server is None:  # once: both must use the same server
            self._server = await self._where.find(self._reactor, self._scheduler)
        await link.connect(self._reactor, self._server)
        return self._server
