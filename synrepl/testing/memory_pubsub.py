"""A process's place on a Redis in memory.

What ``synrepl.adapters.redis.pubsub.RedisPubSub`` is on a real one: a connection
that listens and one that speaks, which stand and fall together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from synrepl.core.clock import Clock
from synrepl.core.retry import BackOff, RandomSource, Retry
from synrepl.testing.links import AT_ONCE, Pace
from synrepl.testing.memory_redis import MemoryConnectionPair, MemoryRedis

_BACK_OFF = BackOff(0.1, 10.0)


class MemoryPubSubOwner(Protocol):
    """Who hears and speaks; see ``synrepl.services.bus.bus.Bus``."""

    def connected(self, wires: MemoryBusConnections) -> None: ...

    def messages_received(self, messages: Sequence[bytes]) -> None: ...

    def disconnected(self) -> None: ...


class MemoryBusConnections:
    """What a process does with its connections; see ``synrepl.services.bus.bus_publisher.BusConnections``.

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
        """It takes anything."""

    def pause(self) -> None:
        """Listen no more for now."""
        self._connections.read(False)

    def resume(self) -> None:
        """Listen again."""
        self._connections.read(True)

    def close(self, why: str) -> None:
        """End the connections; they come back by themselves."""
        self._give_up(why)


class MemoryPubSub:
    """One process's connections: made again and again, from :meth:`start` to :meth:`stop`.

    :param clock: of the process; what its connections do goes by the server's
    :param name: who says what is said, for ``MemoryRedis.published``; behind a dot comes
        the number of the connection
    :param channels: what to subscribe to
    :param splits: others may be heard amid what is said at once, as happens where a server
        reads a part of it
    :param random: source of the jitter between attempts to connect; without it, there is none
    :ivar connections: how often both have stood
    :ivar cut_off: not counted here
    :ivar fault: not told here
    """

    def __init__(
        self,
        redis: MemoryRedis,
        clock: Clock,
        name: str,
        channels: Collection[str],
        owner: MemoryPubSubOwner,
        pace: Pace = AT_ONCE,
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
        self._now: MemoryConnectionPair | None = None
        self._standing = False

    def start(self) -> None:
        """Begin to connect."""
        self._running = True
        self._clock.callLater(self._pace.delay(), self._connect)

    async def stop(self) -> None:
        """Close the connections once what was said is written, and do not come back."""
        if self._now is not None:
            self._drop(self._now.speaker.waiting)
        self._running = False

    # -- what may happen to it ---------------------------------------------------------------

    @property
    def under_way(self) -> int:
        """How much is on its way: messages to it, or what it has said at once."""
        now = self._now
        return 0 if now is None else max(now.listener.waiting, now.speaker.waiting)

    def cut_listener(self, first: int = 0) -> None:
        """Lose the listening connection; see :meth:`MemoryConnectionPair.cut_listener`."""
        if self._now is not None:
            self._now.cut_listener("the connection was cut", first)

    def cut_speaker(self, first: int = 0) -> None:
        """Lose the speaking connection; see :meth:`MemoryConnectionPair.cut_speaker`."""
        if self._now is not None:
            self._now.cut_speaker("the connection was cut", first)

    def stall(self, stalled: bool) -> None:
        """The process does not read what it hears, or does so again."""
        if self._now is not None:
            self._now.stall(stalled)

    def silence(self, silent: bool) -> None:
        """Nothing of the present connections gets through, or does so again."""
        if self._now is not None:
            self._now.silence(silent)

    def reach(self, reachable: bool) -> None:
        """Whether the process can make connections; those that it has notice nothing."""
        self.reachable = reachable

    def crash(self, first: int = 0) -> None:
        """The process is gone; the ``first`` things that it has said still arrive."""
        self._running = False
        self._standing = False
        if self._now is not None:
            self._now.close(first)
            self._now = None

    # -- its life ---------------------------------------------------------------------------

    def _connect(self) -> None:
        if not self._running:
            return
        if not (self._redis.up and self.reachable):
            self._come_back()
            return
        self._tries += 1
        name = f"{self.name}.{self._tries}"
        self._now = now = MemoryConnectionPair(
            self._redis, name, self._channels, self._pace, self._heard, self._lost
        )
        self._redis.join(now)  # from now on it is heard, and nobody listens before it speaks, too
        self._clock.callLater(self._pace.delay(), self._stand, now)

    def _stand(self, now: MemoryConnectionPair) -> None:
        if now is self._now and self._running:
            self.connections += 1
            self._retry.succeeded()
            self._standing = True
            give_up = partial(self._give_up, now)
            self._owner.connected(MemoryBusConnections(now, give_up, self._splits))

    def _heard(self, messages: list[bytes]) -> None:
        if self._standing:
            self._owner.messages_received(messages)

    def _give_up(self, now: MemoryConnectionPair, why: str) -> None:
        self._redis.clock.callLater(0, self._lost, now, why)

    def _lost(self, now: MemoryConnectionPair, why: str) -> None:
        if now is self._now:
            self._drop()
            self._come_back()

    def _drop(self, first: int = 0) -> None:
        """Close both, whichever was lost, and tell the owner."""
        if self._now is not None:
            self._now.close(first)
            self._now = None
        if self._standing:
            self._standing = False
            self._owner.disconnected()

    def _come_back(self) -> None:
        self._clock.callLater(self._retry.failed(), self._connect)
