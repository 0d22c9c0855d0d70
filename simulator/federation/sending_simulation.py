"""A simulation of sending: servers that fail, links that are cut, processes that are killed, senders that are replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from random import Random
from unittest.mock import patch

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.receiving_server import Reception
from simulator.federation.sending_edus import EduWorkload
from simulator.federation.sending_processes import HOME
from simulator.federation.sending_world import SendingWorld
from simulator.rooms.interruptions import RandomInterruptions
from simulator.simulation import Result
from synrepl.rooms import server_of
from synrepl.services.federation.sending import destination_queue, pending_edus
from synrepl.services.federation.sending.transactions import MAX_MISSED

#: Number of steps of a run.
SENDING_STEPS = 40

#: Shares of the database's transactions that are interrupted.
SHARES = (0.0, 0.01, 0.04)

#: Lists of processes that send.
SENDERS: Sequence[Sequence[str]] = (("one",), ("one", "two"), ("two",), ("one", "two", "three"))

#: Limits of what waits in memory for one destination: events, and EDUs that nobody keeps.
LIMITS = ((1_000, 200), (30, 10))

#: Seconds in which everything has arrived, once nothing is disturbed any more: a server that could not be told that
#: another one is up tries it again after some time.
DONE_WITHIN_S = 20_000.0

_WORK = {
    "say": 12,
    "burst": 3,
    "join": 2,
    "leave": 2,
    "wait": 5,
    "message": 5,
    "devices": 2,
    "typing": 2,
    "hand over": 3,
}

_DISTURBANCES = {
    "reception": 4,
    "down": 1,
    "up": 3,
    "cut": 1,
    "heal": 3,
    "kill": 2,
    "session": 1,
    "senders": 1,
    "remote server up": 2,
}

#: One run in so many is not disturbed at all.
_CALM = 6


class SendingSimulation:
    """All parts of one run.

    :ivar world: what is simulated
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._counts: Counter[str] = Counter()
        self._names = [f"s{number}.example" for number in range(random.randint(1, 5))]
        self._senders = random.choice(SENDERS)
        self._is_calm = random.randrange(_CALM) == 0
        self._interruptions = RandomInterruptions(
            random, 0.0 if self._is_calm else random.choice(SHARES)
        )
        self._limits = random.choice(LIMITS)
        self._weights = _WORK if self._is_calm else _WORK | _DISTURBANCES
        self.world = SendingWorld(seed, self._senders, interruptions=self._interruptions)
        self._edus = EduWorkload(self.world)
        self._rooms: list[HostedRoom] = []
        #: Events that were sent when nothing was disturbed any more.
        self._last: set[str] = set()

    def run(self, steps: int) -> Result:
        """Run the simulation; stops at the first broken rule."""
        world, violations = self.world, list[str]()
        pending, plain = self._limits
        try:
            with ExitStack() as limits:
                for module, name, limit in (
                    (destination_queue, "MAX_PENDING", pending),
                    (pending_edus, "MAX_PLAIN", plain),
                ):
                    limits.enter_context(patch.object(module, name, limit))
                self._play(steps)
        except AssertionError as error:
            violations.append(str(error).partition("\n")[0])
        finally:
            world.close()
        return Result(self._seed, violations, world.transcript, self._counts)

    def _play(self, steps: int) -> None:
        random, world = self._random, self.world
        for number in range(random.randint(1, 3)):
            servers = random.sample(self._names, random.randint(1, len(self._names)))
            self._rooms.append(world.room(f"room{number}", servers))
        for _ in range(steps):
            what = random.choices(list(self._weights), list(self._weights.values()))[0]
            self._counts[what] += 1
            world.transcript.add("plan", "{what}", what=what)
            self._do(what)
            self._check(self._edus.faults())
        self._calm_down()
        self._last = {world.say(room, "last").event_id for room in self._rooms}
        self._edus.change_devices(self._sharing())
        world.until(self._has_arrived, DONE_WITHIN_S)
        world.run(5.0)
        self._check(self._edus.faults())
        self._check(self._faults_of_the_end())

    def _check(self, faults: Iterator[str]) -> None:
        self.world.check()
        for each in faults:
            raise AssertionError(each)

    def _do(self, what: str) -> None:
        random, world = self._random, self.world
        room, name = random.choice(self._rooms), random.choice(self._names)
        receiver = world.receiver(name)
        if what == "say":
            world.say(room)
        elif what == "burst":
            for _ in range(random.choice([5, 20, 120])):
                world.say(room)
        elif what in ("join", "leave"):
            self._change(room, f"@bob{random.randint(1, 2)}:{name}", what)
        elif what == "wait":
            world.run(random.choice([0.1, 1.0, 5.0, 60.0, 600.0]))
        elif what == "reception":
            receiver.next.append(random.choice(list(Reception)))
            receiver.answer_s = random.choice([0.0, 0.0, 0.5, 30.0])
        elif what in ("down", "up", "cut", "heal", "remote server up"):
            self._change_link(what, name)
        elif what in ("message", "devices", "typing", "hand over"):
            self._edu(what, room, name)
        else:
            self._disturb(what)

    def _change_link(self, what: str, name: str) -> None:
        federation = self.world.federation
        if what == "down":
            federation.stop(name)
        elif what == "up":
            federation.start(name)
        elif what == "cut":
            federation.cut(HOME, name)
        elif what == "heal":
            federation.heal(HOME, name)
        else:
            self._server_is_up(name)

    def _edu(self, what: str, room: HostedRoom, name: str) -> None:
        edus, random = self._edus, self._random
        if what == "message":
            for _ in range(random.choice([1, 1, 1, 60])):
                edus.message(name, is_heard=random.random() < 0.8)
        elif what == "devices":
            edus.change_devices(self._sharing())
        elif what == "typing":
            edus.type(room, is_typing=random.random() < 0.5)
        else:
            for _ in range(1 if self._is_calm else random.choice([1, 1, 30])):
                edus.hand_over(name)

    def _sharing(self) -> Collection[str]:
        """The servers that share a room with Alice."""
        return frozenset().union(*(room.servers() for room in self._rooms)) - {HOME}

    def _server_is_up(self, name: str) -> None:
        """REMOTE_SERVER_UP reaches the processes that run."""
        for each in self.world.senders.values():
            if each.process.alive:
                each.process.spawn("up", each.is_up(name))

    def _change(self, room: HostedRoom, user_id: str, what: str) -> None:
        current = room.current(("m.room.member", user_id))
        is_in = current is not None and current.membership == "join"
        if is_in and what == "leave":
            self._edus.left(server_of(user_id))
            if self._random.random() < 0.5:
                self.world.leave(room, user_id)
            else:
                alice = f"@alice:{HOME}"
                self.world.send(room, "m.room.member", alice, {"membership": "leave"}, user_id)
        elif not is_in and what == "join":
            self.world.join(room, user_id)

    def _disturb(self, what: str) -> None:
        world, random = self.world, self._random
        if what == "senders":
            self._senders = random.choice(SENDERS)
            before, world.senders = world.senders, {}
            for each in before.values():
                if random.random() < 0.5 and each.process.alive:
                    world.stop_sender(each)
                else:
                    world.kill_for_good(each)
            for name in self._senders:
                world.start_sender(name, self._senders)
            return
        victim = random.choice(list(world.senders.values()))
        if victim.process.alive:
            if what == "kill":
                victim.process.kill()
            else:
                victim.database.lose_sessions()

    def _calm_down(self) -> None:
        """Nothing is disturbed any more. Not every process hears that other servers are back."""
        world, tells = self.world, self._random.random() < 0.7
        self._interruptions.share = 0.0
        for name, receiver in world.receivers.items():
            world.federation.start(name)
            world.federation.heal(HOME, name)
            receiver.next.clear()
            receiver.answer_s = 0.0
            if tells:
                self._server_is_up(name)

    def _has_arrived(self) -> bool:
        """Whether each server has the newest event of each room, all messages, and knows of changed devices."""
        receivers = self.world.receivers.items()
        return (
            all(self._newest(name) <= set(receiver.event_ids) for name, receiver in receivers)
            and all(self._edus.missing_messages(name) <= each.refusals for name, each in receivers)
            and not self._edus.untold()
        )

    def _newest(self, name: str) -> set[str]:
        """The newest event of each room that a server is to get; it may have refused those before the last one."""
        newest = set(self.world.newest[name].values())
        return newest & self._last if self.world.receivers[name].refusals else newest

    def _faults_of_the_end(self) -> Iterator[str]:
        """Nothing is lost of which a destination cannot know that it is missing."""
        for name, receiver in self.world.receivers.items():
            owed = self.world.owed[name]
            missing = set(owed) - set(receiver.event_ids)
            behind = self.world.most_behind.get(name, 0) if self._is_calm else len(owed)
            if behind <= MAX_MISSED and len(missing) > receiver.refusals:
                yield f"LOST: {len(missing)} of {len(owed)} events did not come to {name}"
        yield from self._edus.faults_of_the_end(is_calm=self._is_calm)


def simulate_sending(seed: int, steps: int = SENDING_STEPS) -> Result:
    """Run the simulation of one seed."""
    return SendingSimulation(seed).run(steps)
