"""What a seed decides before anything happens: who takes part, and what may break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from simulator.application import LoadBehaviour
from simulator.interfaces import FollowerKind, HandlerKind, RetentionPeriods

#: What may break: name and the most it may weigh against ordinary work (which weighs 100).
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

#: What else may break where Redis is in use.
BUS_FAULTS: Mapping[str, int] = {
    "restart_redis": 5,
    "cut_listener": 8,
    "cut_speaker": 8,
    "mute_bus": 4,
    "slow_subscriber": 8,
}

#: How who writes may change: names and weights likewise.
MEMBERSHIP_CHANGES: Mapping[str, int] = {
    "add_writer": 4,
    "drain_writer": 6,
    "drain_sql": 6,
    "retire_writer": 6,
    "remove_writer": 6,
    "return_writer": 6,
    "take_name_over": 4,
}

#: What besides is done in a run with caches.
_CACHED_WORK = {"change": 30, "change_sql": 8, "read": 15}


@dataclass(frozen=True, slots=True)
class RedisSetup:
    """How Redis is used.

    :ivar per_stream: each stream has a channel of its own
    :ivar buffer_bytes: what may wait for a subscriber before it is cut off
    :ivar for_all: everybody follows over it; otherwise some do so over TCP
    """

    per_stream: bool
    buffer_bytes: int
    for_all: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """The cast list of one run, and its misfortunes.

    :ivar writers: names of the writer processes beside the master
    :ivar faults: weights by name; faults that are absent do not happen in this run
    :ivar slowest_s: the longest that a piece of bytes travels, in seconds
    :ivar database_s: the longest that a step in the database takes
    :ivar commit_unknown: how often a commit's answer is lost, 0 to 1
    :ivar notify_lost: how often a NOTIFY is lost
    :ivar work: weights of what writers do
    :ivar stays_dead: a writer that died never comes back
    :ivar small: pages and buffers are small
    :ivar loading: how caches are filled; None in a run without caches
    :ivar retention: how long facts of ephemeral streams stay
    :ivar redis: None where everybody is connected with the master alone
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
    def draw(cls, random: Random, lose_commits: bool = False) -> Scenario:
        """A plan out of a seed. Every run leaves some faults out, so that others go far.

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
        # What applications keep, and who may write, is not put back by it.
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
        # Who writes is where its hearers are: nobody speaks for the living.
        writes=not legacy and bus is (redis is not None) and random.random() < 0.3,
    )


def _handlers(random: Random, named: bool) -> list[HandlerKind]:
    """Either or both of a plain and a transactional handler, and perhaps one that comes later."""
    names = random.choice(("plain", "exact", "both", "both")) if named else "plain"
    handlers = [
        HandlerKind(name, name == "exact", random.random() < 0.2, late=False)
        for name in ("plain", "exact")
        if names in (name, "both")
    ]
    if named and random.random() < 0.3:
        handlers.append(HandlerKind("late", False, random.random() < 0.2, late=True))
    return handlers
