"""One run: a plan, its parts, the steps, and the judgement at the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from simulator.actors import (
    FollowerActor,
    MasterActor,
    Supervisor,
    WriterActor,
    WritingActor,
    writing,
)
from simulator.application import Application
from simulator.application_data import ApplicationData
from simulator.bus_checker import BusChecker
from simulator.bus_faults import BusFaults
from simulator.bus_network import BusNetwork
from simulator.changers import Changers
from simulator.clock import EPOCH, Life, VirtualClock
from simulator.database import SimulatedDatabase
from simulator.death_checker import DeathChecker
from simulator.ending import Ending
from simulator.faults import Faults
from simulator.follower_checker import FollowerChecker, PositionClaims
from simulator.network import Network, Weather
from simulator.operators import Operators
from simulator.parts import Cast, FollowerKind, HandlerKind, Place
from simulator.plan import BUS_FAULTS, CHANGES_OF_WRITERS, Plan
from simulator.position_checker import Movements, WatchedMovements
from simulator.readers import Readers
from simulator.transcript import Transcript
from simulator.truth import Judge, Truth
from simulator.wire_checker import WireChecker
from simulator.workload import CATALOGUE, Workload, too_long
from synrepl.testing.links import Link

#: How many things happen in a run.
STEPS = 40

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

    def __init__(self, seed: int, cast: Cast, lose_commits: bool = False) -> None:
        self.seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._cast = cast
        self._clock = clock = VirtualClock()
        self.transcript = Transcript(clock.seconds)
        self.judge = Judge(self.transcript)
        self.plan = plan = Plan.draw(random, lose_commits)
        self._truth = truth = Truth()
        self._data = data = ApplicationData(self.transcript, self.judge)
        self._lives: list[Life] = []
        self._wires: list[WireChecker] = []
        self._database = SimulatedDatabase(
            clock, random, self.transcript, self.judge, truth, plan, data
        )
        weather = Weather(random, plan.slowest_s)
        self._network = Network(clock, weather, self._opened)
        self._heard = BusChecker(self.judge, truth)
        self._bus: BusNetwork | None = None
        if plan.redis is not None:
            self._bus = BusNetwork(clock, random, weather, plan.redis, self._heard.published)
        self._supervisor = Supervisor(clock, random, self.transcript, self._live, self._place)
        bus = self._bus is not None
        self._master = MasterActor("master", cast, self._network, self._watch, bus)
        self._writers = [self._make_writer(name) for name in plan.writers]
        self._followers = [
            FollowerActor(
                name,
                cast,
                self._network,
                kind,
                partial(self._checker, name, kind),
                PositionClaims(self.judge, name),
                random,
                self._database.followers_kept,
                data,
                self._watch,
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
        self._readers = Readers(clock, random, self.judge, data, self._actors, self._followers)
        self._changers = Changers(
            random, self.transcript, self.judge, self._readers,
            self._workload.jobs, self._database.begin_sql,
        )  # fmt: skip
        if plan.loading is not None:
            data.changed = self._readers.changed
        self._outside = self._live("outside")
        self._faults = Faults(
            clock, random, self.transcript, self._supervisor, self._database, self._network,
            self._bus, self._master, self._writers, self._followers,
            self._write, plan,
        )  # fmt: skip
        if self._bus is not None:
            self._bus_faults = BusFaults(clock, random, self.transcript, self._bus)
        self._operators = Operators(
            random, self.transcript, self.judge, self._outside,
            cast.membership(
                self._outside, self._database.for_operators(CATALOGUE, self._operators_trip)
            ),
            self._supervisor, self._database.unsettled, self._database.last_taken,
            self._writers, self._writing, self._make_writer, self._faults.interrupt,
        )  # fmt: skip
        self._ending = Ending(
            truth, self._master, self._writers, self._followers, self._database.removed
        )
        self._database.notified = self._notified

    @property
    def _actors(self) -> list[MasterActor | WriterActor | FollowerActor]:
        return [self._master, *self._writers, *self._followers]

    def run(self, steps: int) -> Result:
        """Play the whole run; stops at the first broken rule."""
        for sentence in self.plan.sentences():
            self.transcript.add("plan", "{sentence}", sentence=sentence)
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
        elif what in BUS_FAULTS:
            self._bus_faults.happen(what)
        elif what in CHANGES_OF_WRITERS:
            self._operators.happen(what)
        else:
            self._faults.happen(what)
        dice = self._random.random()
        self._wait(dice**4 * 2 if dice < 0.98 else 7.0)

    def _work(self) -> None:
        what = self._random.choices(list(self.plan.work), list(self.plan.work.values()))[0]
        if what == "append_sql":
            self._workload.append_sql(self._outside)
        elif what == "change_sql":
            self._changers.change_sql(self._outside)
        elif what == "read":
            self._readers.read_anything()
        elif what == "change":
            self._changers.change(self._writer())
        elif what == "append":
            self._workload.append(self._writer())
        else:
            self._workload.reserve(self._writer())

    def _writing(self) -> list[WritingActor]:
        return writing(self._master, self._writers, self._followers)

    def _writer(self) -> WritingActor:
        return self._random.choice([*self._writing(), *self._operators.rivals])

    def _write(self, actor: WritingActor) -> None:
        """Let somebody write something."""
        if self.plan.work["reserve"] and self._random.random() < 0.3:
            self._workload.reserve(actor)
        elif self.plan.loading is not None and self._random.random() < 0.5:
            self._changers.change(actor)
        else:
            self._workload.append(actor)

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
        if self._bus is not None:
            self._bus.heal()
        self._operators.calm()
        for follower in self._followers:
            follower.calm()
        deadline = self._clock.seconds() + SETTLED_WITHIN_S
        while not self.judge.violations:
            self._wait(1.0)
            unsettled = next(self._unsettled(), None)
            if unsettled is None:
                self._read_everything()
                return
            if self._clock.seconds() >= deadline:
                for sentence in self._unsettled():
                    self.judge.broken("LIVENESS", "{sentence}", sentence=sentence)
                return

    def _unsettled(self) -> Iterator[str]:
        yield from self._ending.unsettled()
        yield from self._operators.unfinished()

    def _read_everything(self) -> None:
        """What is stale now would be stale for ever."""
        for actor in self._actors:
            if actor.application is not None:
                actor.application.calm = True
        if self.plan.loading is not None:
            self._readers.read_everything()
            self._wait(2 * self.plan.loading.slow_s + 0.1)

    def _checker(self, name: str, kind: FollowerKind, handler: HandlerKind) -> FollowerChecker:
        """Keeps account of a handler of a follower."""
        return FollowerChecker(
            self.judge,
            self._truth,
            f"{name}'s handler {handler.name}",
            linear=kind.legacy is not handler.other_view,
            exactly_once=handler.exactly_once,
            earliest=kind.earliest or handler.late,
            alone=not any(each.other_view for each in kind.handlers),
            too_long=too_long if kind.legacy and not handler.other_view else None,
            amid_losses=self._database.amid_losses,
        )

    # -- what the parts need -----------------------------------------------------------------

    def _live(self, name: str) -> Life:
        # A source of its own: what a process draws does not change what happens to others.
        random = Random(f"{self.seed} {len(self._lives)}")  # noqa: S311
        life = Life(self._clock, name, self._failed, random.random)
        self._lives.append(life)
        return life

    def _place(self, life: Life, on_bus: bool) -> Place:
        loading = self.plan.loading
        return Place(
            life,
            self._database.store_of(life),
            self._database.followers_of(life),
            self.transcript.log(life.name),
            CATALOGUE,
            None if loading is None else Application(life, self._data, self._random, loading),
            self.plan.retention,
            self._bus.place_of(life) if on_bus and self._bus is not None else None,
            self.plan.small,
        )

    def _make_writer(self, name: str) -> WriterActor:
        return WriterActor(name, self._cast, self._watch, self._bus is not None)

    def _operators_trip(self) -> Deferred[None]:
        return self._outside.sleep(self._random.random() * self.plan.database_s)

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
        handlers = [each for follower in self._followers for each in follower.handlers]
        totals = [handler.checker.totals for handler in handlers]
        return {
            "calls": self._clock.ran,
            "seconds": int(self._clock.seconds() - EPOCH),
            "facts": self._truth.count,
            "lines": sum(wire.lines for wire in self._wires),
            "connections": len(self._wires),
            "messages": self._heard.messages,
            "cut off": 0 if self._bus is None else self._bus.cut_off,
            "applied": sum(total.applied for total in totals),
            "duplicates": sum(total.duplicates for total in totals),
            "resets": sum(total.resets for total in totals),
            "changes": self._data.count,
            "reads": self._readers.reads,
            "drained": self._operators.drained,
            "trimmed": self._database.trims.count,
        }


def simulate(seed: int, cast: Cast, steps: int = STEPS, *, lose_commits: bool = False) -> Result:
    """Run one seed.

    :param cast: plays the processes
    :param steps: how many things happen before the end begins
    :param lose_commits: the database fails over to a standby that lacks commits
    """
    with _no_looking_for_garbage():
        return World(seed, cast, lose_commits).run(steps)


@contextmanager
def _no_looking_for_garbage() -> Iterator[None]:
    """Hardly anything of a run can go before its end; to look costs a quarter of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
