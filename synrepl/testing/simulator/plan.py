"""What a seed decides before anything happens: who takes part, and what may break."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from synrepl.testing.simulator.parts import FollowerKind

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
}


@dataclass(frozen=True, slots=True)
class Plan:
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

    @classmethod
    def draw(cls, random: Random) -> Plan:
        """A plan out of a seed. Every run leaves some faults out, so that others go far."""
        faults = {
            name: random.randint(1, most) for name, most in FAULTS.items() if random.random() < 0.45
        }
        return cls(
            writers=[f"writer{n}" for n in range(1, random.randint(1, 3) + 1)],
            followers={
                f"follower{n}": _follower(random) for n in range(1, random.randint(2, 4) + 1)
            },
            faults=faults,
            slowest_s=random.choice((0.005, 0.05, 0.5)),
            database_s=random.choice((0.002, 0.01, 0.05)),
            commit_unknown=random.choice((0, 0, 0.03)),
            notify_lost=random.choice((0, 0.1, 1.0)),
            work={
                "append": 60,
                "append_sql": random.choice((0, 10, 25)),
                "reserve": random.choice((0, 10, 25)),
            },
            stays_dead=random.random() < 0.3,
            small=random.random() < 0.6,
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
        ]


def _follower(random: Random) -> FollowerKind:
    named = random.random() < 0.6
    return FollowerKind(
        legacy=random.random() < 0.4,
        named=named,
        exactly_once=named and random.random() < 0.5,
        earliest=random.random() < 0.8,
        slow_s=random.choice((0.0, 0.0, 0.02, 0.3)),
        fails=random.choice((0.0, 0.0, 0.1)),
    )
