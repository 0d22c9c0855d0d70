"""The scenario of a run, drawn from its seed: the processes, and the possible faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from simulator.application import LoadBehaviour
from simulator.interfaces import FollowerKind, HandlerKind, RetentionPeriods

#: Faults and their maximum weights, against ordinary work, which weighs 100.
FAULTS: Mapping[str, int] = {
    "crash_master": 6,
    "stop_master": 3,
    "crash_writer": 10,
    "crash_follower": 10,
    "cut_link": 15,
    "mute_link": 5,
    "lose_session": 8,
    "database_away": 6,
    "fail_over": 3,
    "stop_reading": 8,
    "follower_away": 6,
    "cut_off": 10,
}

#: Additional faults in runs with Redis.
BUS_FAULTS: Mapping[str, int] = {
    "restart_redis": 5,
    "cut_listener": 8,
    "cut_speaker": 8,
    "mute_bus": 4,
    "slow_subscriber": 8,
}

#: Changes of writers and their maximum weights.
MEMBERSHIP_CHANGES: Mapping[str, int] = {
    "add_writer": 4,
    "drain_writer": 6,
    "drain_sql": 6,
    "retire_writer": 6,
    "remove_writer": 6,
    "return_writer": 6,
    "take_name_over": 4,
}

#: Additional work in a run with caches, with weights.
_CACHED_WORK = {"change": 30, "change_sql": 8, "read": 15}


@dataclass(frozen=True, slots=True)
class RedisSetup:
    """The use of Redis in a run.

    :ivar per_stream: whether each stream has its own channel
    :ivar buffer_bytes: maximum buffered output of a subscriber before it is disconnected
    :ivar for_all: whether all followers use it; otherwise some use TCP
    """

    per_stream: bool
    buffer_bytes: int
    for_all: bool


@dataclass(frozen=True, slots=True)
class SimulationScenario:
    """The processes and faults of one run.

    :ivar writers: names of the pure writer processes
    :ivar faults: weights by name; absent faults do not happen in this run
    :ivar slowest_s: maximum network latency, in seconds
    :ivar database_s: maximum seconds per database step
    :ivar commit_unknown: probability that the reply to a COMMIT is lost
    :ivar notify_lost: probability that a NOTIFY is lost
    :ivar work: weights of the kinds of work
    :ivar stays_dead: whether killed writers are never restarted
    :ivar small: whether pages and buffers are small
    :ivar loading: behaviour of cache loads; None in a run without caches
    :ivar retention: of ephemeral streams
    :ivar redis: None in a run without Redis
    """

    writers: Sequence[str]
    followers: Mapping[str, FollowerKind]
    faults: Mapping[str, int]
    slowest_s: float
    database_s: float
    commit_unknown: float
    notify_lost: float
    work: Mapping[str, int]
    stays_dead: bool
    small: bool
    loading: LoadBehaviour | None
    retention: RetentionPeriods
    redis: RedisSetup | None

    @classmethod
    def draw(cls, random: Random, lose_commits: bool = False) -> SimulationScenario:
        """Draw a scenario. Every run leaves out some faults, so that others get further.

        :param lose_commits: the database fails over to a standby that lacks commits
        """
        redis = _redis(random) if random.random() < 0.5 else None
        possible = {**FAULTS, **(BUS_FAULTS if redis is not None else {})}
        if random.random() < 0.4:
            possible |= MEMBERSHIP_CHANGES
        faults = {
            name: random.randint(1, most)
            for name, most in possible.items()
            if random.random() < 0.45
        }
        loading = _loading(random) if random.random() < 0.6 else None
        # Application data and writers are not rolled back by the standby.
        if lose_commits:
            loading = None
            faults = {name: most for name, most in faults.items() if name not in MEMBERSHIP_CHANGES}
            faults["lose_commits"] = random.randint(1, 6)
        return cls(
            writers=[f"writer{n}" for n in range(1, random.randint(1, 3) + 1)],
            followers={
                f"follower{n}": _follower(random, redis) for n in range(1, random.randint(2, 4) + 1)
            },
            faults=faults,
            slowest_s=random.choice((0.005, 0.05, 0.5)),
            database_s=random.choice((0.002, 0.01, 0.05)),
            commit_unknown=random.choice((0, 0, 0.03)),
            notify_lost=random.choice((0, 0.1, 1.0)),
            work={
                "append": 60,
                **(_CACHED_WORK if loading is not None else {}),
                "append_sql": random.choice((0, 10, 25)),
                "reserve": random.choice((0, 10, 25)),
            },
            stays_dead=random.random() < 0.3,
            small=random.random() < 0.6,
            loading=loading,
            retention=_retention(random),
            redis=redis,
        )

    def sentences(self) -> list[str]:
        """The plan, for a person."""
        return [
            f"writers: master, {', '.join(self.writers)}",
            *(f"{name}: {kind}" for name, kind in self.followers.items()),
            f"faults: {', '.join(f'{n} {w}' for n, w in self.faults.items()) or 'none'}",
            f"bytes take up to {self.slowest_s} s, the database {self.database_s} s;"
            f" lost: {self.commit_unknown:.0%} of commit answers, {self.notify_lost:.0%} of NOTIFYs;"
            f" {'small' if self.small else 'normal'} pages;"
            f" dead writers {'stay dead' if self.stays_dead else 'come back'}",
            f"{self.loading or 'no caches'}; {self.retention}",
            f"{self.redis or 'no Redis'}",
        ]


def _loading(random: Random) -> LoadBehaviour:
    return LoadBehaviour(
        slow_s=random.choice((0.01, 0.1, 1.0)),
        fails=random.choice((0.0, 0.1)),
        hangs=random.choice((0.0, 0.02)),
        entries=random.choice((2, 100)),
    )


def _retention(random: Random) -> RetentionPeriods:
    return RetentionPeriods(
        every_s=random.choice((0.5, 3.0)),
        keep_s=random.choice((0.0, 0.0, 3.0)),
        max_s=random.choice((10.0, 1000.0)),
        lease_s=random.choice((2.0, 15.0)),
    )


def _redis(random: Random) -> RedisSetup:
    return RedisSetup(
        per_stream=random.random() < 0.3,
        buffer_bytes=random.choice((1_000, 4_000, 1_000_000)),
        for_all=random.random() < 0.6,
    )


def _follower(random: Random, redis: RedisSetup | None) -> FollowerKind:
    named = random.random() < 0.6
    bus = redis is not None and (redis.for_all or random.random() < 0.5)
    legacy = not bus and random.random() < 0.4
    return FollowerKind(
        legacy=legacy,
        named=named,
        handlers=_handlers(random, named),
        earliest=random.random() < 0.7,
        slow_s=random.choice((0.0, 0.0, 0.02, 0.3)),
        fails=random.choice((0.0, 0.0, 0.1)),
        bus=bus,
        # A writer is on the same transport as its followers: nobody announces for live writers.
        writes=not legacy and bus is (redis is not None) and random.random() < 0.3,
    )


def _handlers(random: Random, named: bool) -> list[HandlerKind]:
    """A plain handler, a transactional one or both, and perhaps one that is added later."""
    names = random.choice(("plain", "exact", "both", "both")) if named else "plain"
    handlers = [
        HandlerKind(name, name == "exact", random.random() < 0.2, late=False)
        for name in ("plain", "exact")
        if names in (name, "both")
    ]
    if named and random.random() < 0.3:
        handlers.append(HandlerKind("late", False, random.random() < 0.2, late=True))
    return handlers
