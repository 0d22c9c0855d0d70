"""The simulated Redis, and the connections of all processes to it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from simulator.clock import Process, VirtualClock
from simulator.interfaces import BusAccess
from simulator.network import NetworkConditions
from simulator.scenario import RedisSetup
from synrepl.testing.memory_pubsub import MemoryPubSub, MemoryPubSubOwner
from synrepl.testing.memory_redis import MemoryRedis


class BusNetwork:
    """Connects processes to Redis until they are killed.

    :param published: called for each message: connection, channel, message
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        conditions: NetworkConditions,
        scenario: RedisSetup,
        published: Callable[[str, str, bytes], object],
    ) -> None:
        self._clock = clock
        self._random = random
        self._conditions = conditions
        self._per_stream = scenario.per_stream
        self._redis = MemoryRedis(clock, scenario.buffer_bytes)
        self._redis.published = published
        self._all: dict[Process, MemoryPubSub] = {}
        self._number = 0

    @property
    def cut_off(self) -> int:
        """Number of subscribers that were disconnected for being too slow."""
        return self._redis.cut_off

    @property
    def pubsubs(self) -> list[MemoryPubSub]:
        """The connections of the live processes."""
        return list(self._all.values())

    def access_for(self, process: Process) -> BusAccess:
        """The bus access of a process."""
        return BusAccess(partial(self._join, process), self._per_stream)

    def restart(self, seconds: float) -> None:
        """Stop Redis, and start it again after some seconds."""
        if self._redis.up:
            self._redis.stop()
            self._clock.callLater(seconds, self._redis.start)

    def isolate(self, process: Process, seconds: float) -> None:
        """Cut a process off from Redis for some seconds."""
        pubsub = self._all.get(process)
        if pubsub is not None:
            pubsub.silence(True)
            pubsub.reach(False)
            self._clock.callLater(seconds, self._back, pubsub)

    def heal(self) -> None:
        """Repair all connections, and resume all reading."""
        self._redis.start()
        for pubsub in self._all.values():
            pubsub.stall(False)
            self._back(pubsub)

    def _back(self, pubsub: MemoryPubSub) -> None:
        pubsub.reach(True)
        pubsub.silence(False)

    def _join(
        self, process: Process, channels: Collection[str], owner: MemoryPubSubOwner
    ) -> MemoryPubSub:
        self._number += 1
        name = f"{process.name}#{self._number}"
        pubsub = MemoryPubSub(
            self._redis,
            process,
            name,
            channels,
            owner,
            self._conditions,
            splits=True,
            random=process.random,
        )
        self._all[process] = pubsub
        process.on_kill(partial(self._end, process))
        return pubsub

    def _end(self, process: Process) -> None:
        pubsub = self._all.pop(process)
        pubsub.crash(self._random.randint(0, pubsub.under_way))
