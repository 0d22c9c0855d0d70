"""The follower, over a real Redis."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import TestCase

from synrepl.core.tokens import Token
from synrepl.daemon.assemble import WorkerServices
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.process_bus import publisher_of
from synrepl.daemon.redis_pubsub import make_pubsub
from synrepl.services.bus.bus import Bus
from synrepl.services.bus.bus_publisher import LONGEST_LINE, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.testing.redis import RedisTestServer
from tests.contract.follower import ONE, FollowerContract
from tests.contract.world import (
    CATALOGUE,
    SERVER_NAME,
    ContractStore,
    FollowerProcess,
    Transport,
    reactor,
)
from tests.support.workers import build_worker

CHANNELS = Channels(SERVER_NAME)


class BusFollower:
    """A follower's bus connection, not started.

    It is made here, not assembled, because messages pass through ``following``, which can lose
    and repeat them.
    """

    def __init__(self, site: ContractStore, redis: RedisConfig, following: FollowerProcess) -> None:
        names = [stream.name for stream in CATALOGUE]
        publisher = publisher_of(site.scheduler, CATALOGUE)
        bus = Bus(
            CHANNELS,
            names,
            BusReader(following.name, site.log),
            following,
            BusPublisher(publisher, CHANNELS, OwnWriter(publisher)),
        )
        channels = CHANNELS.subscriptions(names, user_ip=False)
        self.pubsub = make_pubsub(reactor, site.scheduler, redis, channels, bus, site.log.info)


class RedisTransport(Transport):
    """Each writer is a worker that announces itself."""

    longest = LONGEST_LINE

    def __init__(self, site: ContractStore, server: RedisTestServer) -> None:
        super().__init__(site)
        self._server = server
        self._redis = RedisConfig(path=server.path)
        self._writers: dict[str, WorkerServices] = {}
        self._followers: dict[FollowerProcess, BusFollower] = {}

    async def begin(self) -> None:
        """Start the first writer."""
        await self._writer(ONE)

    async def end(self) -> None:
        """Stop all writers."""
        for services in self._writers.values():
            assert services.bus is not None
            assert services.writer is not None
            await services.bus.stop()
            await services.writer.stop()
        self._writers.clear()

    async def append(self, name: str, stream: Stream, facts: Sequence[Sequence[Row]]) -> Token:
        """Append as the writer, which announces it."""
        written = await (await self._writer(name)).append(stream, facts)
        return written.tokens[-1]

    async def waste(self, name: str, stream: Stream, count: int) -> Token:
        """Reserve tokens without writing."""
        async with await (await self._writer(name)).reserve(stream, count) as reservation:
            return reservation.tokens[-1]

    async def _writer(self, name: str) -> StreamWriter:
        if name not in self._writers:
            self._writers[name] = await self._start(name)
        services = self._writers[name]
        while not services.is_connected:  # else facts would be fetched, not received
            await self.site.scheduler.sleep(0.005)
        assert services.writer is not None
        return services.writer

    async def _start(self, name: str) -> WorkerServices:
        """Start a worker that only writes."""
        site = self.site
        services = build_worker(
            site.scheduler,
            CATALOGUE,
            site,
            (),
            site.log,
            name=name,
            follows=False,
            store=site.store,
            own=list(CATALOGUE),
            redis=self._redis,
            connect_bus=lambda channels, bus: make_pubsub(
                reactor, site.scheduler, self._redis, channels, bus, site.log.info
            ),
        )
        await services.take_names()
        services.follow()
        return services

    def join(self, following: FollowerProcess) -> None:
        """Connect to the bus."""
        member = BusFollower(self.site, self._redis, following)
        self._followers[following] = member
        member.pubsub.start()

    def cut(self, following: FollowerProcess) -> None:
        """Disconnect everybody, as Redis disconnects slow clients."""
        self._server.command("CLIENT", "KILL", "TYPE", "pubsub")

    async def leave(self, following: FollowerProcess) -> None:
        """Disconnect from the bus."""
        member = self._followers.pop(following, None)
        if member is not None:
            await member.pubsub.stop()


class RedisFollowerTest(FollowerContract, TestCase):
    def transport(self, site: ContractStore) -> Transport:
        redis = RedisTestServer()
        self.addCleanup(redis.close)
        return RedisTransport(site, redis)
