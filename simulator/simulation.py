"""One run: the scenario, the steps, and the final checks."""

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
from simulator.change_workload import ChangeWorkload
from simulator.clock import EPOCH, Process, VirtualClock
from simulator.convergence_checker import ConvergenceChecker
from simulator.database import SimulatedDatabase
from simulator.death_checker import DeathChecker
from simulator.faults import Faults
from simulator.follower_checker import FollowerChecker, PositionReportChecker
from simulator.interfaces import FollowerKind, HandlerKind, ProcessEnvironment, ServiceFactory
from simulator.network import Network, NetworkConditions
from simulator.operators import Operators
from simulator.position_checker import AnnouncementListener, PositionChecker
from simulator.read_workload import ReadWorkload
from simulator.scenario import BUS_FAULTS, MEMBERSHIP_CHANGES, SimulationScenario
from simulator.transcript import Transcript
from simulator.truth import Truth, Violations
from simulator.wire_checker import WireChecker
from simulator.workload import CATALOGUE, Workload, too_long
from synrepl.testing.links import Link

#: Number of steps in a run.
STEPS = 40

#: The weight of ordinary work against the faults of a scenario.
WORK_WEIGHT = 100

#: Once faults have stopped, everything must converge within this many seconds: a muted connection is
#: closed after 15, a worker retries within 30, and a handler pauses at most 15 after failures.
CONVERGED_WITHIN_S = 90.0


@dataclass(slots=True)
class Result:
    """The result of a run.

    :ivar violations: the broken rules, as sentences; empty if all rules hold
    :ivar counts: how often everything happened
    """

    seed: int
    violations: list[str]
    transcript: Transcript
    counts: Mapping[str, int] = field(default_factory=dict)


class Simulation:
    """All parts of one run."""

    def __init__(
        self, seed: int, service_factory: ServiceFactory, lose_commits: bool = False
    ) -> None:
        self.seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._service_factory = service_factory
        self._clock = clock = VirtualClock()
        self.transcript = Transcript(clock.seconds)
        self.violations = Violations(self.transcript)
        self.scenario = scenario = SimulationScenario.draw(random, lose_commits)
        self._truth = truth = Truth()
        self._data = data = ApplicationData(self.transcript, self.violations)
        self._processes: list[Process] = []
        self._wire_checkers: list[WireChecker] = []
        self._database = SimulatedDatabase(
            clock, random, self.transcript, self.violations, truth, scenario, data
        )
        conditions = NetworkConditions(random, scenario.slowest_s)
        self._network = Network(clock, conditions, self._link_opened)
        self._bus_checker = BusChecker(self.violations, truth)
        self._bus: BusNetwork | None = None
        if scenario.redis is not None:
            self._bus = BusNetwork(
                clock, random, conditions, scenario.redis, self._bus_checker.published
            )
        self._supervisor = Supervisor(
            clock, random, self.transcript, self._new_process, self._new_environment
        )
        bus = self._bus is not None
        self._master = MasterActor(
            "master", service_factory, self._network, self._wrap_listener, bus
        )
        self._writers = [self._make_writer(name) for name in scenario.writers]
        self._followers = [
            FollowerActor(
                name,
                service_factory,
                self._network,
                kind,
                partial(self._checker, name, kind),
                PositionReportChecker(self.violations, name),
                random,
                self._database.follower_records,
                data,
                self._wrap_listener,
            )
            for name, kind in scenario.followers.items()
        ]
        self._deaths = DeathChecker(self.violations)
        self._workload = Workload(
            random,
            self.transcript,
            self.violations,
            truth,
            self._database.begin_sql,
            self._database.tokens_released,
        )
        self._read_workload = ReadWorkload(
            clock, random, self.violations, data, self._actors, self._followers
        )
        self._change_workload = ChangeWorkload(
            random, self.transcript, self.violations, self._read_workload,
            self._workload.jobs, self._database.begin_sql,
        )  # fmt: skip
        if scenario.loading is not None:
            data.changed = self._read_workload.changed
        self._outside = self._new_process("outside")
        self._faults = Faults(
            clock, random, self.transcript, self._supervisor, self._database, self._network,
            self._bus, self._master, self._writers, self._followers,
            self._write, scenario,
        )  # fmt: skip
        if self._bus is not None:
            self._bus_faults = BusFaults(clock, random, self.transcript, self._bus)
        self._operators = Operators(
            random, self.transcript, self.violations, self._outside,
            service_factory.membership(
                self._outside, self._database.for_operators(CATALOGUE, self._operators_trip)
            ),
            self._supervisor, self._database.unsettled, self._database.last_taken,
            self._writers, self._writing, self._make_writer, self._faults.interrupt,
        )  # fmt: skip
        self._convergence = ConvergenceChecker(
            truth, self._master, self._writers, self._followers, self._database.removed
        )
        self._database.notified = self._notified

    @property
    def _actors(self) -> list[MasterActor | WriterActor | FollowerActor]:
        return [self._master, *self._writers, *self._followers]

    def run(self, steps: int) -> Result:
        """Run the simulation; stops at the first broken rule."""
        for sentence in self.scenario.sentences():
            self.transcript.add("plan", "{sentence}", sentence=sentence)
        for actor in self._actors:
            self._clock.callLater(self._random.random() * 0.2, self._supervisor.start, actor)
        self._wait(0.5)
        names = list(self.scenario.faults)
        weights = [self.scenario.faults[name] for name in names]
        for _ in range(steps):
            if self.violations.found:
                break
            self._step(names, weights)
        if not self.violations.found:
            self._settle()
        result = Result(self.seed, list(self.violations.found), self.transcript, self._counts())
        self.transcript.close()
        self._database.is_over = True
        for process in self._processes:
            process.dispose()
        return result

    def _step(self, names: list[str], weights: list[int]) -> None:
        """Do one thing, and let time pass: mostly little."""
        what = self._random.choices(["work", *names], [WORK_WEIGHT, *weights])[0]
        if what == "work":
            self._work()
        elif what in BUS_FAULTS:
            self._bus_faults.inject(what)
        elif what in MEMBERSHIP_CHANGES:
            self._operators.perform(what)
        else:
            self._faults.inject(what)
        dice = self._random.random()
        self._wait(dice**4 * 2 if dice < 0.98 else 7.0)

    def _work(self) -> None:
        what = self._random.choices(list(self.scenario.work), list(self.scenario.work.values()))[0]
        if what == "append_sql":
            self._workload.append_sql(self._outside)
        elif what == "change_sql":
            self._change_workload.change_sql(self._outside)
        elif what == "read":
            self._read_workload.read_anything()
        elif what == "change":
            self._change_workload.change(self._writer())
        elif what == "append":
            self._workload.append(self._writer())
        else:
            self._workload.reserve(self._writer())

    def _writing(self) -> list[WritingActor]:
        return writing(self._master, self._writers, self._followers)

    def _writer(self) -> WritingActor:
        return self._random.choice([*self._writing(), *self._operators.rivals])

    def _write(self, actor: WritingActor) -> None:
        """Let an actor write something."""
        if self.scenario.work["reserve"] and self._random.random() < 0.3:
            self._workload.reserve(actor)
        elif self.scenario.loading is not None and self._random.random() < 0.5:
            self._change_workload.change(actor)
        else:
            self._workload.append(actor)

    def _wait(self, seconds: float) -> None:
        until = self._clock.seconds() + seconds
        while not self.violations.found and self._clock.run_next(until):
            pass
        self._check()

    def _check(self) -> None:
        self._database.check()
        process = self._master.process
        watched = process is not None and self._master.ready and self._database.can_reach(process)
        self._deaths.check(self._clock.seconds(), watched, self._database.dead())
        for follower in self._followers:
            follower.check()

    # -- the end -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Stop all faults: everything must converge in time."""
        self.transcript.add("plan", "from here on nothing breaks")
        self._database.faults_off = True
        self._network.heal()
        if self._bus is not None:
            self._bus.heal()
        self._operators.stop_faults()
        for follower in self._followers:
            follower.stop_faults()
        deadline = self._clock.seconds() + CONVERGED_WITHIN_S
        while not self.violations.found:
            self._wait(1.0)
            problems = next(self._problems(), None)
            if problems is None:
                self._read_everything()
                return
            if self._clock.seconds() >= deadline:
                for sentence in self._problems():
                    self.violations.add("LIVENESS", "{sentence}", sentence=sentence)
                return

    def _problems(self) -> Iterator[str]:
        yield from self._convergence.problems()
        yield from self._operators.unfinished()

    def _read_everything(self) -> None:
        """Read all caches: an entry that is stale now would stay stale."""
        for actor in self._actors:
            if actor.application is not None:
                actor.application.faults_off = True
        if self.scenario.loading is not None:
            self._read_workload.read_everything()
            self._wait(2 * self.scenario.loading.slow_s + 0.1)

    def _checker(self, name: str, kind: FollowerKind, handler: HandlerKind) -> FollowerChecker:
        """The checker of a handler of a follower."""
        return FollowerChecker(
            self.violations,
            self._truth,
            f"{name}'s handler {handler.name}",
            linear=kind.legacy is not handler.other_view,
            exactly_once=handler.exactly_once,
            earliest=kind.earliest or handler.late,
            alone=not any(each.other_view for each in kind.handlers),
            too_long=too_long if kind.legacy and not handler.other_view else None,
            may_be_lost=self._database.may_be_lost,
        )

    # -- callbacks of the parts -----------------------------------------------------------------

    def _new_process(self, name: str) -> Process:
        # Its own random source, so that what a process draws does not affect others.
        random = Random(f"{self.seed} {len(self._processes)}")  # noqa: S311
        process = Process(self._clock, name, self._failed, random.random)
        self._processes.append(process)
        return process

    def _new_environment(self, process: Process, on_bus: bool) -> ProcessEnvironment:
        loading = self.scenario.loading
        return ProcessEnvironment(
            process,
            self._database.store_of(process),
            self._database.followers_of(process),
            self.transcript.log(process.name),
            CATALOGUE,
            None if loading is None else Application(process, self._data, self._random, loading),
            self.scenario.retention,
            self._bus.access_for(process) if on_bus and self._bus is not None else None,
            self.scenario.small,
        )

    def _make_writer(self, name: str) -> WriterActor:
        return WriterActor(name, self._service_factory, self._wrap_listener, self._bus is not None)

    def _operators_trip(self) -> Deferred[None]:
        return self._outside.sleep(self._random.random() * self.scenario.database_s)

    def _wrap_listener(self, listener: AnnouncementListener) -> PositionChecker:
        return PositionChecker(self.violations, self._truth, self._database.unsettled, listener)

    def _link_opened(self, name: str, link: Link) -> None:
        self.transcript.add(link.client.name, "is connected")
        checker = WireChecker(self.violations, self._truth, link.client.name, too_long)
        link.client.sent = checker.client_sent
        link.server.sent = checker.server_sent
        self._wire_checkers.append(checker)

    def _notified(self, stream: str) -> None:
        if not self._database.faults_off and self._random.random() < self.scenario.notify_lost:
            return
        self._clock.callLater(self._random.random() ** 2 * 0.2, self._master.notify, stream)

    def _failed(self, name: str, failure: Failure) -> None:
        self.violations.add(
            "CRASH", "{name} ended with {trace}", name=name, trace=failure.getTraceback()
        )

    def _counts(self) -> Mapping[str, int]:
        handlers = [each for follower in self._followers for each in follower.handlers]
        totals = [handler.checker.totals for handler in handlers]
        return {
            "calls": self._clock.ran,
            "seconds": int(self._clock.seconds() - EPOCH),
            "facts": self._truth.count,
            "lines": sum(checker.lines for checker in self._wire_checkers),
            "connections": len(self._wire_checkers),
            "messages": self._bus_checker.messages,
            "cut off": 0 if self._bus is None else self._bus.cut_off,
            "applied": sum(total.applied for total in totals),
            "duplicates": sum(total.duplicates for total in totals),
            "resets": sum(total.resets for total in totals),
            "changes": self._data.count,
            "reads": self._read_workload.reads,
            "drained": self._operators.drained,
            "trimmed": self._database.trims.count,
        }


def simulate(
    seed: int, service_factory: ServiceFactory, steps: int = STEPS, *, lose_commits: bool = False
) -> Result:
    """Run one seed.

    :param service_factory: makes the services of processes
    :param steps: number of steps before the final checks
    :param lose_commits: the database fails over to a standby that lacks commits
    """
    with _garbage_collection_disabled():
        return Simulation(seed, service_factory, lose_commits).run(steps)


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection: hardly anything can be freed during a run, and it takes a quarter of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
