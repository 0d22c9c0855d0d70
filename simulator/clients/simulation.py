"""One simulation of clients: they come and go between processes under faults, and lose and repeat nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from simulator.clients.actions import ClientActions, RoomOfOthers
from simulator.clients.client import LONG_S, SimulatedClient
from simulator.clients.processes import ClientDeployment
from simulator.clients.stored_rooms import StoredRooms
from simulator.clock import VirtualClock
from simulator.network import Network, NetworkConditions
from simulator.rooms.interruptions import RandomInterruptions
from simulator.rooms.random_rooms import USERS
from simulator.rooms.room_processes import RestartedProcess, RoomSurroundings
from simulator.rooms.server import SimulatedServer
from simulator.simulation import Result
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.rooms.maintenance import room_job
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.storage.rooms.maintenance import marks
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS

#: Number of steps in a run.
CLIENT_STEPS = 60

#: Room versions of rooms of other servers. In older ones, servers choose the IDs of events.
VERSIONS = ("3", "6", "11", "12")

#: Shares of transactions that are interrupted, of NOTIFYs and of answers between processes that are lost.
SHARES = (0.0, 0.01, 0.03)
LOST_NOTIFIES = (0.0, 0.1, 1.0)
LOST_ANSWERS = (0.0, 0.1)

#: Seconds in which processes and clients have caught up, once nothing breaks any more; a cut-off connection takes a while.
CAUGHT_UP_S = 90.0

#: Seconds in which a waiting client is told of news, at most, when nothing breaks.
WOKEN_S = 15.0

#: What a step does, and how often.
WEIGHTS = {
    "say": 12,
    "change_state": 3,
    "change_membership": 8,
    "arrive": 8,
    "create": 2,
    "move": 4,
    "purge": 3,
    "compact": 1,
    "kill": 2,
    "cut": 2,
    "mute": 1,
    "isolate": 1,
    "lose_session": 1,
}


class ClientSimulation:
    """All parts of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._clock = clock = VirtualClock()
        self._transcript = transcript = Transcript(clock.seconds)
        self._violations = Violations(transcript)
        self._counts: Counter[str] = Counter()
        self._server = SimulatedServer()
        self._stored = StoredRooms(self._server)
        self._interruptions = RandomInterruptions(random, random.choice(SHARES))
        self._lost_notifies = random.choice(LOST_NOTIFIES)
        self._surroundings = surroundings = RoomSurroundings(
            clock,
            random,
            self._server,
            transcript,
            self._violations,
            self._interruptions,
            self._committed,
        )
        conditions = NetworkConditions(random, random.choice((0.005, 0.05, 0.3)))
        self._network = Network(clock, conditions, lambda name, link: None)
        self._deployment = ClientDeployment(
            surroundings, self._network, random.choice(LOST_ANSWERS)
        )
        self._maintainer = RestartedProcess(surroundings, "maintainer")
        process, database = surroundings.process("clients", RandomInterruptions(random, 0.0))
        self._process = process
        self._clients = [
            SimulatedClient(
                random,
                process,
                self._deployment,
                self._stored,
                transcript,
                self._violations,
                ClientIdentity(user, f"D{number}"),
                self._counts,
            )
            for number, user in enumerate([*USERS[:3], random.choice(USERS)])
        ]
        others = [
            RoomOfOthers(random, random.choice(VERSIONS), f"room{number}")
            for number in range(random.randint(1, 2))
        ]
        self._actions = ClientActions(
            random,
            process,
            self._deployment,
            self._stored,
            transcript,
            self._violations,
            RoomWriters(database, list(self._deployment.processes)),
            self._maintainer,
            self._clients,
            others,
            self._counts,
        )

    def run(self, steps: int) -> Result:
        """Run the simulation; stops at the first broken rule."""
        try:
            with ExitStack() as patched:
                for module in (marks, room_job):  # sizes of batches depend on the time
                    patched.enter_context(patch.object(module, "perf_counter", self._clock.seconds))
                self._play(steps)
        finally:
            found = list(self._violations.found)
            self._transcript.close()
            self._surroundings.dispose()
            self._server.close()
        return Result(self._seed, found, self._transcript, self._counts)

    def _play(self, steps: int) -> None:
        self._actions.begin(self._actions.create())
        for client in self._clients:
            self._process.spawn("client", client.run())
        for _ in range(steps):
            if self._violations.found:
                return
            self._step()
            dice = self._random.random()
            self._wait(dice**3 * 2)
        self._settle()

    def _step(self) -> None:
        what = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        fault = _FAULTS.get(what)
        if fault is not None:
            fault(self)
        else:
            work: Callable[[], Coroutine[Any, Any, object]] = getattr(self._actions, what)
            self._actions.begin(work())

    # -- faults -----------------------------------------------------------------------

    def _kill(self) -> None:
        victim = self._random.choice([*self._deployment.processes.values(), self._maintainer])
        if victim.process.alive:
            victim.process.kill()
            self._counts["killed"] += 1

    def _cut(self) -> None:
        if self._network.links:
            link = self._random.choice(self._network.links)
            link.cut(self._random.randint(0, max(link.client.waiting, link.server.waiting)))
            self._transcript.add(link.client.name, "is cut off")

    def _mute(self) -> None:
        if self._network.links:
            link = self._random.choice(self._network.links)
            link.silence()
            self._transcript.add(link.client.name, "hears nothing any more")
            self._clock.callLater(self._random.random() * 5, link.silence, False)

    def _isolate(self) -> None:
        name = self._random.choice(list(self._deployment.processes))
        self._network.isolate(self._deployment.processes[name].process, self._random.random() * 3)
        self._transcript.add(name, "is isolated")

    def _lose_session(self) -> None:
        name = self._random.choice(list(self._deployment.processes))
        self._deployment.processes[name].database.lose_sessions()
        self._transcript.add(name, "loses its session")

    # -- the end ----------------------------------------------------------------------

    def _settle(self) -> None:
        """Stop all faults: clients learn of everything, and waiting ones are woken."""
        self._transcript.add("plan", "from here on nothing breaks")
        self._interruptions.share = self._lost_notifies = self._deployment.lost_answers = 0.0
        self._network.heal()
        for client in self._clients:
            client.is_calm = True
        if not self._until(lambda: self._deployment.are_ready and not self._actions.under_way):
            self._fail("processes or actions are not done")
        if not self._until(self._are_caught_up):
            self._fail("clients have not caught up")
        self._check_ends()
        self._check_wakes()

    def _are_caught_up(self) -> bool:
        return all(
            client.since is not None and self._stored.is_all_covered(client.since.events)
            for client in self._clients
        )

    def _check_ends(self) -> None:
        """What clients know in the end; and what a new one would be told."""
        if self._violations.found:
            return
        bodies = Counter(each.body for each in self._stored.events.values() if each.body)
        for body, event_id in self._actions.bodies.items():
            if bodies[body] != 1:
                self._violations.add("ONCE", "{body} is there {n} times", body=body, n=bodies[body])
            elif event_id not in self._stored.events:
                self._violations.add("ONCE", "{event_id} is not there", event_id=event_id)
        done = [self._process.start(client.check_end()) for client in self._clients]
        self._until(lambda: all(each.called for each in done))

    def _check_wakes(self) -> None:
        """One more message in each room reaches everybody in it, who all wait."""
        if self._violations.found:
            return
        for client in self._clients:
            client.only_waits = True
        self._wait(LONG_S)
        before = set(self._stored.events)
        for room_id in self._actions.room_ids:
            self._actions.begin(self._actions.say_in(room_id))
        if not self._until(lambda: not self._actions.under_way):
            self._fail("messages are not sent")
        sent = self._stored.events.keys() - before
        if not self._until(
            lambda: all(client.has_seen(each) for client in self._clients for each in sent), WOKEN_S
        ):
            self._fail("a client that waits is not woken")

    def _fail(self, what: str) -> None:
        if not self._violations.found:
            self._violations.add("LIVENESS", "{what}", what=what)

    # -- time -------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        until = self._clock.seconds() + seconds
        while not self._violations.found and self._clock.run_next(until):
            pass

    def _until(self, condition: Callable[[], bool], seconds: float = CAUGHT_UP_S) -> bool:
        until = self._clock.seconds() + seconds
        while not self._violations.found and not condition():
            self._clock.run_next(until)
            if self._clock.seconds() >= until:
                return condition()
        return True

    def _committed(self, process: str, name: str) -> None:
        """After a commit, what it stored is noted, and the master notified."""
        self._stored.committed()
        if name.startswith("purge events of "):
            self._stored.were_purged(name.rpartition(" ")[2])
        for stream in ROOM_STREAMS:
            if self._random.random() >= self._lost_notifies:
                delay = self._random.random() ** 3 * 0.1
                self._clock.callLater(delay, self._deployment.wake, stream.name)


_FAULTS: dict[str, Callable[[ClientSimulation], None]] = {
    "kill": ClientSimulation._kill,
    "cut": ClientSimulation._cut,
    "mute": ClientSimulation._mute,
    "isolate": ClientSimulation._isolate,
    "lose_session": ClientSimulation._lose_session,
}


def simulate_clients(seed: int, steps: int = CLIENT_STEPS) -> Result:
    """Run the simulation of one seed."""
    return ClientSimulation(seed).run(steps)
