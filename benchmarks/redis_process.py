"""Publishes to a Redis that it starts itself, and reports the CPU time.

``python -m benchmarks.redis_process ours|followed|bare FACTS``. ``ours`` and ``followed`` are the
advances of a worker's writer, which begin at the listener of its positions. The worker has only
the publishing one of its two connections, so the figures are those of publishing.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from time import process_time
from typing import Any

import txredisapi
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import UNIXClientEndpoint, connectProtocol
from twisted.internet.task import react
from twisted.logger import Logger

from benchmarks.assembled import build_worker, store_at, worker_config
from benchmarks.child import limit_lifetime, report
from benchmarks.recorded import BEFORE, WRITER, numbered
from synrepl.adapters.redis.connection import RedisPublisher
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.process_bus import ProcessBus
from synrepl.daemon.redis_pubsub import bus_connector
from synrepl.services.announcing.lines import LineEncoder
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import AUDIENCE
from synrepl.services.bus.channels import Channels
from synrepl.services.handlers import Batch, Handler
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Fact
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.events import EVENTS
from synrepl.testing.redis import RedisTestServer

CHANNEL = "example.org"

#: Facts with which one append of many advances a position.
GROUP = 500

CATALOGUE = Catalogue([EVENTS])


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


class PublisherOnlyConnections:
    """Connections to the bus that publish, and subscribe to nothing.

    The process receives only its own claims of its name, which it waits for.
    """

    fault: str | None = None
    connections = 1
    cut_off = 0
    full = False

    def __init__(
        self, redis_publisher: RedisPublisher, channels: Collection[str], bus: Bus
    ) -> None:
        self._redis_publisher = redis_publisher
        self._claims = Channels(CHANNEL).of_process(WRITER)
        self._bus = bus

    def start(self) -> None:
        """Join the bus; the connection exists."""
        self._bus.connected(self)

    async def stop(self) -> None:
        """Close the connection once everything has been written."""
        self._redis_publisher.end()
        await self._redis_publisher.gone

    def publish(self, channel: str, lines: Iterable[bytes]) -> None:
        """Publish lines, and return claims."""
        if channel == self._claims:
            self._bus.messages_received(list(lines))
        else:
            self._redis_publisher.publish_all(channel, lines)

    async def room(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self, why: str) -> None: ...


async def ours(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from position advances to the answers of Redis."""
    scheduler = TwistedScheduler(reactor)
    redis_publisher = CountingPublisher(scheduler)
    redis_publisher.waiting = 2  # REPLICATE and POSITION
    sent = redis_publisher.done
    bus, listener = await _join(reactor, scheduler, redis, redis_publisher)
    await sent
    spent = await _publish(listener, groups, redis_publisher)
    await bus.stop()
    return spent


async def followed(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from position advances to the handler of a follower in this process."""
    scheduler, handler = TwistedScheduler(reactor), RowCounter()
    config = worker_config(CHANNEL, "follower", redis=RedisConfig(path=redis.path))
    connect_bus = bus_connector(reactor, scheduler, config, Logger())
    services = build_worker(scheduler, config, CATALOGUE, [handler], connect_bus=connect_bus)
    assert services.bus is not None
    await services.begin()
    services.follow()
    while not services.is_connected:
        await scheduler.sleep(0.01)
    bus, listener = await _join(reactor, scheduler, redis, RedisPublisher(scheduler))
    while (EVENTS.name, WRITER) not in services.follower.positions:
        await scheduler.sleep(0.01)
    spent = await _publish(listener, groups, handler)
    await bus.stop()
    await services.bus.stop()
    return spent


async def _join(
    reactor: Any,
    scheduler: TwistedScheduler,
    redis: RedisTestServer,
    redis_publisher: RedisPublisher,
) -> tuple[ProcessBus, PositionListener]:
    """Start a worker that writes ``events``, follows nothing, and publishes over a connection.

    It announces the position before the first fact.

    :returns: its bus, and the listener of its writer's advances
    """
    await connectProtocol(UNIXClientEndpoint(reactor, str(redis.path)), redis_publisher)
    redis_publisher.begin()
    listeners: list[PositionListener] = []

    def watched(listener: PositionListener) -> PositionListener:
        listeners.append(listener)
        return listener

    services = build_worker(
        scheduler,
        worker_config(CHANNEL, WRITER, redis=RedisConfig(path=redis.path), follows=False),
        CATALOGUE,
        store=await store_at(scheduler, EVENTS, WRITER, BEFORE),
        own=[EVENTS],
        connect_bus=partial(PublisherOnlyConnections, redis_publisher),
        watched=watched,
    )
    assert services.bus is not None
    await services.take_names()
    services.follow()
    (listener,) = listeners
    return services.bus, listener


async def _publish(
    listener: PositionListener,
    groups: Sequence[Sequence[Fact]],
    until: CountingPublisher | RowCounter,
) -> float:
    """CPU seconds of this process to publish the groups one after another."""
    before, prev = process_time(), BEFORE
    for group in groups:
        until.waiting += sum(len(fact.rows) for fact in group)
        until.done = done = Deferred()
        listener.writer_advanced(EVENTS, WRITER, prev, group[-1].token, group)
        prev = group[-1].token
        await done
    return process_time() - before


async def bare(reactor: Any, redis: RedisTestServer, groups: Sequence[Sequence[Fact]]) -> float:
    """CPU seconds from lines to the answers of Redis."""
    encoder, prev = LineEncoder(AUDIENCE, {EVENTS.name: RowCodec(EVENTS)}), BEFORE
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
