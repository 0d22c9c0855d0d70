"""A process's connections to the in-memory Redis.

The counterpart of ``synrepl.adapters.redis.pubsub.RedisPubSub``: a subscribing and a
publishing connection. If one ends, so does the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from synrepl.core.clock import Clock
from synrepl.core.retry import BackOff, RandomSource, Retry
from synrepl.testing.links import IMMEDIATE, Pace
from synrepl.testing.memory_redis import MemoryConnectionPair, MemoryRedis

_BACK_OFF = BackOff(0.1, 10.0)


class MemoryPubSubOwner(Protocol):
    """Receives messages, and publishes; see ``synrepl.services.bus.bus.Bus``."""

    def connected(self, connections: MemoryBusConnections) -> None: ...

    def messages_received(self, messages: Sequence[bytes]) -> None: ...

    def disconnected(self) -> None: ...


class MemoryBusConnections:
    """Implements ``synrepl.services.bus.bus_publisher.BusConnections``.

    :param splits: see :class:`MemoryPubSub`
    """

    def __init__(
        self, connections: MemoryConnectionPair, give_up: Callable[[str], object], splits: bool
    ) -> None:
        self._connections = connections
        self._give_up = give_up
        self._splits = splits

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, one message each, in order."""
        if self._connections.open:
            whole = [[line] for line in lines] if self._splits else [list(lines)]
            self._connections.speaker.put((channel, part) for part in whole)

    full = False

    async def room(self) -> None:
        """Return at once: there is always room."""

    def pause(self) -> None:
        """Stop reading messages."""
        self._connections.read(False)

    def resume(self) -> None:
        """Resume reading messages."""
        self._connections.read(True)

    def close(self, why: str) -> None:
        """Close the connections; new ones are made."""
        self._give_up(why)


class MemoryPubSub:
    """One process's connections; reconnects, from :meth:`start` to :meth:`stop`.

    :param clock: the clock of the process; its connections use that of the server
    :param name: name of the publisher, for ``MemoryRedis.published``; it is followed by a
        dot and the number of the connection
    :param channels: names of the channels to subscribe to
    :param splits: messages of others may come between those published together, as happens
        when a server reads them in parts
    :param random: source of the jitter between attempts to connect; by default, there is none
    :ivar connections: how often both connections were made
    :ivar cut_off: always 0: not counted here
    :ivar fault: always None: not reported here
    """

    def __init__(
        self,
        redis: MemoryRedis,
        clock: Clock,
        name: str,
        channels: Collection[str],
        owner: MemoryPubSubOwner,
        pace: Pace = IMMEDIATE,
        splits: bool = False,
        random: RandomSource = lambda: 0.0,
    ) -> None:
        self.name = name
        self._splits = splits
        self.connections = 0
        self.cut_off = 0
        self.fault: str | None = None
        self.reachable = True
        self._redis = redis
        self._clock = clock
        self._channels = channels
        self._owner = owner
        self._pace = pace
        self._running = False
        self._retry = Retry(_BACK_OFF, random)
        self._tries = 0
        self._pair: MemoryConnectionPair | None = None
        self._is_connected = False

    def start(self) -> None:
        """Begin to connect."""
        self._running = True
        self._clock.callLater(self._pace.delay(), self._connect)

    async def stop(self) -> None:
        """Close the connections once pending messages are written, and do not reconnect."""
        if self._pair is not None:
            self._drop(self._pair.speaker.waiting)
        self._running = False

    # -- faults ------------------------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """Number of items in flight: the larger one of messages received and of chunks published."""
        pair = self._pair
        return 0 if pair is None else max(pair.listener.waiting, pair.speaker.waiting)

    def cut_listener(self, first: int = 0) -> None:
        """Cut the subscribing connection; see :meth:`MemoryConnectionPair.cut_listener`."""
        if self._pair is not None:
            self._pair.cut_listener("the connection was cut", first)

    def cut_speaker(self, first: int = 0) -> None:
        """Cut the publishing connection; see :meth:`MemoryConnectionPair.cut_speaker`."""
        if self._pair is not None:
            self._pair.cut_speaker("the connection was cut", first)

    def stall(self, stalled: bool) -> None:
        """Stop reading messages, or resume."""
        if self._pair is not None:
            self._pair.stall(stalled)

    def silence(self, silent: bool) -> None:
        """Let nothing of the present connections get through, or let it again."""
        if self._pair is not None:
            self._pair.silence(silent)

    def reach(self, reachable: bool) -> None:
        """Set whether the process can make new connections; present ones are not affected."""
        self.reachable = reachable

    def crash(self, first: int = 0) -> None:
        """End the process; the ``first`` chunks that it has published still arrive."""
        self._running = False
        self._is_connected = False
        if self._pair is not None:
            self._pair.close(first)
            self._pair = None

    # -- connecting -------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self._running:
            return
        if not (self._redis.up and self.reachable):
            self._reconnect()
            return
        self._tries += 1
        name = f"{self.name}.{self._tries}"
        self._pair = pair = MemoryConnectionPair(
            self._redis, name, self._channels, self._pace, self._messages_received, self._lost
        )
        self._redis.join(
            pair
        )  # it receives from now on, before it can publish, as over the real one
        self._clock.callLater(self._pace.delay(), self._connected, pair)

    def _connected(self, pair: MemoryConnectionPair) -> None:
        if pair is self._pair and self._running:
            self.connections += 1
            self._retry.succeeded()
            self._is_connected = True
            give_up = partial(self._give_up, pair)
            self._owner.connected(MemoryBusConnections(pair, give_up, self._splits))

    def _messages_received(self, messages: list[bytes]) -> None:
        if self._is_connected:
            self._owner.messages_received(messages)

    def _give_up(self, pair: MemoryConnectionPair, why: str) -> None:
        self._redis.clock.callLater(0, self._lost, pair, why)

    def _lost(self, pair: MemoryConnectionPair, why: str) -> None:
        if pair is self._pair:
            self._drop()
            self._reconnect()

    def _drop(self, first: int = 0) -> None:
        """Close both connections, and notify the owner."""
        if self._pair is not None:
            self._pair.close(first)
            self._pair = None
        if self._is_connected:
            self._is_connected = False
            self._owner.disconnected()

    def _reconnect(self) -> None:
        self._clock.callLater(self._retry.failed(), self._connect)
