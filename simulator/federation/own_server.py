"""One of our servers in a simulation of joins: a database, processes that share it, and one that sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple

from twisted.python.failure import Failure

from simulator.clock import Process, VirtualClock
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.own_process import SLOWEST_S, OwnProcess, OwnSender
from simulator.rooms.interruptions import InterruptsTransactions
from simulator.rooms.room_processes import ProcessGone, RoomSurroundings
from simulator.rooms.server import SimulatedServer
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.federation.requests import FederationAnswer, FederationRequest
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.tables.events import EventFlags
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Fact
from synrepl.streams.synapse.events import EVENTS


class PartialStretch(NamedTuple):
    """A part of a room's stream whose events are judged again: not by what the room was when they came.

    :ivar first: stream ordering of the join that made the room partial
    :ivar last: of the fact that the room was complete; None: it is not
    """

    first: int
    last: int | None


class OwnServer:
    """A server of ours. Implements :class:`~simulator.federation.in_memory.FederationServer`.

    :ivar writers: the processes that rooms are assigned to
    :ivar processes: by name
    :ivar positions: that its processes announced, by stream and writer
    :ivar stretches: by room, those in which it was partial
    :ivar completed: number of times that a room became complete, by room
    """

    def __init__(
        self,
        name: str,
        count: int,
        clock: VirtualClock,
        random: Random,
        federation: InMemoryFederation,
        network: Process,
        transcript: Transcript,
        violations: Violations,
        interruptions: InterruptsTransactions,
    ) -> None:
        self.name = name
        self.federation = federation
        self.database = SimulatedServer(clock.seconds)
        self.database.operator.run("tables", lambda txn: ensure_tables(txn, RESYNC_STREAMS))
        self._random = random
        self._network = network
        self._violations = violations
        self.positions: dict[tuple[str, str], Token] = {}
        self.stretches: dict[str, list[PartialStretch]] = {}
        self.completed: dict[str, int] = {}
        #: By room: its events with partial state, and how often each was said to have its full state.
        self._partial_events: dict[str, set[str]] = {}
        self._told_events: dict[str, Counter[str]] = {}
        self.writers = tuple(f"{name}{number}" for number in range(1, count + 1))
        self.processes: dict[str, OwnProcess] = {}
        surroundings = RoomSurroundings(
            clock,
            random,
            self.database,
            transcript,
            violations,
            interruptions,
            self._committed,
        )
        self._surroundings = surroundings
        for each in self.writers:
            self.processes[each] = OwnProcess(surroundings, self, each)
        self.sender = OwnSender(surroundings, self, f"{name}-sender")
        federation.register(name, self)

    def close(self) -> None:
        """End its processes, and drop the database."""
        self._surroundings.dispose()
        self.database.close()

    @property
    def ready(self) -> Sequence[OwnProcess]:
        """The processes that work."""
        return [each for each in self.processes.values() if each.is_ready]

    @property
    def is_whole(self) -> bool:
        """Whether all of its processes work."""
        return len(self.ready) == len(self.processes)

    def heard(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """A process has committed facts: the others hear of them a little later."""
        position = self.positions[stream, writer]
        for each in self.processes.values():
            delay_s = self._random.random() ** 3 * SLOWEST_S
            each.process.callLater(delay_s, each.waits.applied, stream, writer, facts)
        if stream == EVENTS.name and self.sender.process.alive:
            self.sender.process.callLater(0.0, self.sender.sender.moved, stream, writer, position)

    async def handle(self, origin: str, request: FederationRequest) -> FederationAnswer | None:
        """Answer another server, by any process that works."""
        ready = self.ready
        if not ready:
            return None
        chosen = self._random.choice(ready)
        try:
            return await chosen.ask(chosen.endpoints.answer(origin, request))
        except ProcessGone:
            return None

    def ask(
        self, work: Callable[[OwnProcess], Coroutine[Any, Any, Any]], done: Callable[[Any], object]
    ) -> bool:
        """Have a process do something for a client; returns whether there is one.

        :param done: called with the result, or with an error that a client may get
        """
        ready = self.ready
        if not ready:
            return False
        chosen = self._random.choice(ready)

        def ended(result: Any) -> None:
            if isinstance(result, Failure):
                if not isinstance(result.value, SynreplError):
                    self._violations.add("CRASH", "{text}", text=result.getTraceback())
                done(result.value)
            else:
                done(result)

        chosen.ask(work(chosen)).addBoth(ended)
        return True

    # -- what was committed -----------------------------------------------------------------

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.database.operator.run(
            "look", lambda txn: list(txn.execute(statement, params).fetchall())
        )

    def _committed(self, process: str, name: str) -> None:
        """After each commit: a room becomes partial by a join, and complete once, with a fact of it and of its partial events."""
        if name.startswith("persist events of "):
            self.database.operator.run("look", lambda txn: self._look(txn, name[18:], None))
        elif name.startswith("complete room "):
            self.database.operator.run("look", lambda txn: self._look(txn, name[14:], process))

    def _look(self, txn: Transaction, room_id: str, completes: str | None) -> None:
        txn.execute(
            "SELECT (SELECT e.stream_id FROM synrepl._room_events e WHERE e.event_id = p.join_event_id),"
            " (SELECT count(*) FROM synrepl.un_partial_stated_room u WHERE u.room_id = r.room_id),"
            " h.completed_stream_id FROM synrepl._rooms r"
            " LEFT JOIN synrepl._partial_rooms p USING (room_no)"
            " LEFT JOIN synrepl._room_heads h USING (room_no) WHERE r.room_id = %s",
            (room_id,),
        )
        found = txn.fetchone_or_none()
        if found is None:
            return
        joined_at, facts, completed_at = found
        stretches = self.stretches.setdefault(room_id, [])
        if joined_at is not None and (not stretches or stretches[-1].last is not None):
            stretches.append(PartialStretch(joined_at, None))
        if completes is not None and joined_at is None and stretches and stretches[-1].last is None:
            stretches[-1] = stretches[-1]._replace(last=completed_at)
            self.completed[room_id] = self.completed.get(room_id, 0) + 1
            self._check_events(txn, room_id)
        if facts != self.completed.get(room_id, 0):
            self._violations.add(
                "ONCE",
                "{server} says {facts} times that {room} is complete, which it became {count} times",
                server=self.name,
                facts=facts,
                room=room_id,
                count=self.completed.get(room_id, 0),
            )
        txn.execute(
            "SELECT e.event_id FROM synrepl._room_events e JOIN synrepl._rooms r USING (room_no)"
            f" WHERE r.room_id = %s AND e.flags & {int(EventFlags.PARTIAL)} <> 0",
            (room_id,),
        )
        self._partial_events[room_id] = {event_id for (event_id,) in txn.fetchall()}

    def _check_events(self, txn: Transaction, room_id: str) -> None:
        """A room has become complete: each event that had partial state has a fact, and others only with another verdict."""
        txn.execute(
            "SELECT u.event_id, u.rejection_status_changed FROM synrepl.un_partial_stated_event u"
            " JOIN synrepl._room_events e USING (event_id) JOIN synrepl._rooms r USING (room_no)"
            " WHERE r.room_id = %s",
            (room_id,),
        )
        rows = txn.fetchall()
        told = Counter(event_id for event_id, _ in rows)
        new = told - self._told_events.get(room_id, Counter())
        self._told_events[room_id] = told
        partial = self._partial_events.get(room_id, set())
        changed = {event_id for event_id, has_changed in rows if has_changed}
        wrong = partial - new.keys() | new.keys() - partial - changed
        wrong |= {event_id for event_id, count in new.items() if count > 1}
        if wrong:
            self._violations.add(
                "TOLD",
                "{server} has no fact, two, or one without a cause, of the full state of {events} in {room}",
                server=self.name,
                events=sorted(wrong),
                room=room_id,
            )
