"""Faults, one function each, chosen by the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from simulator.actors import (
    Actor,
    FollowerActor,
    MasterActor,
    Supervisor,
    WriterActor,
    WritingActor,
    writing,
)
from simulator.bus_network import BusNetwork
from simulator.clock import VirtualClock
from simulator.database import SimulatedDatabase
from simulator.follower_checker import Checkpoint
from simulator.network import Network
from simulator.scenario import SimulationScenario
from simulator.standby import Standby
from simulator.transcript import Transcript
from simulator.workload import CATALOGUE
from synrepl.testing.links import Link

#: Maximum seconds for which a follower is down: longer than a lease.
FOLLOWER_DOWN_S = 20.0

#: Maximum seconds for which a live process is isolated: longer than some leases.
ISOLATED_S = 10.0


class Faults:
    """Injects faults into what works.

    :param write: starts a write, for faults that should interrupt one
    :param scenario: how long writes take, and whether killed writers are restarted
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        transcript: Transcript,
        supervisor: Supervisor,
        database: SimulatedDatabase,
        network: Network,
        bus: BusNetwork | None,
        master: MasterActor,
        writers: Sequence[WriterActor],
        followers: Sequence[FollowerActor],
        write: Callable[[WritingActor], object],
        scenario: SimulationScenario,
    ) -> None:
        self._clock = clock
        self._random = random
        self._transcript = transcript
        self._supervisor = supervisor
        self._database = database
        self._network = network
        self._bus = bus
        self._master = master
        self._writers = writers
        self._followers = followers
        self._write = write
        self._promotions = 0
        self._stays_dead = scenario.stays_dead
        self._database_s, self._slowest_s = scenario.database_s, scenario.slowest_s

    def inject(self, name: str) -> None:
        """Inject one of :data:`_FAULTS`."""
        _FAULTS[name](self)

    def interrupt(self, actor: WritingActor) -> None:
        """Crash a writer, or end its session, mostly while it writes."""
        process = actor.process
        if process is not None and self._random.random() < 0.5:
            self._amid(actor, lambda: self._database.lose_sessions(process))
        else:
            self._amid(actor, lambda: self._supervisor.kill(actor))

    def _crash_master(self) -> None:
        self._amid(self._master, lambda: self._supervisor.kill(self._master))

    def _stop_master(self) -> None:
        if self._master.ready and self._master.process is not None:
            self._master.process.spawn("stop", self._supervisor.stop(self._master))

    def _crash_writer(self) -> None:
        actor = self._random.choice(self._writers)
        actor.retired = actor.retired or (self._stays_dead and actor.ready)
        self._amid(actor, lambda: self._supervisor.kill(actor))

    def _crash_follower(self) -> None:
        actor = self._random.choice(self._followers)
        self._amid(actor, lambda: self._supervisor.kill(actor))

    def _follower_away(self) -> None:
        self._supervisor.kill(self._random.choice(self._followers), "goes away", FOLLOWER_DOWN_S)

    def _cut_off(self) -> None:
        """Isolate a process from everything; mostly a follower."""
        actors: list[Actor] = [*self._followers, *self._followers, *self._writers]
        process = self._random.choice(actors).process
        if process is not None:
            seconds = self._random.random() * ISOLATED_S
            self._network.isolate(process, seconds)
            self._database.isolate(process, seconds)
            if self._bus is not None:
                self._bus.isolate(process, seconds)

    def _cut_link(self) -> None:
        link = self._some_link()
        if link is not None:
            under_way = max(link.client.waiting, link.server.waiting)
            first = self._random.randint(0, under_way)
            self._log(link.client.name, "is cut off; {first} bytes still arrive", first=first)
            link.cut(first)

    def _mute_link(self) -> None:
        link = self._some_link()
        if link is not None:
            self._log(link.client.name, "hears nothing any more, and is not heard")
            link.silence()
            if self._random.random() < 0.5:
                self._clock.callLater(self._random.random() * 30, link.silence, False)

    def _stop_reading(self) -> None:
        link = self._some_link()
        if link is not None and link.client.open:
            seconds = self._random.random() * 5
            self._log(link.client.name, "reads nothing for {seconds:.1f} s", seconds=seconds)
            link.server.stall(True)
            self._clock.callLater(seconds, link.server.stall, False)

    def _lose_session(self) -> None:
        actor = self._random.choice(writing(self._master, self._writers, self._followers))
        process = actor.process
        if process is not None:
            self._amid(actor, lambda: self._database.lose_sessions(process))

    def _database_away(self) -> None:
        actor: Actor = self._random.choice([self._master, *self._writers, *self._followers])
        if actor.process is not None:
            self._database.isolate(actor.process, self._random.random() * 3)

    def _fail_over(self) -> None:
        self._database.fail_over(CATALOGUE, self._random.randint(0, 32))

    def _lose_commits(self) -> None:
        """Promote a standby that was disconnected for a while, during writes."""
        standby = self._database.replicate()
        checkpoints = [follower.checkpoint() for follower in self._followers]
        delay = self._random.random() * 3
        self._clock.callLater(delay, self._write_something)
        delay += self._random.random() * 2 * (self._database_s + self._slowest_s)
        self._clock.callLater(delay, self._promote, standby, checkpoints, self._promotions)

    def _write_something(self) -> None:
        if not self._database.faults_off:
            self._write(self._random.choice(writing(self._master, self._writers, self._followers)))

    def _promote(
        self, standby: Standby, checkpoints: Sequence[Sequence[Checkpoint]], promotions: int
    ) -> None:
        if (
            self._database.faults_off or self._promotions != promotions
        ):  # it was a standby of an earlier server
            return
        floors = self._database.lose_commits(standby, self._random.randint(0, 32))
        self._promotions += 1
        for follower, checkpoint in zip(self._followers, checkpoints, strict=True):
            follower.failed_over(floors, checkpoint)

    def _amid(self, actor: WritingActor, fault: Callable[[], object]) -> None:
        """Inject a fault into a writer, mostly while it is writing."""
        if self._random.random() < 0.7:
            self._write(actor)
            self._clock.callLater(self._random.random() * 2 * self._database_s, fault)
        else:
            fault()

    def _some_link(self) -> Link | None:
        links = self._network.links
        return self._random.choice(links) if links else None

    def _log(self, who: str, words: str, **facts: object) -> None:
        self._transcript.add(who, words, **facts)


_FAULTS: Mapping[str, Callable[[Faults], None]] = {
    "crash_master": Faults._crash_master,
    "stop_master": Faults._stop_master,
    "crash_writer": Faults._crash_writer,
    "crash_follower": Faults._crash_follower,
    "cut_link": Faults._cut_link,
    "mute_link": Faults._mute_link,
    "lose_session": Faults._lose_session,
    "database_away": Faults._database_away,
    "fail_over": Faults._fail_over,
    "lose_commits": Faults._lose_commits,
    "stop_reading": Faults._stop_reading,
    "follower_away": Faults._follower_away,
    "cut_off": Faults._cut_off,
}
