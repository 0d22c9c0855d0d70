"""A bus without a server: messages wait on their way until a test moves them, or loses them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core.tokens import Token
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.memory.store import MemoryStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.declared import declare
from synrepl.streams.definition import Fact, Stream
from synrepl.streams.rows import RowCodec
from tests.services.world import RecordingLog, done, manual_clock

NOTES = declare("notes", {"text": "text"})
OTHERS = declare("others", {"text": "text"})
CATALOGUE = Catalogue((NOTES, OTHERS))
CHANNELS = Channels("example.org")


class ManualPubSub:
    """Carries messages in two steps, as a server does: from their sender, and to each who listens.

    :ivar said: all that has left its sender, in order
    """

    def __init__(self) -> None:
        self.clock = manual_clock()
        self.scheduler = TwistedScheduler(self.clock)
        self.store = MemoryStore(self.scheduler)
        self.said: list[tuple[str, bytes]] = []
        self.wires: list[ManualConnections] = []

    def settle(self) -> None:
        """Let everything arrive."""
        self.clock.advance(0)
        while any(wires.leaving or wires.arriving for wires in self.wires):
            for wires in list(self.wires):
                wires.leave(len(wires.leaving))
                wires.arrive(len(wires.arriving))
            self.clock.advance(0)


class ManualConnections:
    """One process's connections."""

    def __init__(self, air: ManualPubSub, channels: Iterable[str], bus: Bus) -> None:
        self.leaving: deque[tuple[str, bytes]] = deque()
        self.arriving: deque[bytes] = deque()
        self.paused = False
        self._air = air
        self._channels = frozenset(channels)
        self._bus = bus

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        assert self in self._air.wires
        self.leaving.extend((channel, line) for line in lines)

    full = False

    async def room(self) -> None:
        assert self in self._air.wires

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self, why: str) -> None:
        self.cut()

    def leave(self, count: int) -> None:
        """Some messages reach the server, which has them wait for all who listen."""
        for _ in range(min(count, len(self.leaving))):
            channel, line = self.leaving.popleft()
            self._air.said.append((channel, line))
            for wires in self._air.wires:
                if channel in wires._channels:
                    wires.arriving.append(line)

    def arrive(self, count: int) -> None:
        """Some messages arrive, as one read."""
        count = min(count, len(self.arriving))
        if count and not self.paused:
            self._bus.messages_received([self.arriving.popleft() for _ in range(count)])

    def cut(self) -> None:
        """The connections are lost, with all that was on its way."""
        if self in self._air.wires:
            self._air.wires.remove(self)
            self.leaving.clear()
            self.arriving.clear()
            self._bus.disconnected()


class Noted(Handler):
    """Keeps facts, by stream and writer."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, str], list[Fact]] = {}

    async def on_rows(self, batch: Batch) -> None:
        self.facts.setdefault((batch.stream, batch.writer), []).extend(batch.facts)


class AirProcess:
    """One process that writes and follows; its wires stand from the start."""

    def __init__(self, air: ManualPubSub, name: str, channels: Channels = CHANNELS) -> None:
        self.name = name
        self.log = RecordingLog()
        self.handler = Noted()
        self._air = air
        self._channels = channels
        codecs = {stream.name: RowCodec(stream) for stream in CATALOGUE}
        self.publisher = Publisher(air.scheduler, codecs)
        self.own = OwnWriter(self.publisher)
        self.writer = StreamWriter(air.scheduler, air.store, name, CATALOGUE, self.own, self.log)
        self.follower = Follower(
            air.scheduler,
            CATALOGUE,
            air.store,
            Delivery(air.scheduler, [Subscription(self.handler)], self.log),
            self.log,
        )
        self.reader = BusReader(name, self.log)
        names = [stream.name for stream in CATALOGUE]
        bus_publisher = BusPublisher(self.publisher, channels, self.own)
        self.bus = Bus(channels, names, self.reader, self.follower, bus_publisher)
        self._heard = channels.subscriptions(names, user_ip=False)
        done(self.writer.start())
        self.wires = self.connect()

    def connect(self) -> ManualConnections:
        """New connections."""
        self.wires = ManualConnections(self._air, self._heard, self.bus)
        self._air.wires.append(self.wires)
        self.bus.connected(self.wires)
        return self.wires

    def append(self, *texts: str, stream: Any = NOTES) -> None:
        """One fact of so many rows."""
        decode = RowCodec(stream).decode
        rows = [decode(b'["%b"]' % text.encode()) for text in texts]
        done(self.writer.append(stream, [rows]))


class Moves:
    """Keeps the moves: from where, to where, past which facts."""

    def __init__(self) -> None:
        self.kept: list[tuple[Token, Token, list[Token]]] = []

    def writer_advanced(
        self, stream: Stream, writer: str, prev: Token, new: Token, facts: Sequence[Fact]
    ) -> None:
        self.kept.append((prev, new, [fact.token for fact in facts]))

    def linear_advanced(self, stream: Stream, prev: Token, new: Token, facts: Any) -> None:
        raise AssertionError("it knows of no other writers")
