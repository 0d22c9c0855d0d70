"""A simulation of joins: servers that lie, vanish and are cut off, and processes of ours that are killed at any write.

Rooms end with their full state, once, and as if they had never been partial; every client hears what became of its
request; and rooms of one server alone are not touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from simulator.federation.faults import ServerFault
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.joins_checker import UNDER_WAY, JoinsChecker, rows_left
from simulator.federation.joins_world import ALICE, STEADY, JoinsWorld
from simulator.federation.lies import LIES
from simulator.federation.own_server import OwnServer
from simulator.federation.pure_server import PureServer
from simulator.rooms.interruptions import (
    InterruptsTransactions,
    KillsEverywhere,
    RandomInterruptions,
)
from simulator.simulation import Result
from synrepl.core.errors import SynreplError
from synrepl.rooms import server_of
from synrepl.services.federation.joining.join import JoinedRoomResult
from synrepl.storage.rooms.partial import steps

#: Number of steps of a run.
JOIN_STEPS = 24

#: Shares of transactions that are interrupted.
SHARES = (0.0, 0.005, 0.02, 0.05)

#: Share of joins whose whole state is wanted at once.
WHOLE_SHARE = 0.25

#: One run in so many kills our processes once at each statement of each kind of transaction, and at each COMMIT; one is
#: not disturbed at all.
_EVERYWHERE, _CALM = 6, 8

#: Seconds in which everything ends, once nothing is disturbed any more, and between two looks.
DONE_WITHIN_S, LOOK_S = 6_000.0, 10.0

#: Seconds in which what interrupted joins left is removed: it waits for the leases of joins, and for processes that are down.
REMOVED_WITHIN_S = 600.0

#: Attempts of a user at a join once nothing is disturbed any more.
JOIN_ATTEMPTS = 6

VERSIONS = ("1", "6", "10", "11", "12")

_WORK = {
    "say": 6,
    "state": 3,
    "member": 4,
    "fork": 4,
    "join": 6,
    "our message": 5,
    "our state": 1,
    "our leave": 1,
    "kick": 1,
    "read": 3,
    "local": 3,
    "wait": 6,
}

_DISTURBANCES = {
    "fault": 6,
    "honest": 2,
    "down": 1,
    "up": 3,
    "cut": 2,
    "heal": 3,
    "kill": 3,
    "take over": 1,
    "session": 1,
    "vanish": 1,
    "pause": 1,
}


class JoinsSimulation:
    """All parts of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = random = Random(seed)  # noqa: S311
        self._counts: Counter[str] = Counter()
        kind = random.randrange(24)
        self._is_calm = kind % _CALM == 1
        self._kills = KillsEverywhere() if kind % _EVERYWHERE == 0 else None
        self._rare = RandomInterruptions(random, 0.0)
        self._share = 0.0 if self._is_calm else random.choice(SHARES)
        interruptions: InterruptsTransactions = self._rare if self._kills is None else self._kills
        pure = [STEADY, "b", "c"][: random.randint(1, 3)]
        own = {name: random.randint(1, 2) for name in ["here", "there"][: random.randint(1, 2)]}
        versions = random.choices(VERSIONS, k=random.randint(1, 2))
        members = random.choice([3, 8, 40])
        self._weights = _WORK if self._is_calm else _WORK | _DISTURBANCES
        self.world = JoinsWorld(random, pure, own, versions, members, interruptions)
        #: Servers that lie to the end, and those that do not come back.
        others = pure[1:]
        self._liars = [] if self._is_calm else [e for e in others if random.random() < 0.3]
        self._vanished: set[str] = set()
        self._number = 0
        self.world.transcript.add(
            "plan",
            "versions {versions}, pure {pure}, ours {own}, {members} members, liars {liars}",
            versions=versions,
            pure=pure,
            own=own,
            members=members,
            liars=self._liars,
        )

    def run(self, steps_: int) -> Result:
        """Run the simulation; stops at the first broken rule."""
        world, found = self.world, list[str]()
        try:
            with ExitStack() as patched:  # sizes of batches depend on the time
                patched.enter_context(patch.object(steps, "perf_counter", world.clock.seconds))
                self._play(steps_)
        except AssertionError as error:
            found.append(str(error).partition("\n")[0])
        finally:
            world.close()
        if self._kills is not None:
            self._counts["places killed at"] = len(self._kills.places)
        found = [*world.violations.found, *found]
        return Result(self._seed, found, world.transcript, self._counts)

    def _play(self, count: int) -> None:
        world, random = self.world, self._random
        for liar in self._liars:
            for endpoint in random.sample(list(LIES), random.randint(1, 4)):
                self._lie(world.pure[liar], endpoint, None)
        self._disturb_transactions(is_on=True)
        for own in world.own.values():
            self._ask("join", own, random.choice(list(world.rooms.values())))
        for _ in range(count):
            what = random.choices(list(self._weights), list(self._weights.values()))[0]
            self._counts[what] += 1
            world.transcript.add("plan", "{what}", what=what)
            self._do(what)
            if world.violations.found:
                return
        self._calm_down()
        self._all_join()
        self._end()
        for fault in JoinsChecker(world).faults():
            raise AssertionError(fault)
        self._counts["completed"] += sum(
            sum(each.completed.values()) for each in world.own.values()
        )

    def _disturb_transactions(self, *, is_on: bool) -> None:
        self._rare.share = self._share if is_on else 0.0
        if self._kills is not None:
            self._kills.is_on = is_on

    # -- steps ------------------------------------------------------------------------------

    def _do(self, what: str) -> None:
        random, world = self._random, self.world
        room = random.choice(list(world.rooms.values()))
        name = random.choice(list(world.pure))
        server = world.pure[name]
        own = random.choice(list(world.own.values()))
        if what in ("say", "state", "member", "fork", "kick"):
            self._change(what, server, server.rooms[room.room_id], own)
        elif what in ("join", "our message", "our state", "our leave", "read", "local"):
            self._ask(what, own, room)
        elif what == "wait":
            world.run(random.choice([0.1, 1.0, 5.0, 30.0, 90.0]))
        elif what in ("kill", "take over", "session"):
            self._kill(what, own)
        else:
            self._disturb(what, name, own)
        world.run(random.random())

    def _change(self, what: str, server: PureServer, room: HostedRoom, own: OwnServer) -> None:
        """A user of a pure server changes a room."""
        random, room_id = self._random, room.room_id
        self._number += 1
        users = self._users(server, room)
        if what == "kick":
            user = f"@{random.choice(['us', 'them'])}:{own.name}"
            here = room.current(("m.room.member", user))
            if here is not None and here.membership == "join" and ALICE in users:
                server.send(room_id, "m.room.member", ALICE, {"membership": "leave"}, user)
            return
        if not users:
            return
        sender = random.choice(users)
        if what == "say":
            server.send(room_id, "m.room.message", sender, {"body": str(self._number)})
        elif what == "fork":
            some = [e.event.event_id for e in room.room.in_topological_order()][-6:]
            known = [each for each in some if room.room.has_state(each)]
            kind, content, key = self._made(sender)
            follows = random.sample(known, min(len(known), random.randint(1, 2)))
            server.send(room_id, kind, sender, content, key, follows=follows)
        elif what == "state":
            kind, content, key = self._made(sender)
            server.send(room_id, kind, sender, content, key)
        else:
            self._member(server, room, sender, users)

    def _users(self, server: PureServer, room: HostedRoom) -> list[str]:
        """The users of a server in a room, and at the steady one those of servers that nobody registered."""
        joined = [
            each.state_key or ""
            for each in room.current_state()
            if each.type == "m.room.member" and each.membership == "join"
        ]
        foreign = {*self.world.pure, *self.world.own} - {server.name}
        found = sorted(user for user in joined if server_of(user) not in foreign)
        return found if server.name == STEADY else [u for u in found if server_of(u) == server.name]

    def _made(self, sender: str) -> tuple[str, dict[str, Any], str | None]:
        """An event, and its state key."""
        random = self._random
        kind = random.choice(["topic", "name", "levels", "message", "leave"])
        if kind == "levels" and sender == ALICE:
            levels = {f"@u{random.randrange(4)}:{random.choice('abc')}": random.choice([0, 50])}
            users = levels | ({} if self._creators_rule() else {ALICE: 100})
            return "m.room.power_levels", {"users": users, "events": {"m.room.topic": 0}}, ""
        if kind == "leave" and sender != ALICE:
            return "m.room.member", {"membership": "leave"}, sender
        if kind == "message":
            return "m.room.message", {"body": str(self._number)}, None
        return f"m.room.{'name' if kind == 'name' else 'topic'}", {"text": str(self._number)}, ""

    def _creators_rule(self) -> bool:
        """Whether a creator may not be named in the power levels of any of the rooms."""
        return any(each.version.creators_have_infinite_power for each in self.world.rooms.values())

    def _member(
        self, server: PureServer, room: HostedRoom, sender: str, users: Sequence[str]
    ) -> None:
        random = self._random
        if random.random() < 0.4 and server.name == STEADY:
            user = f"@new{self._number}:{random.choice('axy')}"
            server.send(room.room_id, "m.room.member", user, {"membership": "join"}, user)
            return
        target = random.choice(users)
        what = random.choice(["leave", "ban", "join"])
        by = target if what == "join" else random.choice([sender, users[0]])
        if target != ALICE or what == "join":
            server.send(room.room_id, "m.room.member", by, {"membership": what}, target)

    def _ask(self, what: str, own: OwnServer, room: HostedRoom) -> None:
        """A client of ours asks for something."""
        random, world, room_id = self._random, self.world, room.room_id
        self._number += 1
        user = f"@{random.choice(['us', 'us', 'them'])}:{own.name}"
        body = {"body": str(self._number)}
        if what == "join":
            servers = [*world.pure, *world.own, "nobody"]
            via = random.sample(servers, random.randint(1, len(servers)))
            whole = random.random() < WHOLE_SHARE
            world.join(own, room_id, user, via, self._joined, whole=whole)
        elif what == "read":
            world.read_members(own, room_id)
        elif what == "local":
            local = world.local[own.name].room_id
            world.send(own, local, "m.room.message", f"@us:{own.name}", body)
        elif what == "our message":
            world.send(own, room_id, "m.room.message", user, body)
        elif what == "our state":
            world.send(own, room_id, "m.room.topic", user, {"topic": str(self._number)}, "")
        else:
            content = {"membership": "leave"}
            world.send(own, room_id, "m.room.member", user, content, user)

    def _joined(self, result: Any) -> None:
        if isinstance(result, JoinedRoomResult):
            self._counts["joined partially" if result.is_partial else "joined fully"] += 1
        else:
            self._counts["joins failed"] += 1

    def _lie(self, server: PureServer, endpoint: str, times: int | None) -> None:
        spared = frozenset(self.world.pure)
        kind = self._random.choice(LIES[endpoint])
        self.world.transcript.add(
            "plan", "{name}: {kind} at {endpoint}", name=server.name, kind=kind, endpoint=endpoint
        )
        server.faults.append(ServerFault(endpoint, kind, times, spared))

    def _disturb(self, what: str, name: str, own: OwnServer) -> None:
        random, federation, server = self._random, self.world.federation, self.world.pure[name]
        if what == "fault":
            self._lie(server, random.choice(list(LIES)), random.choice([1, 1, 3, 10]))
        elif what == "honest":
            server.faults = [each for each in server.faults if each.times is None]
        elif what == "down":
            federation.stop(name)
        elif what == "up":
            self._up(name)
        elif what == "cut":
            federation.cut(own.name, name)
        elif what == "heal":
            federation.heal(own.name, name)
        elif what == "vanish" and name != STEADY:
            self._vanished.add(name)
            federation.stop(name)
        elif what == "pause":
            self.world.run(random.choice([120.0, 700.0]))

    def _up(self, name: str) -> None:
        if name in self._vanished:
            return
        self.world.federation.start(name)
        if self._random.random() < 0.5:
            for own in self.world.own.values():
                self._tell(own, name)

    def _tell(self, own: OwnServer, name: str) -> None:
        """REMOTE_SERVER_UP reaches the processes of one of our servers."""
        for process in own.processes.values():
            process.process.spawn("up", process.transport.server_is_up(name))
        own.sender.process.spawn("up", own.sender.server_is_up(name))

    def _kill(self, what: str, own: OwnServer) -> None:
        random = self._random
        victim = random.choice(list(own.processes.values()))
        if not victim.process.alive:
            return
        if what == "session":
            victim.database.lose_sessions()
            return
        if what == "take over":  # so others have its jobs
            victim.stays_down_s = random.choice([35.0, 70.0, 200.0])
        elif random.random() < 0.2 and own.sender.process.alive:
            own.sender.process.kill()
            return
        victim.process.kill()

    # -- the end ----------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Nothing is disturbed any more, but for servers that lie or are away to the end."""
        world = self.world
        world.transcript.add("plan", "calm down")
        self._disturb_transactions(is_on=False)
        for name, server in world.pure.items():
            server.faults = [each for each in server.faults if each.times is None]
            if name not in self._vanished:
                world.federation.start(name)
            for own_name in world.own:
                world.federation.heal(own_name, name)
        world.run(1.0)
        for name in world.pure:
            for own in world.own.values():
                if name not in self._vanished:
                    self._tell(own, name)
        # Who has asked before hears of it.
        if not world.until(lambda: world.waiting == 0, 120.0):
            raise AssertionError(f"WAIT: {world.waiting} clients wait for ever")
        # Before anybody joins again, which would take over what is left.
        if not world.until(lambda: not self._interrupted_joins(), REMOVED_WITHIN_S, LOOK_S):
            left = self._interrupted_joins()
            raise AssertionError(f"LEFTOVERS: what interrupted joins left is not removed: {left}")

    def _interrupted_joins(self) -> list[str]:
        """Our servers that have something left of interrupted joins."""
        return [name for name, each in self.world.own.items() if rows_left(each, "_room_joins")]

    def _all_join(self) -> None:
        """A user of each of our servers is in each room."""
        world = self.world
        for own in world.own.values():
            for room_id in world.rooms:
                results: list[Any] = []
                for _ in range(JOIN_ATTEMPTS):
                    # All of them: a room is joined by the process that it is assigned to.
                    world.until(lambda own=own: own.is_whole, 600.0, 1.0)  # type: ignore[misc]
                    results.clear()
                    via = [*world.pure, *world.own]
                    world.join(own, room_id, f"@us:{own.name}", via, results.append)
                    world.until(lambda results=results: bool(results), 100.0)  # type: ignore[misc]
                    if results and isinstance(results[0], JoinedRoomResult):
                        self._joined(results[0])
                        break
                    world.run(30.0)
                else:
                    raise AssertionError(f"JOIN: {own.name} cannot join {room_id}: {results}")

    def _end(self) -> None:
        """Let everything end."""
        world = self.world

        def is_done() -> bool:
            for server in world.pure.values():
                if server.name not in self._vanished:
                    world.network.spawn("send", _tolerant(server))
            return all(self._is_quiet(each) for each in world.own.values())

        if not world.until(is_done, DONE_WITHIN_S, LOOK_S) and not world.violations.found:
            left = {each.name: rows_left(each, *UNDER_WAY) for each in world.own.values()}
            raise AssertionError(f"LIVENESS: it does not end: {left}, {self._unheard()}")
        world.run(30.0)

    def _is_quiet(self, server: OwnServer) -> bool:
        return not rows_left(server, *UNDER_WAY) and not self._unheard()

    def _unheard(self) -> list[str]:
        """Events of our users that the steady server has not."""
        missing: list[str] = []
        for own in self.world.own.values():
            for room_id, room in self.world.pure[STEADY].rooms.items():
                found = own.sql(
                    "SELECT e.event_id FROM synrepl._room_events e JOIN synrepl._rooms r USING (room_no)"
                    " JOIN synrepl._room_event_json j USING (event_no)"
                    " WHERE r.room_id = %s AND e.stream_id IS NOT NULL AND e.sender LIKE %s",
                    room_id,
                    f"%:{own.name}",
                )
                missing += [event_id for (event_id,) in found if event_id not in room.room]
        return missing


async def _tolerant(server: PureServer) -> None:
    try:
        await server.outgoing.send_all()
    except SynreplError:
        return


def simulate_joins(seed: int, steps_: int = JOIN_STEPS) -> Result:
    """Run the simulation of one seed."""
    return JoinsSimulation(seed).run(steps_)
