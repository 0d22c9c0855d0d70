"""One run: a plan, its parts, the steps, and the judgement at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from twisted.python.failure import Failure

from synrepl.core.tokens import Token
from synrepl.testing.links import Link
from synrepl.testing.simulator.actors import (
    Actor,
    FollowerActor,
    MasterActor,
    Supervisor,
    WriterActor,
)
from synrepl.testing.simulator.clock import EPOCH, Life, VirtualClock
from synrepl.testing.simulator.database import SimulatedDatabase
from synrepl.testing.simulator.death_checker import DeathChecker
from synrepl.testing.simulator.faults import Faults
from synrepl.testing.simulator.follower_checker import FollowerChecker
from synrepl.testing.simulator.network import Network, Weather
from synrepl.testing.simulator.parts import Cast, Place
from synrepl.testing.simulator.plan import Plan
from synrepl.testing.simulator.position_checker import Movements, WatchedMovements
from synrepl.testing.simulator.transcript import Transcript
from synrepl.testing.simulator.truth import ALL, Judge, Truth
from synrepl.testing.simulator.wire_checker import WireChecker
from synrepl.testing.simulator.workload import CATALOGUE, Workload, too_long

#: How many things happen in a run.
STEPS = 80

#: Ordinary work weighs this much against the faults of a plan.
WORK_WEIGHT = 100

#: Once nothing breaks any more, everything must be where it belongs within this
#: many seconds: a muted connection is given up after 15, a worker waits for its
#: next try at most 30, and a handler's pause after failures is 15 at most.
SETTLED_WITHIN_S = 90.0


@dataclass(slots=True)
class Result:
    """What became of a run.

    :ivar violations: the rules that were broken, as sentences; empty when all is well
    :ivar counts: how much of everything happened
    """

    seed: int
    violations: list[str]
    transcript: Transcript
    counts: Mapping[str, int] = field(default_factory=dict)


class World:
    """Everything of one run."""

    def __init__(self, seed: int, cast: Cast) -> None:
        self.seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._cast = cast
        self._clock = clock = VirtualClock()
        self.transcript = Transcript(clock.seconds)
        self.judge = Judge(self.transcript)
        self.plan = plan = Plan.draw(random)
        self._truth = truth = Truth()
        self._lives: list[Life] = []
        self._wires: list[WireChecker] = []
        self._database = SimulatedDatabase(clock, random, self.transcript, self.judge, truth, plan)
        self._network = Network(clock, Weather(random, plan.slowest_s), self._opened)
        self._supervisor = Supervisor(clock, random, self.transcript, self._live, self._place)
        self._master = MasterActor("master", cast, self._network, self._watch)
        self._writers = [WriterActor(name, cast) for name in plan.writers]
        self._followers = [
            FollowerActor(
                name,
                cast,
                self._network,
                kind,
                FollowerChecker(
                    self.judge,
                    truth,
                    name,
                    exactly_once=kind.exactly_once,
                    earliest=kind.earliest,
                    too_long=too_long if kind.legacy else None,
                ),
                random,
                self._database.on_record,
            )
            for name, kind in plan.followers.items()
        ]
        self._deaths = DeathChecker(self.judge)
        self._workload = Workload(
            random,
            self.transcript,
            self.judge,
            truth,
            self._database.begin_sql,
            self._database.gave_back,
        )
        self._outside = self._live("outside")
        self._faults = Faults(
            clock, random, self.transcript, self._supervisor, self._database, self._network,
            self._master, self._writers, self._followers,
            self._workload, plan,
        )  # fmt: skip
        self._database.notified = self._notified

    @property
    def _actors(self) -> list[Actor]:
        return [self._master, *self._writers, *self._followers]

    def run(self, steps: int) -> Result:
        """Play the whole run; stops at the first broken rule."""
        for sentence in self.plan.sentences():
            self.transcript.add("plan", "{sentence}", sentence=sentence)
        with self._cast.sizes(self.plan.small):
            for actor in self._actors:
                self._clock.callLater(self._random.random() * 0.2, self._supervisor.begin, actor)
            self._wait(0.5)
            names = list(self.plan.faults)
            weights = [self.plan.faults[name] for name in names]
            for _ in range(steps):
                if self.judge.violations:
                    break
                self._step(names, weights)
            if not self.judge.violations:
                self._settle()
            result = Result(self.seed, list(self.judge.violations), self.transcript, self._counts())
            self.transcript.close()
            self._database.over = True
            for life in self._lives:
                life.bury()
        return result

    def _step(self, names: list[str], weights: list[int]) -> None:
        """One thing happens, and time passes: mostly a little."""
        what = self._random.choices(["work", *names], [WORK_WEIGHT, *weights])[0]
        if what == "work":
            self._work()
        else:
            self._faults.happen(what)
        dice = self._random.random()
        self._wait(dice**4 * 2 if dice < 0.98 else 7.0)

    def _work(self) -> None:
        what = self._random.choices(list(self.plan.work), list(self.plan.work.values()))[0]
        if what == "append_sql":
            self._workload.append_sql(self._outside)
            return
        writers: list[MasterActor | WriterActor] = [self._master, *self._writers]
        actor = self._random.choice(writers)
        if what == "append":
            self._workload.append(actor)
        else:
            self._workload.reserve(actor)

    def _wait(self, seconds: float) -> None:
        until = self._clock.seconds() + seconds
        while not self.judge.violations and self._clock.run_next(until):
            pass
        self._check()

    def _check(self) -> None:
        self._database.check()
        life = self._master.life
        watched = life is not None and self._master.ready and self._database.reaches(life)
        self._deaths.look(self._clock.seconds(), watched, self._database.dead())
        for follower in self._followers:
            follower.check()

    # -- the end -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing breaks any more: everything must come right within its time."""
        self.transcript.add("plan", "from here on nothing breaks")
        self._database.calm = True
        self._network.heal()
        for follower in self._followers:
            follower.calm = True
        deadline = self._clock.seconds() + SETTLED_WITHIN_S
        while not self.judge.violations:
            self._wait(1.0)
            unsettled = next(self._unsettled(), None)
            if unsettled is None:
                return
            if self._clock.seconds() >= deadline:
                for sentence in self._unsettled():
                    self.judge.broken("LIVENESS", "{sentence}", sentence=sentence)
                return

    def _unsettled(self) -> Iterator[str]:
        """What is not as it has to be in the end."""
        for actor in self._actors:
            if not actor.ready and not actor.retired:
                yield f"{actor.name} has not started"
        at = self._master.positions
        for key, position in self._truth.published.items():
            if at.get(key, 0) < position:
                yield f"{key} is at {at.get(key, 0)}, but was published at {position} before"
        for stream in CATALOGUE:
            linear = at.get((stream.name, ALL), 0)
            if linear < self._truth.last(stream.name):
                yield f"the linear position of {stream.name} is {linear}, below a committed fact"
            for follower in self._followers:
                yield from self._behind(follower, stream.name, at)

    def _behind(
        self, follower: FollowerActor, stream: str, at: Mapping[tuple[str, str], Token]
    ) -> Iterator[str]:
        stands = follower.positions
        writers = [ALL] if follower.kind.legacy else [w for s, w in at if s == stream and w != ALL]
        for writer in writers:
            last = self._truth.last(stream, writer)
            if at.get((stream, writer), 0) < last:
                yield f"{writer or 'the linear view'} of {stream} is not published up to {last}"
            if stands.get((stream, writer), 0) != at.get((stream, writer), 0):
                yield (
                    f"{follower.name} is at {stands.get((stream, writer))} of {stream} by"
                    f" {writer or 'all'}, the master at {at.get((stream, writer))}"
                )
            missing = follower.checker.missing(stream, writer)
            if missing:
                yield f"{follower.name} lacks {[f.token for f in missing]} of {stream} by {writer or 'all'}"

    # -- what the parts need -----------------------------------------------------------------

    def _live(self, name: str) -> Life:
        life = Life(self._clock, name, self._failed)
        self._lives.append(life)
        return life

    def _place(self, life: Life) -> Place:
        return Place(
            life,
            self._database.store_of(life),
            self._database.followers_of(life),
            self.transcript.log(life.name),
            CATALOGUE,
        )

    def _watch(self, movements: Movements) -> WatchedMovements:
        return WatchedMovements(self.judge, self._truth, self._database.unsettled, movements)

    def _opened(self, name: str, link: Link) -> None:
        self.transcript.add(link.client.name, "is connected")
        checker = WireChecker(self.judge, self._truth, link.client.name, too_long)
        link.client.sent = checker.client_sent
        link.server.sent = checker.server_sent
        self._wires.append(checker)

    def _notified(self, stream: str) -> None:
        if not self._database.calm and self._random.random() < self.plan.notify_lost:
            return
        self._clock.callLater(self._random.random() ** 2 * 0.2, self._master.notify, stream)

    def _failed(self, name: str, failure: Failure) -> None:
        self.judge.broken(
            "CRASH", "{name} ended with {trace}", name=name, trace=failure.getTraceback()
        )

    def _counts(self) -> Mapping[str, int]:
        totals = [follower.checker.totals for follower in self._followers]
        return {
            "calls": self._clock.ran,
            "seconds": int(self._clock.seconds() - EPOCH),
            "facts": self._truth.count,
            "lines": sum(wire.lines for wire in self._wires),
            "connections": len(self._wires),
            "applied": sum(total.applied for total in totals),
            "duplicates": sum(total.duplicates for total in totals),
        }


def simulate(seed: int, cast: Cast, steps: int = STEPS) -> Result:
    """Run one seed.

    :param cast: plays the processes
    :param steps: how many things happen before the end begins
    """
    return World(seed, cast).run(steps)
