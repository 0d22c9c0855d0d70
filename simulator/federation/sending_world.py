"""Processes of one server that persist and send, other servers that receive, and rooms that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import orjson
from twisted.internet.defer import Deferred

from simulator.clock import Process, VirtualClock
from simulator.federation.hosted_room import HostedRoom
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.pure_server import PureServer
from simulator.federation.receiving_server import ReceivingServer
from simulator.rooms.interruptions import RandomInterruptions
from simulator.rooms.process_database import InterruptedProcessDatabase
from simulator.rooms.room_processes import (
    AnnouncedPositions,
    QuietLog,
    RestartedProcess,
    RoomSurroundings,
)
from simulator.rooms.server import SimulatedServer
from simulator.transcript import Transcript
from simulator.truth import Violations
from synrepl.core.errors import SynreplError
from synrepl.core.tokens import Token
from synrepl.rooms import Event, parse_event, room_version, server_of
from synrepl.services.federation.backing_off import BackOffTransport
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.sending.dispatcher import (
    DEFAULT_SENDING_LIMITS,
    SendingLimits,
)
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.storage.rooms.tables.incoming import IncomingEvent, PersistedBatch
from synrepl.storage.tables import ensure_tables
from synrepl.streams.synapse.device_lists import DEVICE_LISTS
from synrepl.streams.synapse.events import EVENTS

#: The name of the server whose processes send.
HOME = "home"

VERSION = "10"


class PersistingSource(RestartedProcess):
    """The process of the server that persists the events of its rooms."""

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Acquire the lease."""
        store = self._surroundings.store(process, database)
        log = QuietLog(self._surroundings.transcript, self.name)
        streams = (*ROOM_STREAMS, DEVICE_LISTS)
        announcements = AnnouncedPositions().of(self.name)
        self.writer = StreamWriter(process, store, self.name, streams, announcements, log)
        self.persister = RoomPersister(process, self.writer)
        process.spawn("start", self.writer.start())


class SendingProcess(RestartedProcess):
    """A process of the server that sends.

    :ivar sender: what it runs
    :ivar acknowledged: tokens of ``federation`` that it acknowledged
    """

    def __init__(
        self,
        surroundings: RoomSurroundings,
        name: str,
        senders: Sequence[str],
        federation: InMemoryFederation,
        limits: SendingLimits,
    ) -> None:
        self.senders = senders
        self.acknowledged: list[Token] = []
        self._federation = federation
        self._limits = limits
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Claim partitions, and send."""
        log = QuietLog(self._surroundings.transcript, self.name)
        transport = BackOffTransport(process, database, self._federation.transport(HOME), log)
        self.transport = transport
        self.sender = FederationSender(
            process,
            database,
            self._surroundings.store(process, database),
            database.open_session,
            self.name,
            self.senders,
            HOME,
            FederationClient(transport, HOME),
            transport,
            lambda: 0,
            self.acknowledged.append,
            log,
            self._limits,
        )
        transport.listeners.append(self.sender.server_is_up)
        self.sender.start()

    async def stop(self) -> None:
        """Stop in an orderly way; it stays stopped."""
        await self.sender.stop()


class SendingWorld:
    """A server with its database, other servers, and rooms.

    :param share: of the transactions of the database, how many are interrupted
    :ivar home: the rooms as this server has them, in memory
    :ivar receivers: the other servers, by name
    :ivar owed: by receiver, the IDs of the events that were persisted for it, in order
    """

    def __init__(
        self,
        seed: int = 1,
        share: float = 0.0,
        senders: Sequence[str] = ("sender1",),
        limits: SendingLimits = DEFAULT_SENDING_LIMITS,
        latency_s: float = 0.05,
    ) -> None:
        self.random = Random(seed)  # noqa: S311
        self.clock = VirtualClock()
        self.transcript = Transcript(self.clock.seconds)
        self.violations = Violations(self.transcript)
        self.server = SimulatedServer()
        self.server.operator.run("tables", lambda txn: ensure_tables(txn, [DEVICE_LISTS]))
        self.interruptions = RandomInterruptions(self.random, share)
        self.surroundings = RoomSurroundings(
            self.clock,
            self.random,
            self.server,
            self.transcript,
            self.violations,
            self.interruptions,
            lambda process, name: None,
        )
        self._quiet = RandomInterruptions(self.random, 0.0)
        self._limits = limits
        self.network, _ = self.surroundings.process("network", self._quiet)
        self.federation = InMemoryFederation(self.network, latency_s)
        self.home = PureServer(HOME, self.federation)
        self.source = PersistingSource(self.surroundings, "source")
        self.receivers: dict[str, ReceivingServer] = {}
        self.owed: dict[str, list[str]] = {}
        self.senders: dict[str, SendingProcess] = {}
        self._stopped: list[SendingProcess] = []
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
            self.surroundings, name, tuple(senders), self.federation, self._limits
        )
        self.senders[name] = started
        return started

    def receiver(self, name: str) -> ReceivingServer:
        """Another server, made when it is named first."""
        if name not in self.receivers:
            self.receivers[name] = ReceivingServer(name, self.federation, event_id_of)
            self.owed[name] = []
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
                before = room.room.state_before(each.event_id)
                for server in _servers(room, before) - {HOME, server_of(one.event.sender)}:
                    self.owed.setdefault(server, []).append(each.event_id)
        for sender in self.senders.values():
            if sender.process.alive:
                sender.sender.moved(EVENTS.name, "source", last)

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
                raise AssertionError("\n".join(["it does not come about", *self._lines()]))

    def result(self, work: Callable[[], Any]) -> Any:
        """The result of a coroutine in the process that persists; tried again after a fault."""
        while True:
            if not self.source.process.alive or not self.source.writer.is_open:
                self.until(lambda: self.source.process.alive and self.source.writer.is_open)
            answer: Deferred[Any] = self.source.ask(work())
            outcome: list[Any] = []
            answer.addBoth(outcome.append)
            self.until(lambda found=outcome: bool(found))  # type: ignore[misc]
            try:
                outcome[0].raiseException()
            except AttributeError:
                return outcome[0]
            except SynreplError:
                continue

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
        """Nothing came twice, out of order, or to the wrong server, and nobody sent two transactions at a time.

        :raises AssertionError: something did
        """
        faults = list(self.violations.found)
        for name, receiver in self.receivers.items():
            faults += receiver.faults
            came, owed = receiver.event_ids, self.owed[name]
            if len(came) != len(set(came)):
                faults.append(f"{name} got an event twice: {came}")
            if not set(came) <= set(owed):
                faults.append(f"{name} got what it was not to get: {set(came) - set(owed)}")
            places = [owed.index(each) for each in came if each in owed]
            if places != sorted(places):
                faults.append(f"{name} got events out of order: {places}")
        if faults:
            raise AssertionError("\n".join([*faults, *self._lines()]))

    def sql(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.server.operator.run(
            "look", lambda txn: txn.execute(statement, params).fetchall()
        )


def event_id_of(pdu: Mapping[str, Any]) -> str:
    """The ID of an event, given as it was sent."""
    return parse_event(orjson.dumps(pdu), room_version(VERSION)).event_id


def _servers(room: HostedRoom, state: Mapping[Any, str]) -> set[str]:
    return {
        server_of(key[1])
        for key, event_id in state.items()
        if key[0] == "m.room.member" and room.event(event_id).membership == "join"
    }
