"""A simulation of sending: servers that fail, processes that are killed, senders that are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from simulator.federation.hosted_room import HostedRoom
from simulator.federation.receiving_server import Reception
from simulator.federation.sending_world import HOME, SendingWorld
from simulator.rooms.interruptions import RandomInterruptions
from synrepl.rooms import server_of

#: Number of steps of a run.
STEPS = 40

#: Shares of the database's transactions that are interrupted.
SHARES = (0.0, 0.01, 0.04)

#: Lists of processes that send.
SENDERS: Sequence[Sequence[str]] = (("one",), ("one", "two"), ("two",), ("one", "two", "three"))

#: Seconds in which everything has arrived, once nothing is disturbed any more: a server that could not be told that
#: another one is up tries it again after some time.
DONE_WITHIN_S = 20_000.0

_WEIGHTS = {
    "say": 12,
    "burst": 3,
    "join": 2,
    "leave": 2,
    "wait": 5,
    "reception": 4,
    "down": 1,
    "up": 3,
    "kill": 2,
    "session": 1,
    "senders": 1,
    "remote server up": 2,
}


class SendingSimulation:
    """All parts of one run.

    :ivar world: what is simulated
    :ivar deeds: what was done, for messages
    """

    def __init__(self, seed: int) -> None:
        self._random = random = Random(seed)  # noqa: S311
        self.deeds: list[str] = []
        self._names = [f"s{number}.example" for number in range(random.randint(1, 5))]
        self._senders = random.choice(SENDERS)
        self._interruptions = RandomInterruptions(random, random.choice(SHARES))
        self.world = SendingWorld(seed, self._senders, interruptions=self._interruptions)
        self._rooms: list[HostedRoom] = []

    def run(self, steps: int = STEPS) -> None:
        """Run the simulation.

        :raises AssertionError: something is wrong
        """
        try:
            self._play(steps)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.deeds}") from None
        finally:
            self.world.close()

    def _play(self, steps: int) -> None:
        random, world = self._random, self.world
        for number in range(random.randint(1, 3)):
            servers = random.sample(self._names, random.randint(1, len(self._names)))
            self._rooms.append(world.room(f"room{number}", servers))
        for _ in range(steps):
            what = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            self.deeds.append(what)
            self._do(what)
            world.check()
        self._calm_down()
        for room in self._rooms:
            world.say(room, "last")
        world.until(self._has_arrived, DONE_WITHIN_S)
        world.run(5.0)
        world.check()

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
        elif what == "down":
            world.federation.stop(name)
        elif what == "up":
            world.federation.start(name)
        elif what == "remote server up":
            self._server_is_up(name)
        else:
            self._disturb(what)

    def _server_is_up(self, name: str) -> None:
        """REMOTE_SERVER_UP reaches the processes that run."""
        for each in self.world.senders.values():
            if each.process.alive:
                each.process.spawn("up", each.is_up(name))

    def _change(self, room: HostedRoom, user_id: str, what: str) -> None:
        current = room.current(("m.room.member", user_id))
        is_in = current is not None and current.membership == "join"
        if is_in and what == "leave":
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
        world = self.world
        self._interruptions.share = 0.0
        for name, receiver in world.receivers.items():
            world.federation.start(name)
            receiver.next.clear()
            receiver.answer_s = 0.0
            self._server_is_up(name)

    def _has_arrived(self) -> bool:
        """Whether each server has the newest event of each room that it is in."""
        for room in self._rooms:
            newest = {}
            for each in room.room:
                if server_of(each.event.sender) == HOME:
                    newest = dict.fromkeys(
                        self.world.servers_before(room, each.event.event_id), each.event.event_id
                    )
            for server, event_id in newest.items():
                if event_id not in self.world.receiver(server).event_ids:
                    return False
        return True


def simulate_sending(seed: int, steps: int = STEPS) -> None:
    """Run the simulation of one seed.

    :raises AssertionError: something is wrong
    """
    SendingSimulation(seed).run(steps)
