"""In-memory Redis pub/sub: at-most-once delivery over connections that can be cut, muted or too slow.

:class:`MemoryRedis` is the server; processes connect through
:class:`synrepl.testing.memory_pubsub.MemoryPubSub`. One contract suite runs against
these and against a real ``redis-server``.

Messages move only when the given clock advances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, TypeVar

from synrepl.core.clock import Clock, DelayedCall
from synrepl.testing.links import Pace

T = TypeVar("T")

#: Bytes that may wait for a subscriber before it is disconnected: Redis's own default.
BUFFER_BYTES = 32 * 2**20

#: Seconds of silence after which a process aborts a connection, as the adapter does.
SILENCE_S = 10.0


class MemoryPipe(Generic[T]):
    """One direction of a connection: a queue whose items arrive at a given pace.

    :ivar moves: returns whether anything gets through, and the other side reads
    """

    def __init__(self, clock: Clock, pace: Pace, arrived: Callable[[list[T]], object]) -> None:
        self._clock = clock
        self._pace = pace
        self._arrived = arrived
        self._waiting: deque[T] = deque()
        self._arrival: DelayedCall | None = None
        self.moves: Callable[[], bool] = lambda: True

    @property
    def waiting(self) -> int:
        """Number of items in flight."""
        return len(self._waiting)

    def put(self, items: Iterable[T]) -> None:
        """Send items."""
        self._waiting.extend(items)
        self.move()

    def arrive(self, count: int) -> None:
        """Deliver the first ``count`` items now."""
        count = min(count, len(self._waiting))
        if count:
            self._arrived([self._waiting.popleft() for _ in range(count)])

    def move(self) -> None:
        """Schedule the next delivery, if anything waits."""
        if self._waiting and self._arrival is None and self.moves():
            self._arrival = self._clock.callLater(self._pace.delay(), self._move)

    def cut(self) -> None:
        """Lose all items in flight."""
        self._waiting.clear()
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _move(self) -> None:
        self._arrival = None
        if self.moves() and self._waiting:
            self.arrive(self._pace.piece(len(self._waiting)))
            self.move()


class MemoryConnectionPair:
    """The subscribing and the publishing connection of one process, while they last.

    :param on_lost: called with the reason when the process notices that one of them is lost
    """

    def __init__(
        self,
        redis: MemoryRedis,
        name: str,
        channels: Collection[str],
        pace: Pace,
        on_messages: Callable[[list[bytes]], object],
        on_lost: Callable[[MemoryConnectionPair, str], object],
    ) -> None:
        self.name = name
        self.channels = frozenset(channels)
        self.reads = True
        self.stalled = False
        self.passes = True
        self.open = True
        self.subscribed = True
        self.can_send = True
        self._silent_since = 0.0
        self._redis = redis
        self._clock = redis.clock
        self._pace = pace
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._ending: str | None = None
        self._bytes = 0
        self.listener: MemoryPipe[bytes] = MemoryPipe(self._clock, pace, self._arrived)
        self.listener.moves = lambda: self._reading and self.passes
        self.speaker: MemoryPipe[tuple[str, Sequence[bytes]]] = MemoryPipe(
            self._clock, pace, self._publish
        )
        self.speaker.moves = lambda: self.can_send and self.passes

    def deliver(self, message: bytes) -> None:
        """Queue a message at the server; with too many bytes queued, disconnect the subscriber."""
        self._bytes += len(message)
        if self._bytes > self._redis.buffer_bytes:
            self._redis.cut_off += 1
            self.cut_listener("the server closed the connection")
        else:
            self.listener.put([message])

    def cut_listener(self, why: str, first: int = 0) -> None:
        """Cut the subscribing connection; the ``first`` messages in flight still arrive.

        A process that does not read notices when it reads again.
        """
        self.subscribed = False
        if self._reading:
            self.listener.arrive(first)
        self.listener.cut()
        self._end(why)

    def cut_speaker(self, why: str, first: int = 0) -> None:
        """Cut the publishing connection; the ``first`` items in flight still arrive."""
        if self.can_send:
            self.speaker.arrive(first)
            self.speaker.cut()
            self.can_send = False
            self._clock.callLater(self._pace.delay(), self._lose, why)

    def close(self, first: int = 0) -> None:
        """Close both connections without calling ``on_lost``; ``first`` published items still arrive."""
        if self.open:
            if self.speaker.moves():
                self.speaker.arrive(first)
            self.open = False
            self._redis.leave(self)
            self.listener.cut()
            self.speaker.cut()

    def read(self, reads: bool) -> None:
        """Resume or stop reading."""
        self.reads = reads
        self._move_on()

    def stall(self, stalled: bool) -> None:
        """Stall the process, or end the stall; a stalled process reads nothing."""
        self.stalled = stalled
        self._move_on()

    def silence(self, silent: bool) -> None:
        """Drop off the network without either side noticing, or come back."""
        self.passes = not silent
        if silent:
            self._silent_since = self._clock.seconds()
            self._clock.callLater(SILENCE_S, self._silent, self._silent_since)
        else:
            self.listener.move()
            self.speaker.move()

    def _silent(self, since: float) -> None:
        if not self.passes and since == self._silent_since:
            self._lose(f"nothing was heard for {SILENCE_S:g} s")

    @property
    def _reading(self) -> bool:
        return self.reads and not self.stalled

    def _move_on(self) -> None:
        if self._ending is not None:
            self._end(self._ending)
        self.listener.move()

    def _end(self, why: str) -> None:
        self._ending = why
        if self._reading:
            self._clock.callLater(self._pace.delay(), self._lose, why)

    def _lose(self, why: str) -> None:
        if self.open:
            self._on_lost(self, why)

    def _arrived(self, messages: list[bytes]) -> None:
        self._bytes -= sum(map(len, messages))
        self._on_messages(messages)

    def _publish(self, said: list[tuple[str, Sequence[bytes]]]) -> None:
        for channel, messages in said:
            for message in messages:
                self._redis.publish(self.name, channel, message)


class MemoryRedis:
    """The server: it passes messages to the present subscribers, and stores nothing.

    :param buffer_bytes: maximum queued for one subscriber (``client-output-buffer-limit pubsub``)
    :ivar published: called with each message: name of the publisher, channel, message
    :ivar up: False while it is stopped
    :ivar cut_off: number of subscribers disconnected because they were too slow
    """

    def __init__(self, clock: Clock, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.clock = clock
        self.buffer_bytes = buffer_bytes
        self.published: Callable[[str, str, bytes], object] = lambda name, channel, message: None
        self.up = True
        self.cut_off = 0
        self._all: dict[MemoryConnectionPair, None] = {}

    def start(self) -> None:
        """Accept connections again."""
        self.up = True

    def stop(self) -> None:
        """Stop the server: all connections are lost, with everything in flight."""
        self.up = False
        for connections in list(self._all):
            connections.cut_speaker("the server is gone")
            connections.cut_listener("the server is gone")

    def join(self, connections: MemoryConnectionPair) -> None:
        """Add the connections of a process."""
        self._all[connections] = None

    def leave(self, connections: MemoryConnectionPair) -> None:
        """Remove the connections of a process."""
        self._all.pop(connections, None)

    def publish(self, name: str, channel: str, message: bytes) -> None:
        """Pass a message to the subscribers of its channel."""
        self.published(name, channel, message)
        for connections in list(self._all):
            if connections.subscribed and channel in connections.channels:
                connections.deliver(message)
