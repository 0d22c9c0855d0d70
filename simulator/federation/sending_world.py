"""Processes of one server that persist and send, other servers that receive, and rooms that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import orjson
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from simulator.clock import VirtualClock
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from simulator.federation.receiving_server import ReceivingServer
from simulator.federation.sending_processes import (
    HOME,
    PersistingSource,
    RequestsUnderWay,
    SendingProcess,
)
from simulator.rooms.interruptions import InterruptsTransactions, RandomInterruptions
from simulator.rooms.room_processes import RoomSurroundings
from simulator.rooms.server import SimulatedServer
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.tokens import Token
from synrepl.rooms import Event, parse_event, room_version, server_of
from synrepl.services.federation.sending import destination_queue, pending_edus
from synrepl.services.federation.sending.dispatcher import (
    DEFAULT_SENDING_LIMITS,
    SendingLimits,
)
from synrepl.services.federation.sending.transactions import MAX_MISSED, MAX_MISSED_ROOMS
from synrepl.services.handlers import Batch
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.storage.tables import ensure_tables
from synrepl.streams.definition import Fact
from synrepl.streams.row import Row
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS

VERSION = "10"


class SendingWorld:
    """A server with its database, other servers, and rooms.

    :param interruptions: those of the database's transactions of senders; None: there are none
    :ivar home: the rooms as this server has them, in memory
    :ivar receivers: the other servers, by name
    :ivar owed: by receiver, the IDs of the events that were persisted for it, in order
    :ivar newest: by receiver and room, the newest of those
    :ivar most_behind: by receiver, the greatest number of those that had not arrived
    """

    def __init__(
        self,
        seed: int = 1,
        senders: Sequence[str] = ("sender1",),
        limits: SendingLimits = DEFAULT_SENDING_LIMITS,
        latency_s: float = 0.05,
        interruptions: InterruptsTransactions | None = None,
    ) -> None:
        self.random = Random(seed)  # noqa: S311
        self.clock = VirtualClock()
        self.transcript = Transcript(self.clock.seconds)
        self.violations = Violations(self.transcript)
        self.server = SimulatedServer()
        self.server.operator.run("tables", lambda txn: ensure_tables(txn, [DEVICE_LISTS]))
        self._quiet = RandomInterruptions(self.random, 0.0)
        self.surroundings = RoomSurroundings(
            self.clock,
            self.random,
            self.server,
            self.transcript,
            self.violations,
            interruptions or self._quiet,
            lambda process, name: None,
        )
        self._limits = limits
        self.network, _ = self.surroundings.process("network", self._quiet)
        self.federation = InMemoryFederation(self.network, latency_s)
        self._requests = RequestsUnderWay(self.violations)
        self.home = PureServer(HOME, self.federation)
        self.source = PersistingSource(self.surroundings, self._quiet)
        self.receivers: dict[str, ReceivingServer] = {}
        self.owed: dict[str, list[str]] = {}
        self.most_behind: dict[str, int] = {}
        self.newest: dict[str, dict[str, str]] = {}
        self.senders: dict[str, SendingProcess] = {}
        for name in senders:
            self.start_sender(name, senders)

    def close(self) -> None:
        """End all processes, and drop the database."""
        self.transcript.close()
        self.surroundings.dispose()
        self.server.close()

    # -- who takes part -----------------------------------------------------------------------

    def start_sender(self, name: str, senders: Sequence[str]) -> SendingProcess:
        """Start a process that sends, with a configuration."""
        started = SendingProcess(
            self.surroundings,
            name,
            tuple(senders),
            self.federation,
            self._requests,
            self._limits,
        )
        self.senders[name] = started
        return started

    def stop_sender(self, sender: SendingProcess) -> None:
        """Stop a process in an orderly way; it does not start again."""
        sender.is_gone = True
        stopped: list[object] = []
        sender.ask(sender.sender.stop()).addBoth(stopped.append)
        self.until(lambda: bool(stopped))
        self.kill_for_good(sender)

    def kill_for_good(self, sender: SendingProcess) -> None:
        """Kill a process, which does not start again."""
        sender.is_gone = True
        if sender.process.alive:
            sender.process.kill()

    def receiver(self, name: str) -> ReceivingServer:
        """Another server, made when it is named first."""
        if name not in self.receivers:
            self.receivers[name] = ReceivingServer(name, self.federation, event_id_of)
            self.owed[name] = []
            self.newest[name] = {}
        return self.receivers[name]

    # -- rooms ---------------------------------------------------------------------------------

    def room(self, name: str, servers: Iterable[str]) -> HostedRoom:
        """A room of a user of this server, which a user of each other server has joined."""
        room = self.home.create_room(VERSION, f"@alice:{HOME}", name=name)
        self.persist(room, [each.event for each in room.room])
        for server in servers:
            self.receiver(server)
            self.join(room, f"@bob:{server}")
        return room

    def join(self, room: HostedRoom, user_id: str) -> Event:
        """A user joins; one of another server by that server."""
        return self.send(room, "m.room.member", user_id, {"membership": "join"}, user_id)

    def leave(self, room: HostedRoom, user_id: str) -> Event:
        """A user leaves."""
        return self.send(room, "m.room.member", user_id, {"membership": "leave"}, user_id)

    def say(self, room: HostedRoom, body: str = "hello", sender: str = f"@alice:{HOME}") -> Event:
        """A user sends a message."""
        return self.send(room, "m.room.message", sender, {"msgtype": "m.text", "body": body})

    def send(
        self,
        room: HostedRoom,
        kind: str,
        sender: str,
        content: Mapping[str, Any],
        state_key: str | None = None,
        follows: Collection[str] | None = None,
        *,
        outgoing: bool | None = None,
    ) -> Event:
        """A user sends an event, which is persisted.

        :param outgoing: whether this server sends it on; by default if it is of one of its users
        """
        event = self.home.send(room.room_id, kind, sender, content, state_key, follows=follows)
        self.persist(room, [event], outgoing=outgoing)
        return event

    def persist(
        self, room: HostedRoom, events: Sequence[Event], *, outgoing: bool | None = None
    ) -> None:
        """Persist events, and note who is to get them."""
        incoming = [
            IncomingEvent(
                each,
                outgoing=server_of(each.sender) == HOME if outgoing is None else outgoing,
            )
            for each in events
        ]
        done: PersistedBatch = self.result(
            lambda: self.source.persister.persist(room.room_id, VERSION, incoming)
        )
        last = 0
        for each, one in zip(done.events, incoming, strict=True):
            last = max(last, each.stream_id or 0)
            if one.outgoing:
                for server in self.servers_before(room, each.event_id):
                    self._owe(server, room.room_id, each.event_id)
        for sender in self._running():
            sender.sender.moved(EVENTS.name, "source", last)

    def _owe(self, server: str, room_id: str, event_id: str) -> None:
        owed = self.owed[server]
        owed.append(event_id)
        self.newest[server][room_id] = event_id
        behind = len(owed) - len(self.receivers[server].event_ids)
        self.most_behind[server] = max(self.most_behind.get(server, 0), behind)

    def servers_before(self, room: HostedRoom, event_id: str) -> set[str]:
        """The other servers in a room before an event, but for the one that it is of."""
        state = room.room.state_before(event_id)
        servers = {
            server_of(key[1])
            for key, each in state.items()
            if key[0] == "m.room.member" and room.event(each).membership == "join"
        }
        return servers - {HOME, server_of(room.event(event_id).sender)}

    def hear(self, stream: str, *rows: Row, token: Token = 1) -> None:
        """The processes that send hear of facts."""
        fact = Fact(token, "source", rows)
        for each in self._running():
            each.process.callLater(0, each.sender.edus.applied, stream, "source", [fact])

    def hand_over(self, *rows: Row, token: Token = 1) -> None:
        """The processes that send get facts of ``federation``."""
        batch = Batch("federation", "source", token - 1, token, [Fact(token, "source", rows)])
        for each in self._running():
            each.process.spawn("hand over", each.handed_over.on_rows(batch))

    def _running(self) -> Iterator[SendingProcess]:
        return (each for each in self.senders.values() if each.process.alive)

    # -- time ------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.clock.seconds() + seconds
        while self.clock.run_next(until):
            pass

    def until(self, condition: Callable[[], bool], within_s: float = 600.0) -> None:
        """Let time pass until a condition holds.

        :raises AssertionError: it does not hold in time
        """
        deadline = self.clock.seconds() + within_s
        while not condition():
            if not self.clock.run_next(deadline) and self.clock.seconds() >= deadline:
                raise AssertionError("\n".join(["LATE: it does not come about", *self._lines()]))

    def result(self, work: Callable[[], Any]) -> Any:
        """The result of a coroutine in the process that persists."""
        self.until(lambda: self.source.writer.is_open)
        answer: Deferred[Any] = self.source.process.start(work())
        outcome: list[Any] = []
        answer.addBoth(outcome.append)
        self.until(lambda: bool(outcome))
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
        return outcome[0]

    def _lines(self) -> list[str]:
        return list(self.transcript.lines())[-60:]

    # -- what came of it ---------------------------------------------------------------------------

    @property
    def is_quiet(self) -> bool:
        """Whether everything that was persisted for servers has arrived."""
        return all(
            not (set(owed) - set(self.receivers[name].event_ids))
            for name, owed in self.owed.items()
            if name in self.receivers
        )

    def check(self) -> None:
        """Check every rule that holds at any time.

        :raises AssertionError: one is broken
        """
        faults = [*self.violations.found, *self._faults()]
        if faults:
            raise AssertionError("\n".join([*faults, *self._lines()]))

    def _faults(self) -> Iterator[str]:
        """Nothing came twice, out of order, or to the wrong server, and no more is in memory than may be."""
        for name, receiver in self.receivers.items():
            yield from (f"RECEIVER: {each}" for each in receiver.faults)
            came, owed = receiver.event_ids, self.owed[name]
            if len(came) != len(set(came)):
                yield f"TWICE: {name} got an event twice: {came}"
            if not set(came) <= set(owed):
                yield f"RECIPIENT: {name} got what it was not to get: {set(came) - set(owed)}"
            places = [owed.index(each) for each in came if each in owed]
            if places != sorted(places):
                yield f"ORDER: {name} got events out of order: {places}"
        most = destination_queue.MAX_PENDING + MAX_MISSED + MAX_MISSED_ROOMS
        kept = pending_edus.MAX_PLAIN + pending_edus.MAX_KEYED
        kept += pending_edus.MAX_PRESENCES + pending_edus.MAX_RECEIPTS
        for sender in self._running():
            for queue in sender.sender.registry:
                edus = 0 if queue.edus is None else len(queue.edus)
                if len(queue.pending) > most or edus > kept:
                    count = len(queue.pending)
                    yield f"BOUND: {count} events and {edus} EDUs wait for {queue.name}"

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.server.operator.run(
            "look", lambda txn: txn.execute(statement, params).fetchall()
        )


def event_id_of(pdu: Mapping[str, Any]) -> str:
    """The ID of an event, given as it was sent."""
    return parse_event(orjson.dumps(pdu), room_version(VERSION)).event_id
