"""What eight real processes said on Redis, said again on a real one, and followed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisBusConnections, RedisPubSub
from synrepl.testing.redis import RedisTestServer
from synrepl.wire.codec import parse_line
from synrepl.wire.commands import Rdata, Replicate
from synrepl.wire.dialects import CURRENT, Side
from tests.adapters.redis_fixture import SERVER_NAME, Process, Site, reactor
from tests.wire.recordings import records

#: The channel of the recording.
RECORDED = "localhost:18701"


class RecordingSubscriber:
    """Hears a channel, and says what a test wants."""

    def __init__(self, site: Site) -> None:
        self.received_lines: list[bytes] = []
        self.wires: RedisBusConnections | None = None
        self._site = site

    def connected(self, wires: RedisBusConnections) -> None:
        self.wires = wires
        self._site.happenings.happened()

    def messages_received(self, messages: Sequence[bytes]) -> None:
        self.received_lines += messages
        self._site.happenings.happened()

    def disconnected(self) -> None:
        self.wires = None

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        assert self.wires is not None
        self.wires.publish(channel, lines)


class RecordedMessages(TestCase):
    timeout = 60

    def setUp(self) -> None:
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        self.address = RedisAddress(path=redis.path)
        self.site = Site()
        self.addCleanup(self.site.scheduler.stop)

    async def spy(self) -> RecordingSubscriber:
        spy = RecordingSubscriber(self.site)
        pubsub = RedisPubSub(
            reactor, self.site.scheduler, self.address, [SERVER_NAME], spy, lambda *_, **__: None
        )
        pubsub.start()
        self.addCleanup(lambda: Deferred.fromCoroutine(pubsub.stop()))
        await self.site.happenings.until(lambda: spy.wires is not None)
        return spy

    async def test_every_recorded_row_and_command_arrives(self) -> None:
        spy = await self.spy()
        one = Process(self.site, "one", self.address, user_ip=True, foreign=True)
        await one.start(self)
        found = list(records("1.163.2", "redis"))
        for channel, some in groupby(found, lambda record: record["channel"]):
            lines = [record["line"].encode() for record in some]
            spy.publish(channel.replace(RECORDED, SERVER_NAME), lines)
        commands = [parse_line(r["line"].encode(), CURRENT, Side.CLIENT) for r in found]
        rows = Counter(c.stream for c in commands if isinstance(c, Rdata))
        published = Counter(c.verb for c in commands)
        received = one.bus.counts
        # Its own REPLICATE comes back too.
        await self.site.happenings.until(
            lambda: sum(received.values()) > len(found) and one.handler.rows.total() >= rows.total()
        )
        self.assertEqual({verb: received[verb] for verb in published}, published | {"REPLICATE": 2})
        self.assertEqual(one.handler.rows, rows)
        counts = one.follower.counts
        self.assertEqual((counts.duplicates, counts.bad_rows, one.reader.bad), ({}, {}, 0))

    async def test_a_new_process_asks_for_positions_and_announces_its_own(self) -> None:
        spy = await self.spy()
        await Process(self.site, "one", self.address).start(self)
        await self.site.happenings.until(lambda: len(spy.received_lines) >= 3)
        start = [b"REPLICATE ", b"POSITION notes one 0 0"]
        # Its own REPLICATE comes back, and is answered.
        self.assertEqual(spy.received_lines, [*start, start[1]])
        self.assertEqual(parse_line(start[0], CURRENT, Side.CLIENT), Replicate())
