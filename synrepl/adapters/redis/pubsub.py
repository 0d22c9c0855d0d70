"""Redis pub/sub for the bus: a subscriber and a publisher that connect together.

When one of the two connections is lost, the other one is closed too, because messages
may have been lost. The new start (subscription, REPLICATE, POSITIONs) makes every loss
visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from typing import Protocol as Interface

from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.logger import Logger
from twisted.python.failure import Failure

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.connection import (
    RedisAway,
    RedisConnection,
    RedisPublisher,
    RedisSubscriber,
)
from synrepl.adapters.redis.sentinel import Sentinels
from synrepl.core.clock import Scheduler
from synrepl.core.retry import BackOff, Retry

#: Connections that lasted for this many seconds reset the back-off.
STEADY_S = 10.0

_BACK_OFF = BackOff(0.1, 10.0)


class RedisPubSubOwner(Interface):
    """Receives messages, and publishes; see ``synrepl.services.bus.bus.Bus``."""

    def connected(self, connections: RedisBusConnections) -> None: ...

    def messages_received(self, messages: Sequence[bytes]) -> None: ...

    def disconnected(self) -> None: ...


class RedisBusConnections:
    """Both connections while they last; see ``synrepl.services.bus.bus_publisher.BusConnections``."""

    def __init__(self, subscriber: RedisSubscriber, publisher: RedisPublisher) -> None:
        self._subscriber = subscriber
        self._publisher = publisher

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines in order, one message each."""
        self._publisher.publish_all(channel, lines)

    @property
    def full(self) -> bool:
        """Whether the publishing connection has no room for more."""
        return self._publisher.full

    async def room(self) -> None:
        """Wait until there is room for more, or the connections are lost."""
        await self._publisher.room()

    def pause(self) -> None:
        """Stop reading messages."""
        self._subscriber.pause_reading()

    def resume(self) -> None:
        """Resume reading messages."""
        self._subscriber.resume_reading()

    def close(self, why: str) -> None:
        """Close the connections; new ones are made."""
        self._subscriber.abort(why)


class RedisPubSub:
    """Connects and reconnects, from :meth:`start` to :meth:`stop`.

    :param address: the server, or its sentinels
    :param channels: names of the channels to subscribe to
    :param log: logs (format, fields) connections made and lost
    :param warn: likewise, when the connections end because one side did not read
    :ivar connections: how often both connections were made
    :ivar cut_off: how often they ended because one side did not read
    :ivar fault: why there are no connections now; None while there are
    """

    _logger = Logger()

    def __init__(
        self,
        reactor: Any,
        scheduler: Scheduler,
        address: RedisAddress | Sentinels,
        channels: Sequence[str],
        owner: RedisPubSubOwner,
        log: Callable[..., object],
        warn: Callable[..., object] | None = None,
    ) -> None:
        self._warn = log if warn is None else warn
        self._reactor = reactor
        self._scheduler = scheduler
        self._address = address
        self._channels = list(channels)
        self._owner = owner
        self._log = log
        self._links: tuple[RedisConnection, ...] = ()
        self._is_connected = False
        self._stopping = False
        self._running: Deferred[None] | None = None
        self.connections = 0
        self.cut_off = 0
        self.fault: str | None = "not connected yet"

    def start(self) -> None:
        """Begin to connect; retries until :meth:`stop`. To be called once.

        :raises ConfigError: the address can never work
        """
        self._address.check(self._reactor)
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    async def stop(self) -> None:
        """Close the connections once pending messages are written, and do not reconnect.

        Takes at most as long as the heartbeat needs to notice a silent server.
        """
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await self._running
            await gatherResults([link.gone for link in self._links if link.connected])

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._logger.failure("the bus on Redis is no longer reconnected", failure=failure)

    async def _run(self) -> None:
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while not self._stopping:
            began = self._scheduler.seconds()
            try:
                self.fault = await self._connect_once()
            except RedisAway as error:
                self.fault = str(error.facts["reason"])
            if self._stopping:  # some endpoints turn a cancellation into an ordinary failure
                return
            if any(link.too_slow for link in self._links):
                self.cut_off += 1
                self._warn(
                    "CUT OFF FROM REDIS at {where}: {why}", where=self._address, why=self.fault
                )
            else:
                self._log("no bus on Redis at {where}: {why}", where=self._address, why=self.fault)
            if self._scheduler.seconds() - began > STEADY_S:
                retry.succeeded()
            await self._scheduler.sleep(retry.failed())

    async def _connect_once(self) -> str:
        """Make both connections, and wait until one is lost.

        :returns: the reason
        :raises RedisAway: they could not be made
        """
        subscriber = RedisSubscriber(self._scheduler, self._messages_received)
        publisher = RedisPublisher(self._scheduler)
        lost: Deferred[str] = Deferred()
        for link in (subscriber, publisher):
            link.gone.addCallback(lambda why: None if lost.called else lost.callback(why))
        self._links = (subscriber, publisher)
        try:
            # Looked up once for both, so that they use the same server during a failover.
            server = await self._address.find(self._reactor, self._scheduler)
            await subscriber.connect(self._reactor, server)
            await subscriber.listen(self._channels, server)
            await publisher.connect(self._reactor, server)
            publisher.begin()
            self._connected(RedisBusConnections(subscriber, publisher))
            return await lost
        finally:
            if self._is_connected:
                self._is_connected = False
                self._owner.disconnected()
            subscriber.abort("closed")
            if self._stopping:
                publisher.end()
            else:
                publisher.abort("closed")

    def _connected(self, connections: RedisBusConnections) -> None:
        self.connections += 1
        self.fault = None
        self._is_connected = True
        self._log("the bus on Redis at {where} stands", where=self._address)
        self._owner.connected(connections)

    def _messages_received(self, messages: Sequence[bytes]) -> None:
        # Messages from before both are connected can be ignored: REPLICATE asks for all positions.
        if self._is_connected:
            self._owner.messages_received(messages)
