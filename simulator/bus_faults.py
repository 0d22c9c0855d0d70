"""Faults of the bus, one function each, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from simulator.bus_network import BusNetwork
from simulator.clock import VirtualClock
from simulator.transcript import Transcript
from synrepl.testing.memory_pubsub import MemoryPubSub


class BusFaults:
    """Injects faults into connections that work."""

    def __init__(
        self, clock: VirtualClock, random: Random, transcript: Transcript, network: BusNetwork
    ) -> None:
        self._clock = clock
        self._random = random
        self._transcript = transcript
        self._network = network

    def inject(self, name: str) -> None:
        """Inject one of :data:`_FAULTS`."""
        _FAULTS[name](self)

    def _restart_redis(self) -> None:
        seconds = self._random.random() ** 2 * 5
        self._log("redis", "ends, and comes back after {seconds:.1f} s", seconds=seconds)
        self._network.restart(seconds)

    def _cut_listener(self) -> None:
        self._cut("hears Redis no more", MemoryPubSub.cut_listener)

    def _cut_speaker(self) -> None:
        self._cut("cannot speak to Redis any more", MemoryPubSub.cut_speaker)

    def _mute_bus(self) -> None:
        pubsub = self._one()
        if pubsub is not None:
            self._log(pubsub.name, "exchanges nothing with Redis any more")
            pubsub.silence(True)
            if self._random.random() < 0.5:
                self._clock.callLater(self._random.random() * 15, pubsub.silence, False)

    def _slow_subscriber(self) -> None:
        pubsub = self._one()
        if pubsub is not None:
            seconds = self._random.random() * 8
            self._log(pubsub.name, "reads nothing of Redis for {s:.1f} s", s=seconds)
            pubsub.stall(True)
            self._clock.callLater(seconds, pubsub.stall, False)

    def _cut(self, words: str, cut: Callable[[MemoryPubSub, int], object]) -> None:
        pubsub = self._one()
        if pubsub is not None:
            first = self._random.randint(0, pubsub.under_way)
            self._log(pubsub.name, words + "; {first} messages still arrive", first=first)
            cut(pubsub, first)

    def _one(self) -> MemoryPubSub | None:
        pubsubs = self._network.pubsubs
        return self._random.choice(pubsubs) if pubsubs else None

    def _log(self, who: str, words: str, **facts: object) -> None:
        self._transcript.add(who, words, **facts)


_FAULTS: Mapping[str, Callable[[BusFaults], None]] = {
    "restart_redis": BusFaults._restart_redis,
    "cut_listener": BusFaults._cut_listener,
    "cut_speaker": BusFaults._cut_speaker,
    "mute_bus": BusFaults._mute_bus,
    "slow_subscriber": BusFaults._slow_subscriber,
}
