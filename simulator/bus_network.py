"""The Redis of a simulation, and every process's connections to it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random

from simulator.clock import Life, VirtualClock
from simulator.network import Weather
from simulator.parts import BusPlace
from simulator.plan import RedisPlan
from synrepl.testing.memory_pubsub import MemoryPubSub, Owner
from synrepl.testing.memory_redis import MemoryRedis


class BusNetwork:
    """Connects processes with Redis until they are killed.

    :param published: told of each message: who said it, the channel, the message
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        weather: Weather,
        plan: RedisPlan,
        published: Callable[[str, str, bytes], object],
    ) -> None:
        self._clock = clock
        self._random = random
        self._weather = weather
        self._per_stream = plan.per_stream
        self._redis = MemoryRedis(clock, plan.buffer_bytes)
        self._redis.published = published
        self._all: dict[Life, MemoryPubSub] = {}
        self._number = 0

    @property
    def cut_off(self) -> int:
        """How many subscribers were too slow."""
        return self._redis.cut_off

    @property
    def pubsubs(self) -> list[MemoryPubSub]:
        """Those of the processes that live."""
        return list(self._all.values())

    def place_of(self, life: Life) -> BusPlace:
        """What a process is given."""
        return BusPlace(partial(self._join, life), self._per_stream)

    def restart(self, seconds: float) -> None:
        """Redis ends, and comes back after a while."""
        if self._redis.up:
            self._redis.stop()
            self._clock.callLater(seconds, self._redis.start)

    def away(self, life: Life, seconds: float) -> None:
        """Nothing of a process gets through to Redis for a while."""
        pubsub = self._all.get(life)
        if pubsub is not None:
            pubsub.silence(True)
            pubsub.reach(False)
            self._clock.callLater(seconds, self._back, pubsub)

    def heal(self) -> None:
        """Everything gets through, and everybody reads."""
        self._redis.start()
        for pubsub in self._all.values():
            pubsub.stall(False)
            self._back(pubsub)

    def _back(self, pubsub: MemoryPubSub) -> None:
        pubsub.reach(True)
        pubsub.silence(False)

    def _join(self, life: Life, channels: Collection[str], owner: Owner) -> MemoryPubSub:
        self._number += 1
        name = f"{life.name}#{self._number}"
        pubsub = MemoryPubSub(
            self._redis, life, name, channels, owner, self._weather, splits=True, random=life.random
        )
        self._all[life] = pubsub
        life.at_end(partial(self._end, life))
        return pubsub

    def _end(self, life: Life) -> None:
        pubsub = self._all.pop(life)
        pubsub.crash(self._random.randint(0, pubsub.under_way))
