"""The bus over Redis: a connection that listens and one that speaks, which come back together.

Whichever of the two is lost, the other goes with it: what was being said may be
lost too, and a new beginning (subscription, REPLICATE, POSITIONs) is what makes
every loss visible.
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

#: Connections that stood for so many seconds do not count as a failure.
STEADY_S = 10.0

_BACK_OFF = BackOff(0.1, 10.0)


class RedisPubSubOwner(Interface):
    """Who hears and speaks; see ``synrepl.services.bus.bus.Bus``."""

    def connected(self, wires: RedisBusConnections) -> None: ...

    def messages_received(self, messages: Sequence[bytes]) -> None: ...

    def disconnected(self) -> None: ...


class RedisBusConnections:
    """Both connections, while they stand; see ``synrepl.services.bus.bus_publisher.BusConnections``."""

    def __init__(self, listener: RedisSubscriber, speaker: RedisPublisher) -> None:
        self._listener = listener
        self._speaker = speaker

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, one message each, in order."""
        self._speaker.publish_all(channel, lines)

    @property
    def full(self) -> bool:
        """True while the connection does not accept more."""
        return self._speaker.full

    async def room(self) -> None:
        """Wait until it accepts more, or the connections are lost."""
        await self._speaker.room()

    def pause(self) -> None:
        """Listen no more for now."""
        self._listener.pause_reading()

    def resume(self) -> None:
        """Listen again."""
        self._listener.resume_reading()

    def close(self, why: str) -> None:
        """End the connections; they come back by themselves."""
        self._listener.give_up(why)


class RedisPubSub:
    """Connects again and again, from :meth:`start` to :meth:`stop`.

    :param address: the server, or who knows where it is
    :param channels: what to subscribe to
    :param log: told (a sentence, its facts) about connections made and lost
    :param warn: told likewise when the connections end because one side did not read
    :ivar connections: how often both have stood
    :ivar cut_off: how often they have ended because one side did not read
    :ivar fault: why they do not stand now
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
        """Begin to connect; goes on trying until :meth:`stop`. Once.

        :raises ConfigError: no connection could ever be made like this
        """
        self._address.check(self._reactor)
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._ended)

    async def stop(self) -> None:
        """Close the connections, once what was said is written, and do not come back.

        Takes as long as a silent server is given, at most.
        """
        self._stopping = True
        if self._running is not None:
            self._running.cancel()
            await self._running
            await gatherResults([link.gone for link in self._links if link.connected])

    def _ended(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._logger.failure("the bus on Redis is no longer kept", failure=failure)

    async def _run(self) -> None:
        retry = Retry(_BACK_OFF, self._scheduler.random)
        while not self._stopping:
            began = self._scheduler.seconds()
            try:
                self.fault = await self._connect_once()
            except RedisAway as error:
                self.fault = str(error.facts["reason"])
            if self._stopping:  # some endpoints make an ordinary failure of being cancelled
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
        """Make both connections; returns when one is lost, with the reason.

        :raises RedisAway: they could not be made
        """
        listener = RedisSubscriber(self._scheduler, self._heard)
        speaker = RedisPublisher(self._scheduler)
        lost: Deferred[str] = Deferred()
        for link in (listener, speaker):
            link.gone.addCallback(lambda why: None if lost.called else lost.callback(why))
        self._links = (listener, speaker)
        try:
            # Once for both: at a change of masters they must not end up on two of them.
            server = await self._address.find(self._reactor, self._scheduler)
            await listener.connect(self._reactor, server)
            await listener.listen(self._channels, server)
            await speaker.connect(self._reactor, server)
            speaker.begin()
            self._connected(RedisBusConnections(listener, speaker))
            return await lost
        finally:
            if self._is_connected:
                self._is_connected = False
                self._owner.disconnected()
            listener.give_up("closed")
            if self._stopping:
                speaker.end()
            else:
                speaker.give_up("closed")

    def _connected(self, wires: RedisBusConnections) -> None:
        self.connections += 1
        self.fault = None
        self._is_connected = True
        self._log("the bus on Redis at {where} stands", where=self._address)
        self._owner.connected(wires)

    def _heard(self, messages: Sequence[bytes]) -> None:
        # What comes before both stand needs no ear: everybody will be asked again.
        if self._is_connected:
            self._owner.messages_received(messages)
