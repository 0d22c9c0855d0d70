"""Servers of ours and pure ones, with rooms that ours join, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.own_server import OwnServer
from simulator.federation.pure_server import PureServer
from simulator.rooms.interruptions import InterruptsTransactions
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.rooms import server_of
from synrepl.storage.rooms.tables.incoming import IncomingEvent

#: The server that is honest and stays, and the user who made the rooms.
STEADY, ALICE = "a", "@alice:a"

#: Seconds within which a client hears what became of its join, and a reader of the members, or why not.
JOIN_ANSWER_S, READ_ANSWER_S = 60.0, 30.0


class JoinsWorld:
    """Everything that a run is about.

    :param pure: names of the servers of pure rooms; :data:`STEADY` is among them
    :param own: number of processes by name of our servers
    :ivar rooms: the rooms that ours may join, as the steady server has them
    :ivar late: clients that waited for too long, in words
    """

    def __init__(
        self,
        random: Random,
        pure: Sequence[str],
        own: Mapping[str, int],
        versions: Sequence[str],
        members: int,
        interruptions: InterruptsTransactions,
    ) -> None:
        self.random = random
        self.clock = clock = VirtualClock()
        self.transcript = Transcript(clock.seconds)
        self.violations = Violations(self.transcript)
        self.network = Process(clock, "network", self._failed, random.random)
        self.federation = InMemoryFederation(self.network, 0.05)
        self.pure = {name: PureServer(name, self.federation) for name in pure}
        self.waiting = 0
        self.rooms: dict[str, HostedRoom] = {}
        for number, version in enumerate(versions):
            self._make_room(version, f"room{number}", members)
        for name, server in self.pure.items():
            server.create_room("10", f"@x:{name}", name=f"other-{name}")
        self.own: dict[str, OwnServer] = {}
        for name, count in own.items():
            self.own[name] = OwnServer(
                name,
                count,
                clock,
                random,
                self.federation,
                self.network,
                self.transcript,
                self.violations,
                interruptions,
            )
        self.local = {name: self._local_room(name) for name in own}

    def close(self) -> None:
        """End everything."""
        self.transcript.close()
        for each in self.own.values():
            each.close()
        self.network.dispose()

    def _failed(self, name: str, failure: Failure) -> None:
        self.violations.add("CRASH", "{name}: {text}", name=name, text=failure.getTraceback())

    # -- rooms ------------------------------------------------------------------------------

    def _make_room(self, version: str, name: str, members: int) -> None:
        """A room of Alice with members of several servers, in which all pure servers are."""
        steady = self.pure[STEADY]
        room = steady.create_room(version, ALICE, name=name)
        self.rooms[room.room_id] = room
        for number in range(members):
            user = f"@u{number}:{'abcxyz'[number % 6]}"
            if server_of(user) not in self.pure or server_of(user) == STEADY:
                steady.send(room.room_id, "m.room.member", user, {"membership": "join"}, user)
        for membership in ("join", "leave"):  # a key with two events
            content = {"membership": membership}
            steady.send(room.room_id, "m.room.member", "@z:x", content, "@z:x")
        for server in self.pure:
            if server != STEADY:
                self.finish(self.pure[server].join(room.room_id, f"@bob:{server}", STEADY))
        for each in self.pure.values():
            each.outgoing.is_eager = True

    def _local_room(self, name: str) -> HostedRoom:
        """A room of one of our servers alone."""
        apart = PureServer(name, InMemoryFederation(self.network))
        room = apart.create_room("10", f"@us:{name}", name="local")
        server = self.own[name]
        self.until(lambda: bool(server.ready), 60.0)
        process = server.ready[0]
        events = [IncomingEvent(each.event) for each in room.room]
        self.finish(process.persister.persist(room.room_id, "10", events), process.process)
        return room

    def state_before(self, room_id: str, event_id: str) -> Mapping[tuple[str, str], str]:
        """The full state before an event, as the pure servers know it."""
        for each in (STEADY, *self.pure):
            room = self.pure[each].rooms[room_id].room
            if room.has_state(event_id):
                return room.state_before(event_id).as_dict()
        raise AssertionError(f"TRUTH: no server knows the state before {event_id}")

    # -- time -------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.clock.seconds() + seconds
        while not self.violations.found and self.clock.run_next(until):
            pass

    def until(self, condition: Callable[[], bool], within_s: float, step_s: float = 0.0) -> bool:
        """Let time pass until a condition holds; returns whether it does in time.

        :param step_s: it is looked at only after as many seconds
        """
        deadline = self.clock.seconds() + within_s
        while not self.violations.found:
            if condition():
                return True
            now = self.clock.seconds()
            if now >= deadline:
                return False
            if step_s:
                self.run(step_s)
            else:
                self.clock.run_next(deadline)
        return False

    def finish(self, work: Coroutine[Any, Any, Any], process: Process | None = None) -> Any:
        """The result of a coroutine."""
        answer: Deferred[Any] = (process or self.network).start(work)
        outcome: list[Any] = []
        answer.addBoth(outcome.append)
        self.until(lambda: bool(outcome), 600.0)
        if not outcome:
            raise AssertionError("LATE: it does not end")
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
        return outcome[0]

    # -- clients ----------------------------------------------------------------------------

    def join(
        self,
        server: OwnServer,
        room_id: str,
        user_id: str,
        via: Sequence[str],
        done: Callable[[Any], object] = lambda result: None,
        *,
        whole: bool = False,
    ) -> bool:
        """A client asks to join a room; returns whether anybody listens.

        :param whole: it asks for the whole state at once
        """
        return self._ask(
            server,
            f"the join of {user_id}",
            JOIN_ANSWER_S,
            lambda process: process.join(room_id, user_id, via, whole=whole),
            done,
        )

    def read_members(self, server: OwnServer, room_id: str) -> bool:
        """A client asks for the members of a room."""
        return self._ask(
            server,
            f"a reader of {room_id}",
            READ_ANSWER_S,
            lambda process: process.members(room_id),
            lambda result: None,
        )

    def send(
        self,
        server: OwnServer,
        room_id: str,
        kind: str,
        user_id: str,
        content: Mapping[str, Any],
        state_key: str | None = None,
        done: Callable[[Any], object] = lambda result: None,
    ) -> bool:
        """A client sends an event."""
        return self._ask(
            server,
            f"an event of {user_id} in {room_id}",
            READ_ANSWER_S,
            lambda process: process.send(room_id, kind, user_id, content, state_key),
            done,
        )

    def _ask(
        self,
        server: OwnServer,
        what: str,
        within_s: float,
        work: Callable[[Any], Coroutine[Any, Any, Any]],
        done: Callable[[Any], object],
    ) -> bool:
        """Have a process of a server do something, and see that it ends in time."""
        waits = [True]

        def expire() -> None:
            if waits:
                self.violations.add("WAIT", "{what} waits for {s:.0f} s", what=what, s=within_s)

        def ended(result: Any) -> None:
            waits.clear()
            self.waiting -= 1
            outcome = type(result).__name__ if isinstance(result, Exception) else "ok"
            self.transcript.add(server.name, "{what}: {outcome}", what=what, outcome=outcome)
            done(result)

        self.waiting += 1
        if not server.ask(work, ended):
            self.waiting -= 1
            return False
        self.clock.callLater(within_s, expire)
        return True
