"""An in-memory pub/sub server: messages wait until a test delivers or loses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Token
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.process_bus import PubSubConnections
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.instance_guard import QUESTIONS
from synrepl.services.following.consumer import Subscription
from synrepl.services.handlers import Batch, Handler
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec
from tests.services.world import RecordingLog, done, manual_clock
from tests.support.workers import build_worker

NOTES = declare("notes", {"text": "text"})
OTHERS = declare("others", {"text": "text"})
CATALOGUE = Catalogue((NOTES, OTHERS))
CHANNELS = Channels("example.org")


class ManualPubSub:
    """Carries messages in two steps, like a server: from the sender, and to each subscriber.

    :ivar published: the messages that have left their sender, in order
    """

    def __init__(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = MemoryStore(self.scheduler)
        self.published: list[tuple[str, bytes]] = []
        self.wires: list[ManualConnections] = []

    def settle(self) -> None:
        """Deliver all messages."""
        self.clock.advance(0)
        while any(wires.leaving or wires.arriving for wires in self.wires):
            for wires in list(self.wires):
                wires.leave(len(wires.leaving))
                wires.arrive(len(wires.arriving))
            self.clock.advance(0)


class ManualConnections:
    """One process's connections."""

    def __init__(self, pubsub: ManualPubSub, channels: Iterable[str], bus: Bus) -> None:
        self.leaving: deque[tuple[str, bytes]] = deque()
        self.arriving: deque[bytes] = deque()
        self.paused = False
        self._pubsub = pubsub
        self._channels = frozenset(channels)
        self._bus = bus

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        assert self in self._pubsub.wires
        self.leaving.extend((channel, line) for line in lines)

    full = False

    async def room(self) -> None:
        assert self in self._pubsub.wires

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self, why: str) -> None:
        self.cut()

    def leave(self, count: int) -> None:
        """Move messages to the server, which queues them for all subscribers."""
        for _ in range(min(count, len(self.leaving))):
            channel, line = self.leaving.popleft()
            self._pubsub.published.append((channel, line))
            for wires in self._pubsub.wires:
                if channel in wires._channels:
                    wires.arriving.append(line)

    def arrive(self, count: int) -> None:
        """Deliver messages, as one read."""
        count = min(count, len(self.arriving))
        if count and not self.paused:
            self._bus.messages_received([self.arriving.popleft() for _ in range(count)])

    def cut(self) -> None:
        """Lose the connections, with all messages on their way."""
        if self in self._pubsub.wires:
            self._pubsub.wires.remove(self)
            self.leaving.clear()
            self.arriving.clear()
            self._bus.disconnected()


class RecordingHandler(Handler):
    """Records facts, by stream and writer."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], list[Fact]] = {}

    async def on_rows(self, batch: Batch) -> None:
        self.facts.setdefault((batch.stream, batch.writer), []).extend(batch.facts)


class ManualBusPort:
    """The connections of one assembled process, which tests lose and make again.

    :ivar bus: what uses them
    :ivar wires: the present ones, or the last
    """

    fault: str | None = None
    connections = 0
    cut_off = 0

    def __init__(self, pubsub: ManualPubSub) -> None:
        self._pubsub = pubsub

    def connect_bus(self, channels: Collection[str], bus: Bus) -> PubSubConnections:
        """Connect a process; see :data:`synrepl.daemon.process_bus.ConnectToBus`."""
        self._channels, self.bus = channels, bus
        return self

    def start(self) -> None:
        """Make the first connections."""
        self.connect()

    async def stop(self) -> None:
        """Lose the connections."""
        self.wires.cut()

    def connect(self) -> ManualConnections:
        """Make new connections, and get the name; its claims are left out of ``published``."""
        self.wires = ManualConnections(self._pubsub, self._channels, self.bus)
        self._pubsub.wires.append(self.wires)
        self.bus.connected(self.wires)
        for _ in range(QUESTIONS):
            self.wires.leave(1)
            self.wires.arrive(1)
        del self._pubsub.published[-QUESTIONS:]
        assert self.bus.is_connected
        return self.wires


class PubSubProcess(ManualBusPort):
    """A worker that writes and follows all streams, and is connected from the start."""

    def __init__(self, pubsub: ManualPubSub, name: str, *, per_stream: bool = False) -> None:
        super().__init__(pubsub)
        self.name = name
        self.log = RecordingLog()
        self.handler = RecordingHandler()
        services = build_worker(
            pubsub.scheduler,
            CATALOGUE,
            pubsub.store,
            [Subscription(self.handler)],
            self.log,
            name=name,
            store=pubsub.store,
            own=list(CATALOGUE),
            redis=RedisConfig(channel_per_stream=per_stream),
            connect_bus=self.connect_bus,
        )
        assert services.writer is not None
        self.writer = services.writer
        self.follower = services.follower
        done(services.take_names())
        done(services.begin())
        services.follow()

    def append(self, *texts: str, stream: Any = NOTES) -> None:
        """Append one fact with a row for each text."""
        decode = RowCodec(stream).decode
        rows = [decode(b'["%b"]' % text.encode()) for text in texts]
        done(self.writer.append(stream, [rows]))


class RecordingMoves:
    """Records advances: previous position, new position, tokens of the facts."""

    def __init__(self) -> None:
        self.kept: list[tuple[Token, Token, list[Token]]] = []

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        self.kept.append((prev, new, [fact.token for fact in facts]))

    def linear_advanced(self, stream: Stream, prev: Token, new: Token, facts: Any) -> None:
        raise AssertionError("it has no other writers")
