"""The follower, over a real Redis."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.trial.unittest import TestCase

from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisPubSub
from synrepl.core.tokens import Token
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.bus.bus import Bus, BusSubscriber
from synrepl.services.bus.bus_publisher import LONGEST_LINE, BusPublisher
from synrepl.services.bus.bus_reader import BusReader
from synrepl.services.bus.channels import Channels
from synrepl.services.bus.master_subscriber import MasterBusSubscriber
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row
from synrepl.streams.rows import RowCodec
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

CHANNELS = Channels(SERVER_NAME)


class BusMember:
    """A process's bus connection, not started."""

    def __init__(
        self, site: ContractStore, redis: RedisTestServer, name: str, subscriber: BusSubscriber
    ) -> None:
        names = [stream.name for stream in CATALOGUE]
        publisher = Publisher(site.scheduler, {each.name: RowCodec(each) for each in CATALOGUE})
        self.own = OwnWriter(publisher)
        bus_publisher = BusPublisher(publisher, CHANNELS, self.own)
        bus = self.bus = Bus(CHANNELS, names, BusReader(name, site.log), subscriber, bus_publisher)
        self.pubsub = RedisPubSub(
            reactor,
            site.scheduler,
            RedisAddress(path=redis.path),
            CHANNELS.subscriptions(names, user_ip=False),
            bus,
            site.log.info,
        )


class RedisTransport(Transport):
    """Each writer is a process that announces itself."""

    longest = LONGEST_LINE

    def __init__(self, site: ContractStore, redis: RedisTestServer) -> None:
        super().__init__(site)
        self._redis = redis
        self._writers: dict[str, tuple[StreamWriter, BusMember]] = {}
        self._followers: dict[FollowerProcess, BusMember] = {}

    async def begin(self) -> None:
        """Start the first writer."""
        await self._writer(ONE)

    async def end(self) -> None:
        """Stop all writers."""
        for writer, member in self._writers.values():
            await member.pubsub.stop()
            await writer.stop()
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
            site = self.site
            member = BusMember(site, self._redis, name, MasterBusSubscriber(lambda command: None))
            writer = StreamWriter(
                site.scheduler, site.store, name, list(CATALOGUE), member.own, site.log
            )
            await writer.start()
            member.pubsub.start()
            self._writers[name] = (writer, member)
        writer, member = self._writers[name]
        while not member.bus.is_connected:  # else facts would be fetched, not received
            await self.site.scheduler.sleep(0.005)
        return writer

    def join(self, following: FollowerProcess) -> None:
        """Connect to the bus."""
        member = BusMember(self.site, self._redis, following.name, following)
        self._followers[following] = member
        member.pubsub.start()

    def cut(self, following: FollowerProcess) -> None:
        """Disconnect everybody, as Redis disconnects slow clients."""
        self._redis.command("CLIENT", "KILL", "TYPE", "pubsub")

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
