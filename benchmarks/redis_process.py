"""Publishes to a Redis that it starts itself, and reports the CPU time.

``python -m benchmarks.redis_process ours|followed|bare FACTS``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from time import process_time
from typing import Any, cast

import txredisapi
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import BEFORE, WRITER, numbered
from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.connection import RedisPublisher
from synrepl.adapters.redis.pubsub import RedisPubSub
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.services.announcing.lines import LineEncoder
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import AUDIENCE, AnnouncedPosition, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.handlers import Batch, Handler
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS
from synrepl.testing.redis import RedisTestServer

CHANNEL = "example.org"

#: Facts with which one append of many advances a position.
GROUP = 500

CODECS = {EVENTS.name: RowCodec(EVENTS)}


class CountingPublisher(RedisPublisher):
    """Counts the answers of Redis.

    :ivar waiting: answers that are still missing
    :ivar done: fires when there are none
    """

    def __init__(self, scheduler: TwistedScheduler) -> None:
        super().__init__(scheduler)
        self.waiting = 0
        self.done: Deferred[None] = Deferred()

    def replyReceived(self, reply: object) -> None:
        """Count one more answer."""
        super().replyReceived(reply)
        self.waiting -= 1
        if not self.waiting:
            self.done.callback(None)


class SingleWriterPositions:
    """Announces the position of one writer, before the first fact."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """That position."""
        yield AnnouncedPosition(EVENTS, WRITER, BEFORE)


class RowCounter(Handler):
    """Counts rows.

    :ivar waiting: rows that are still missing
    :ivar done: fires when there are none
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.done: Deferred[None] = Deferred()

    async def on_rows(self, batch: Batch) -> None:
        """Count the rows."""
        self.waiting -= sum([len(fact.rows) for fact in batch.facts])
        if not self.waiting:
            self.done.callback(None)


class PublisherOnlyWires:
    """A bus connection that publishes and does not subscribe."""

    def __init__(self, speaker: RedisPublisher) -> None:
        self.publish = speaker.publish_all

    full = False

    async def room(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, why: str) -> None: ...


async def ours(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from position advances to the answers of Redis."""
    scheduler = TwistedScheduler(reactor)
    speaker = CountingPublisher(scheduler)
    speaker.waiting = 1  # the POSITION
    sent = speaker.done
    publisher = await _join(reactor, scheduler, redis, speaker)
    await sent
    spent = await _publish(publisher, groups, speaker)
    speaker.end()
    await speaker.gone
    return spent


async def followed(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from position advances to the handler of a follower in this process."""
    scheduler = TwistedScheduler(reactor)
    handler, log = RowCounter(), Logger()
    source = cast(Any, None)  # never used: there are no gaps
    delivery = Delivery(scheduler, [Subscription(handler)], log)
    follower = Follower(scheduler, Catalogue([EVENTS]), source, delivery, log, earliest=False)
    mute = BusPublisher(Publisher(scheduler, CODECS), Channels(CHANNEL), NoPositions())
    bus = Bus(Channels(CHANNEL), [EVENTS.name], BusReader("follower", log), follower, mute)
    address = RedisAddress(path=redis.path)
    pubsub = RedisPubSub(reactor, scheduler, address, [CHANNEL], bus, lambda *_, **__: None)
    pubsub.start()
    while not bus.is_connected:
        await scheduler.sleep(0.01)
    speaker = RedisPublisher(scheduler)
    publisher = await _join(reactor, scheduler, redis, speaker)
    while (EVENTS.name, WRITER) not in follower.positions:
        await scheduler.sleep(0.01)
    spent = await _publish(publisher, groups, handler)
    speaker.end()
    await pubsub.stop()
    return spent


class NoPositions:
    """Announces no positions."""

    def announced_positions(self) -> Iterator[AnnouncedPosition]:
        """None."""
        return iter(())


async def _join(
    reactor: Any, scheduler: TwistedScheduler, redis: RedisTestServer, speaker: RedisPublisher
) -> Publisher:
    """A publisher over ``speaker``."""
    publisher = Publisher(scheduler, CODECS)
    await connectProtocol(UNIXClientEndpoint(reactor, str(redis.path)), speaker)
    speaker.begin()
    bus_publisher = BusPublisher(publisher, Channels(CHANNEL), SingleWriterPositions())
    bus_publisher.join(PublisherOnlyWires(speaker), [EVENTS.name])
    return publisher


async def _publish(
    publisher: Publisher, groups: Sequence[Sequence[Fact]], until: CountingPublisher | RowCounter
) -> float:
    """CPU seconds of this process to publish the groups one after another."""
    before, prev = process_time(), BEFORE
    for group in groups:
        until.waiting += sum(len(fact.rows) for fact in group)
        until.done = done = Deferred()
        publisher.writer_advanced(EVENTS, WRITER, prev, group[-1].token, group)
        prev = group[-1].token
        await done
    return process_time() - before


async def bare(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from lines to the answers of Redis."""
    encoder, prev = LineEncoder(AUDIENCE, CODECS), BEFORE
    lines: list[list[bytes]] = []
    for group in groups:
        chunks = encoder.live(EVENTS, WRITER, prev, group[-1].token, group)
        lines.append([line for chunk in chunks for line in chunk.data[:-1].split(b"\n")])
        prev = group[-1].token
    connection = await txredisapi.UnixConnection(str(redis.path), charset=None)
    before = process_time()
    for some in lines:
        await gatherResults([connection.publish(CHANNEL, line) for line in some])
    spent = process_time() - before
    await connection.disconnect()
    return spent


async def main(reactor: Any, kind: str, facts: str) -> None:
    """Publish, and report the CPU time."""
    found = numbered(int(facts))
    groups = [found[at : at + GROUP] for at in range(0, len(found), GROUP)]
    redis = RedisTestServer()
    try:
        spent = await {"ours": ours, "followed": followed, "bare": bare}[kind](
            reactor, redis, groups
        )
    finally:
        redis.close()
    report({"rows": sum(len(fact.rows) for fact in found), "cpu": spent})


if __name__ == "__main__":
    limit_lifetime()
    react(
        lambda reactor, *arguments: Deferred.fromCoroutine(main(reactor, *arguments)), sys.argv[1:]
    )
