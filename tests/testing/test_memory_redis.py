"""The in-memory Redis behaves as a real one does, and fails as configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from simulator.clock import VirtualClock
from synrepl.adapters.redis.address import RedisAddress
from synrepl.adapters.redis.pubsub import RedisPubSub
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.testing.links import EvenPace
from synrepl.testing.memory_pubsub import MemoryPubSub
from synrepl.testing.memory_redis import MemoryRedis
from synrepl.testing.redis import RedisTestServer
from tests.adapters.redis_fixture import EventWaiter
from tests.testing.pubsub_contract import BUFFER_BYTES, Member, PubSubContract

reactor: Any = _reactor

#: Seconds of simulated time that anything may take.
PATIENCE_S = 60.0


class MemoryRedisServer:
    """The fake, under a clock of its own."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.redis = MemoryRedis(self.clock, BUFFER_BYTES)
        self.members: list[Member] = []
        self.start, self.stop = self.redis.start, self.redis.stop

    async def join(self, name: str, *channels: str) -> Member:
        member = Member(lambda: None)
        member.pubsub = MemoryPubSub(
            self.redis,
            self.clock,
            name,
            channels,
            member,
            EvenPace(0.01, piece_bytes=7),
            splits=True,
        )
        self.members.append(member)
        member.pubsub.start()
        await self.until(lambda: member.stood == 1)
        return member

    async def until(self, true: Callable[[], bool]) -> None:
        give_up = self.clock.seconds() + PATIENCE_S
        while not true():
            if not self.clock.run_next(give_up):
                raise AssertionError("it does not happen")

    def cut_listeners(self) -> None:
        for member in self.members:
            member.pubsub.cut_listener()

    def cut_speakers(self) -> None:
        for member in self.members:
            member.pubsub.cut_speaker()


class RealRedisServer:
    """A real server."""

    def __init__(self, case: TestCase) -> None:
        self.redis = RedisTestServer(
            "--client-output-buffer-limit", "pubsub", str(BUFFER_BYTES), "0", "0"
        )
        case.addCleanup(self.redis.close)
        self.scheduler = TwistedScheduler(reactor)
        case.addCleanup(self.scheduler.stop)
        self.happenings = EventWaiter()
        self.case = case
        self.start, self.stop = self.redis.start, self.redis.stop

    async def join(self, name: str, *channels: str) -> Member:
        member = Member(lambda: reactor.callLater(0, self.happenings.happened))
        member.pubsub = RedisPubSub(
            reactor,
            self.scheduler,
            RedisAddress(port=self.redis.port),
            channels,
            member,
            lambda *sentence, **facts: None,
        )
        member.pubsub.start()
        self.case.addCleanup(lambda: Deferred.fromCoroutine(member.pubsub.stop()))
        await self.until(lambda: member.stood == 1)
        return member

    async def until(self, true: Callable[[], bool]) -> None:
        await self.happenings.until(true)

    def cut_listeners(self) -> None:
        self.redis.command("CLIENT", "KILL", "TYPE", "pubsub")

    def cut_speakers(self) -> None:
        self.redis.command("CLIENT", "KILL", "TYPE", "normal")


class MemoryRedisContract(PubSubContract, TestCase):
    """In memory."""

    def setUp(self) -> None:
        self.server = MemoryRedisServer()


class RealRedisContract(PubSubContract, TestCase):
    """Over sockets."""

    timeout = 60

    def setUp(self) -> None:
        self.server = RealRedisServer(self)


class MemoryRedisFaults(TestCase):
    """Of the fake alone: what cannot be had of a real server when a test wants it."""

    def setUp(self) -> None:
        self.server = MemoryRedisServer()

    async def two(self) -> tuple[Member, Member]:
        return await self.server.join("one", "all"), await self.server.join("two", "all")

    async def test_a_cut_lets_the_first_messages_arrive(self) -> None:
        one, two = await self.two()
        one.publish("one 1", "one 2", "one 3")
        one.pubsub.cut_speaker(first=2)
        await self.server.until(lambda: one.stood == 2)
        one.publish("one 4")
        await self.server.until(lambda: len(two.all_received) == 3)
        self.assertEqual(two.received_from("one"), ["one 1", "one 2", "one 4"])

    async def test_a_crashed_process_sends_and_receives_nothing(self) -> None:
        one, two = await self.two()
        two.publish("two 1", "two 2")
        two.pubsub.crash(first=1)
        one.publish("one 1")
        await self.server.until(lambda: len(one.all_received) == 2)
        self.assertEqual((one.received_from("two"), two.all_received, two.lost), (["two 1"], [], 0))

    async def test_silence_is_noticed_unless_it_ends_in_time(self) -> None:
        one, two = await self.two()
        two.pubsub.silence(True)
        two.publish("two 1")
        one.publish("one 1")
        began = self.server.clock.seconds()
        await self.server.until(lambda: len(one.all_received) == 1)
        two.pubsub.silence(False)
        await self.server.until(lambda: len(two.all_received) == 2)
        self.assertEqual(one.received_from("two"), ["two 1"])
        two.pubsub.silence(True)
        await self.server.until(lambda: two.lost == 1)
        self.assertTrue(10 <= self.server.clock.seconds() - began <= 15)

    async def test_an_unreachable_process_reconnects_later(self) -> None:
        _, two = await self.two()
        two.pubsub.reach(False)
        two.pubsub.cut_listener()
        self.server.clock.run_next(self.server.clock.seconds() + 30)
        await self.server.until(lambda: two.lost == 1)
        two.pubsub.reach(True)
        await self.server.until(lambda: two.stood == 2)
