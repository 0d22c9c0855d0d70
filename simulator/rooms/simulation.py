"""One simulation of rooms: processes persist and maintain them, and after every commit the store is as in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from simulator.rooms.interruptions import RandomInterruptions
from simulator.rooms.room_actions import RoomActions
from simulator.rooms.room_checker import RoomChecker
from simulator.rooms.room_follower import SimulatedRoomFollower
from simulator.rooms.room_model import RoomModel
from simulator.rooms.room_processes import (
    AnnouncedPositions,
    PersistingProcesses,
    RestartedProcess,
    RoomSurroundings,
)
from simulator.rooms.server import SimulatedServer
from simulator.simulation import Result
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.services.rooms.maintenance import room_job
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.rooms.maintenance import marks
from synrepl.storage.rooms.persisting import batch_facts

#: Number of steps in a run.
ROOM_STEPS = 14

#: Room versions of a simulation: of each rule about states and IDs of events, one.
VERSIONS = ("1", "6", "10", "11", "12")

#: Shares of transactions that are interrupted.
SHARES = (0.0, 0.01, 0.03, 0.08)

#: Numbers of changes of a state from which on followers are told to read all of it.
ALL_STATE_ROWS = (3, 8, 1_000)

#: Seconds in which everything that was begun is done, once nothing is interrupted any more.
DONE_WITHIN_S = 300.0

#: What a step does, and how often.
WEIGHTS = {
    "arrive": 12,
    "compact": 2,
    "collect": 2,
    "purge": 4,
    "come_back": 3,
    "erase": 1,
    "forget": 1,
}


class RoomSimulation:
    """All parts of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._clock = clock = VirtualClock()
        self._transcript = transcript = Transcript(clock.seconds)
        self._violations = Violations(transcript)
        self._server = SimulatedServer()
        self._interruptions = RandomInterruptions(random, random.choice(SHARES))
        self._surroundings = surroundings = RoomSurroundings(
            clock,
            random,
            self._server,
            transcript,
            self._violations,
            self._interruptions,
            self._committed,
        )
        versions = random.choices(VERSIONS, k=random.randint(1, 3))
        self._models = {
            model.room_id: model
            for model in (
                RoomModel(random, version, f"room{number}")
                for number, version in enumerate(versions)
            )
        }
        announcements = AnnouncedPositions()
        names = [f"persister{number}" for number in range(1, random.randint(2, 3) + 1)]
        self._persisters = {
            name: PersistingProcesses(surroundings, name, announcements) for name in names
        }
        self._maintainer = RestartedProcess(surroundings, "maintainer")
        self._follower = SimulatedRoomFollower(surroundings, announcements)
        client, client_database = surroundings.process("client", RandomInterruptions(random, 0.0))
        self._client: Process = client
        self._actions = RoomActions(
            random,
            transcript,
            self._violations,
            self._server,
            client,
            RoomWriters(client_database, names),
            self._persisters,
            self._maintainer,
        )
        self._all_state_rows = random.choice(ALL_STATE_ROWS)
        self._checker = RoomChecker(
            self._violations, self._server, self._follower, self._all_state_rows
        )
        transcript.add("plan", "versions {versions}, {names}", versions=versions, names=names)
        transcript.add(
            "plan", "{share} of transactions are interrupted", share=self._interruptions.share
        )

    def run(self, steps: int) -> Result:
        """Run the simulation; stops at the first broken rule."""
        try:
            with ExitStack() as patched:
                for module in (marks, room_job):  # sizes of batches depend on the time
                    patched.enter_context(patch.object(module, "perf_counter", self._clock.seconds))
                patched.enter_context(
                    patch.object(batch_facts, "ALL_STATE_ROWS", self._all_state_rows)
                )
                self._play(steps)
        finally:
            self._transcript.close()
            self._surroundings.dispose()
            self._server.close()
        return Result(
            self._seed, list(self._violations.found), self._transcript, self._actions.counts
        )

    def _play(self, steps: int) -> None:
        for _ in range(steps):
            if self._violations.found:
                return
            self._step()
        if not self._violations.found:
            self._checker.check_nothing_is_wrong()

    def _step(self) -> None:
        """Do a few things at once; when all are done, compare everything."""
        random, actions = self._random, self._actions
        models = list(self._models.values())
        share = self._interruptions.share
        what = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        chosen = random.choice(models)
        if what == "erase":
            self._settle(models)
            self._do([actions.erase(models)])
        elif what == "purge":
            self._settle([chosen])
            self._do([actions.purge(chosen), *self._arrivals(models, chosen)])
        elif what in ("come_back", "forget"):
            work = actions.come_back if what == "come_back" else actions.forget
            self._do([work(chosen), *self._arrivals(models, chosen)])
        else:
            works = self._arrivals(models, None)
            if what != "arrive" and chosen.is_stored:
                works.append(actions.rewrite(chosen, what))
            self._do(works)
        self._interruptions.share = 0.0
        self._until(self._is_quiet)
        if not self._violations.found:
            self._checker.check(models)
        self._interruptions.share = share

    def _arrivals(
        self, models: list[RoomModel], but: RoomModel | None
    ) -> list[Coroutine[Any, Any, object]]:
        works: list[Coroutine[Any, Any, object]] = []
        for model in models:
            if model is but:
                continue
            for _ in range(self._random.randint(0, 3)):
                works.append(self._actions.arrive(model))
            if self._random.random() < 0.4:
                works.append(self._actions.move(model))
        return works

    def _settle(self, models: list[RoomModel]) -> None:
        """Let everything arrive that may."""
        self._do([self._actions.arrive_all(model) for model in models])

    def _do(self, works: list[Coroutine[Any, Any, object]]) -> None:
        """Do several things at once, and perhaps kill somebody meanwhile."""
        begun = [self._client.start(each) for each in works]
        left = len(begun)

        def done(result: object) -> None:
            nonlocal left
            left -= 1
            if isinstance(result, Failure):
                self._violations.add("CRASH", "{text}", text=result.getTraceback())

        for each in begun:
            each.addBoth(done)
        if self._random.random() < 0.4:
            self._clock.callLater(self._random.random(), self._disturb)
        self._until(lambda: not left)

    def _disturb(self) -> None:
        """Kill a process, or end a connection."""
        random = self._random
        victim = random.choice([*self._persisters.values(), self._maintainer, self._follower])
        if not victim.process.alive:
            return
        if isinstance(victim, PersistingProcesses):
            how: Callable[[], object] = random.choice(
                [victim.process.kill, victim.lose_session, victim.forget]
            )
        else:
            how = victim.process.kill
        self._transcript.add("plan", "{how} {name}", how=how.__name__, name=victim.name)
        how()

    def _is_quiet(self) -> bool:
        return (
            all(each.is_ready for each in self._persisters.values())
            and self._maintainer.process.alive
            and self._follower.is_there
        )

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = self._clock.seconds() + DONE_WITHIN_S
        while not condition() and not self._violations.found:
            self._clock.run_next(deadline)
            if self._clock.seconds() >= deadline:
                self._violations.add("LIVENESS", "what was begun did not end")

    def _committed(self, process: str, name: str) -> None:
        """After a commit, the model gets what was persisted, and is compared."""
        room_id = name.rpartition(" ")[2]
        model = self._models.get(room_id)
        if model is None:
            return
        persister = self._persisters.get(process)
        if persister is not None and name.startswith("persist events of "):
            persister.under_way(room_id).committed()
        if not model.is_reworked:
            self._checker.compare(model, name)


def simulate_rooms(seed: int, steps: int = ROOM_STEPS) -> Result:
    """Run the simulation of one seed."""
    return RoomSimulation(seed).run(steps)
