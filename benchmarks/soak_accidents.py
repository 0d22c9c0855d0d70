"""The accidents of a soak test: faults of its processes, drawn from a seed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from random import Random
from signal import SIGCONT, SIGSTOP
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from synrepl.cli.demo.deployment import DaemonSubprocess
from synrepl.core.clock import Scheduler
from synrepl.testing.redis import RedisTestServer
from synrepl.testing.standby import PrimaryAndStandby

REDIS = "Redis"
POSTGRES = "PostgreSQL"


class Kind(StrEnum):
    """The kinds of accidents."""

    KILLED = "killed (SIGKILL)"
    ENDED = "ended (SIGTERM)"
    FROZEN = "stopped and continued"
    REDIS_KILLED = "Redis killed (SIGKILL)"
    SUBSCRIBERS_CUT = "all subscribers cut off"
    PUBLISHERS_CUT = "all publishers cut off"
    FAILED_OVER = "failed over, with commits lost"


_OF_REDIS = frozenset({Kind.REDIS_KILLED, Kind.SUBSCRIBERS_CUT, Kind.PUBLISHERS_CUT})

#: How often each kind occurs in a round; the order within a round is random.
_ROUND = (
    *(Kind.KILLED, Kind.KILLED, Kind.KILLED, Kind.ENDED, Kind.FROZEN, Kind.FROZEN),
    *(Kind.REDIS_KILLED, Kind.SUBSCRIBERS_CUT, Kind.PUBLISHERS_CUT),
)


class Accident(NamedTuple):
    """One accident.

    :ivar after_s: seconds since the previous accident
    :ivar victim: the name of a process, or :data:`REDIS`
    :ivar for_s: seconds until it is restarted or continued
    """

    after_s: float
    kind: Kind
    victim: str
    for_s: float


def accidents(seed: int, names: Sequence[str], longest_s: float) -> Iterator[Accident]:
    """Accidents without end, the same for the same seed; every kind is in each round of nine.

    :param names: of the processes
    :param longest_s: maximum seconds for which a victim is away
    """
    random = Random(seed)
    victims: list[str] = []
    while True:
        for kind in random.sample(_ROUND, len(_ROUND)):
            # Every process is a victim once before any is again.
            victims = victims or random.sample(names, len(names))
            yield Accident(
                random.uniform(0.2, 3.0),
                kind,
                REDIS if kind in _OF_REDIS else victims.pop(),
                # Most are short, some are longer than the ping timeout.
                longest_s * random.random() ** 3,
            )


def failing_over(
    planned: Iterator[Accident], due: Callable[[], bool], for_s: float
) -> Iterator[Accident]:
    """The same accidents, and one failover as soon as it is due.

    :param for_s: seconds for which the standby has received nothing by then
    """
    failed_over = False
    for accident in planned:
        if not failed_over and due():
            failed_over = True
            yield Accident(0.0, Kind.FAILED_OVER, POSTGRES, for_s)
        yield accident


class AccidentInjector:
    """Injects accidents; several may overlap, but only one per victim.

    :param servers: the PostgreSQL servers
    :param log: gets a line about each event
    :ivar counts: number of accidents so far, by kind
    """

    def __init__(
        self,
        scheduler: Scheduler,
        processes: Mapping[str, DaemonSubprocess],
        redis: RedisTestServer,
        servers: PrimaryAndStandby,
        log: Callable[[str], object],
    ) -> None:
        self._scheduler = scheduler
        self._processes = processes
        self._redis = redis
        self._servers = servers
        self._log = log
        self._under_way: dict[str, Deferred[None]] = {}
        self.counts: Counter[Kind] = Counter()

    async def inject(self, accident: Accident) -> None:
        """Inject an accident, once its victim is up again; returns when it has begun."""
        await self._scheduler.sleep(accident.after_s)
        await self._over(accident.victim)
        self.counts[accident.kind] += 1
        self._log(f"{accident.kind}: {accident.victim}, for {accident.for_s:.1f} s")
        run = {REDIS: self._on_redis, POSTGRES: self._on_postgres}.get(
            accident.victim, self._on_process
        )
        self._under_way[accident.victim] = Deferred.fromCoroutine(run(accident))

    async def over(self) -> None:
        """Wait until all victims are up again."""
        for victim in list(self._under_way):
            await self._over(victim)

    def check(self) -> None:
        """Check that no process ended without an accident.

        :raises Ended: one did
        """
        for name, process in self._processes.items():
            if name not in self._under_way or self._under_way[name].called:
                process.check()

    async def _over(self, victim: str) -> None:
        if victim in self._under_way:
            await self._under_way[victim]
            del self._under_way[victim]

    async def _on_process(self, accident: Accident) -> None:
        process = self._processes[accident.victim]
        if accident.kind is Kind.FROZEN:
            os.kill(process.pid, SIGSTOP)
            await self._scheduler.sleep(accident.for_s)
            os.kill(process.pid, SIGCONT)
            return
        await (process.kill() if accident.kind is Kind.KILLED else process.stop())
        await self._scheduler.sleep(accident.for_s)
        process.start()

    async def _on_redis(self, accident: Accident) -> None:
        if accident.kind is Kind.REDIS_KILLED:
            self._redis.kill()
            await self._scheduler.sleep(accident.for_s)
            self._redis.start()
        else:
            whose = "pubsub" if accident.kind is Kind.SUBSCRIBERS_CUT else "normal"
            self._redis.command("CLIENT", "KILL", "TYPE", whose)

    async def _on_postgres(self, accident: Accident) -> None:
        servers = self._servers
        while not await deferToThread(servers.has_caught_up):
            await self._scheduler.sleep(0.1)
        await deferToThread(servers.disconnect)
        await self._scheduler.sleep(accident.for_s)
        await deferToThread(servers.fail_over)
