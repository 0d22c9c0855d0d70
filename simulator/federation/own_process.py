"""A process of one of our servers in a simulation of joins, wired of the services that the daemons assemble."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from simulator.clock import Process
from simulator.federation.in_memory import InMemoryFederation
from simulator.federation.own_endpoints import OwnEndpoints
from simulator.federation.server_keys import SimulatedKeys
from simulator.rooms.process_database import InterruptedProcessDatabase
from simulator.rooms.room_processes import (
    QuietLog,
    RestartedProcess,
    RoomSurroundings,
    WriterAnnouncements,
)
from synrepl.core.errors import SynreplError
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.federation.requests import FederationAnswer, FederationRequest
from synrepl.rooms import Keys
from synrepl.services.clients.identity import ClientIdentity
from synrepl.services.federation.backing_off import BackOffTransport
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.full_joins import FullJoins
from synrepl.services.federation.inbound.admission import InboundAdmission
from synrepl.services.federation.inbound.edu_sinks import NoSinks
from synrepl.services.federation.inbound.edus import EduReceiver
from synrepl.services.federation.inbound.fetching import EventFetcher
from synrepl.services.federation.inbound.gaps import GapFiller
from synrepl.services.federation.inbound.handover import EventHandover
from synrepl.services.federation.inbound.room_inboxes import RoomInboxes
from synrepl.services.federation.inbound.sweeping import InboundSweeper, RoomWaker
from synrepl.services.federation.inbound.transactions import TransactionReceiver
from synrepl.services.federation.interfaces import FederationTransport
from synrepl.services.federation.joining.handshake import JoinHandshake
from synrepl.services.federation.joining.join import JoinedRoomResult, JoinRequest, RoomJoiner
from synrepl.services.federation.joining.own_membership import MembershipMaker
from synrepl.services.federation.joining.running_joins import RunningJoins
from synrepl.services.federation.partial_joins import PartialJoins
from synrepl.services.federation.resident.arrivals import ARRIVAL_ERRORS, MembershipArrivals
from synrepl.services.federation.resident.reading import ResidentReading
from synrepl.services.federation.resident.room_access import RoomAccess
from synrepl.services.federation.resident.state_streams import StateStreams
from synrepl.services.federation.resident.templates import MembershipTemplates
from synrepl.services.federation.resync.pushing import JoinPusher
from synrepl.services.federation.resync.room_resync import ResyncParts
from synrepl.services.federation.resync.worker import ResyncWorker
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.federation.verifying import EventVerifier
from synrepl.services.forwarding import ForwardingFailed, WriterActions
from synrepl.services.rooms.full_state_wait import FullStateWait
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.rooms.room_writers import RoomWriters
from synrepl.services.rooms.sending.aliases import RoomAliases
from synrepl.services.rooms.sending.event_sender import EventSender
from synrepl.services.rooms.sending.forwarded_errors import FORWARDED_ERRORS
from synrepl.services.rooms.sending.placements import PlacementCache
from synrepl.services.rooms.sending.room_changes import RoomChanges
from synrepl.services.rooms.store import RoomStore
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Transaction
from synrepl.storage.rooms.partial.swap_facts import RESYNC_STREAMS
from synrepl.storage.rooms.persisting.limits import DEFAULT_LIMITS
from synrepl.storage.rooms.reading.partial_states import require_known
from synrepl.storage.rooms.tables.numbers import find_room, require_room
from synrepl.streams.definition import Fact, Stream

T = TypeVar("T")

#: Seconds until a process has a request of another one, at most, and until that one has the answer.
SLOWEST_S = 0.2

#: Seconds between two looks for what interrupted joins left.
REMOVE_S = 60.0


class ServerOfProcesses(Protocol):
    """What a process knows of its server; see :class:`~simulator.federation.own_server.OwnServer`."""

    @property
    def name(self) -> str: ...

    @property
    def federation(self) -> InMemoryFederation: ...

    @property
    def writers(self) -> Sequence[str]: ...

    @property
    def positions(self) -> dict[tuple[str, str], Token]: ...

    @property
    def processes(self) -> Mapping[str, OwnProcess]: ...

    def heard(self, stream: str, writer: str, facts: Sequence[Fact]) -> None:
        """A process has committed facts."""


class AllKeys:
    """Knows the keys of all servers. Implements ``KnowsKeys`` of the verifier."""

    def __init__(self, keys: SimulatedKeys) -> None:
        self._keys = keys

    async def known(self, servers: Collection[str]) -> Keys:
        """The keys of some servers."""
        return {each: self._keys[each] for each in servers}

    async def for_events(self, wanted: Mapping[str, Mapping[str, int]]) -> Keys:
        """The same."""
        return await self.known(wanted)


class InlineThreads:
    """Does the work of threads at once. Implements ``RunsInThreads``."""

    concurrency = 1

    async def run(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()


class ProcessTransport:
    """A transport whose requests are forgotten with the process that made them.

    Implements :class:`~synrepl.services.federation.interfaces.FederationTransport`.
    """

    def __init__(self, process: Process, transport: FederationTransport) -> None:
        self._process = process
        self._transport = transport

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request. A process that dies meanwhile does not go on."""
        try:
            return await self._transport.send(request)
        finally:
            if not self._process.alive:
                await self._process.promise()


class HeardAnnouncements(WriterAnnouncements):
    """The announcements of one process, which the other processes of its server hear."""

    def __init__(self, server: ServerOfProcesses, writer: str) -> None:
        super().__init__(server.positions, writer)
        self._server = server

    def settled(self, stream: Stream, tokens: Sequence[Token], facts: Sequence[Fact]) -> None:
        """Tell them the facts, and the position."""
        super().settled(stream, tokens, facts)
        self._server.heard(stream.name, self._writer, facts)


class OwnForwarder:
    """Implements :class:`~synrepl.services.forwarding.ForwardsToWriter` among the processes of a server."""

    def __init__(self, process: Process, server: ServerOfProcesses) -> None:
        self._process = process
        self._server = server

    async def forward(self, writer: str, action: str, argument: Mapping[str, Any]) -> Any:
        """Have a process perform an action."""
        process = self._process
        sent = json.dumps(argument)
        await process.sleep(process.random() ** 3 * SLOWEST_S)
        target = self._server.processes[writer]
        if not target.is_ready:
            raise ForwardingFailed(writer=writer, error="gone", message="it is not there")
        actions = target.actions
        try:
            answer = await target.ask(actions.perform(action, json.loads(sent)))
        except SynreplError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        if not process.alive:
            await process.promise()
        await process.sleep(process.random() ** 3 * SLOWEST_S)
        return actions.result(writer, json.loads(json.dumps(answer)))


class OwnProcess(RestartedProcess):
    """A process that joins rooms, completes them, takes in events of others, and answers them.

    :ivar actions: that it performs for the other processes
    :ivar joins: joins rooms of other servers
    :ivar worker: completes rooms
    :ivar aliases: of rooms of users of ours
    :ivar waits: has readers wait for the full states of rooms
    :ivar endpoints: answers other servers
    :ivar stays_down_s: seconds for which it does not start again once it is killed
    """

    def __init__(
        self, surroundings: RoomSurroundings, server: ServerOfProcesses, name: str
    ) -> None:
        self._server = server
        self.stays_down_s = 0.0
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Start with nothing in memory."""
        server, surroundings = self._server, self._surroundings
        federation, name, writers = server.federation, server.name, server.writers
        key = federation.keys.signing_key(name)
        log = self._log = QuietLog(surroundings.transcript, self.name)
        self.writer = StreamWriter(
            process,
            surroundings.store(process, database),
            self.name,
            RESYNC_STREAMS,
            HeardAnnouncements(server, self.name),
            log,
        )
        persister = self.persister = RoomPersister(process, self.writer)
        wire = ProcessTransport(process, federation.transport(name))
        self.transport = BackOffTransport(process, database, wire, log)
        client = FederationClient(self.transport, name, Slices(process))
        verifier = EventVerifier(process, AllKeys(federation.keys), InlineThreads(), log)
        forwarder = OwnForwarder(process, server)
        self.actions = WriterActions((*FORWARDED_ERRORS, *ARRIVAL_ERRORS))
        room_writers = RoomWriters(database, writers)
        # -- joins and resyncs
        parts = ResyncParts(
            scheduler=process,
            database=database,
            persister=persister,
            client=client,
            verifier=verifier,
            pusher=JoinPusher(process, database, client),
            server_name=name,
            limits=DEFAULT_LIMITS,
            log=log,
        )
        self.worker = ResyncWorker(parts, self.name, writers)
        self.transport.listeners.append(self.worker.server_is_up)
        wake = self.worker.wake
        self.full_joins = FullJoins(database, persister, self.name, name, wake)
        handshake = JoinHandshake(
            process,
            database,
            client,
            verifier,
            MembershipMaker(name, key),
            PartialJoins(persister, wake),
            self.full_joins,
            log,
        )
        self.events = EventSender(
            process,
            database,
            PlacementCache(process, room_writers),
            persister,
            self.name,
            name,
            key,
            forwarder,
        )
        self.aliases = RoomAliases(database, self.events)
        self.changes = RoomChanges(database, self.events, self.aliases)
        joiner = RoomJoiner(process, database, handshake, self._locally, self.name, name, log)
        self.joins = RunningJoins(process, joiner, room_writers, forwarder, self.name, log)
        # -- what comes from other servers
        admission = InboundAdmission(database, name, writers)
        fetcher = EventFetcher(process, database, client, verifier, persister)
        gaps = GapFiller(process, database, fetcher, persister, name, log)
        inboxes = RoomInboxes(process, database, persister, gaps, log)
        handover = EventHandover(database, inboxes, RoomWaker(process, forwarder), self.name)
        edus = EduReceiver(process, NoSinks(), admission, log)
        receiver = TransactionReceiver(process, database, admission, verifier, handover, edus)
        self.sweeper = InboundSweeper(
            process, database, room_writers, inboxes, gaps, self.name, log
        )
        access, streams = RoomAccess(database, admission), StateStreams(database)
        arrivals = MembershipArrivals(
            database, access, verifier, persister, forwarder, self.name, name, key
        )
        reading = ResidentReading(database, access, RoomStore(database), streams, name)
        templates = MembershipTemplates(process, database, access, name, key)
        self.endpoints = OwnEndpoints(
            process, templates, arrivals, reading, streams, receiver, name, self._heard_of
        )
        for each in (self.sweeper, arrivals):
            each.add_actions(self.actions)
        self.joins.add_actions(self.actions)
        self.events.add_actions(self.actions)
        self.waits = FullStateWait(process)
        process.spawn("start", self._start(process))

    async def _start(self, process: Process) -> None:
        writer = self.writer
        while not writer.is_open:
            try:
                await writer.start()
            except SynreplError:
                await process.sleep(0.3)
        self._surroundings.transcript.add(self.name, "is ready")
        process.spawn("complete partial rooms", self.worker.run())
        process.spawn("look for events of other servers", self.sweeper.run())
        process.spawn("remove unfinished joins", self._remove_unfinished(process))

    async def _remove_unfinished(self, process: Process) -> None:
        while True:
            try:
                await self.full_joins.remove_unfinished()
            except SynreplError as error:
                self._log.warn("cannot remove unfinished joins: {error}", error=error)
            await process.sleep(REMOVE_S)

    async def _heard_of(self, server: str) -> None:
        await self.transport.server_is_up(server)

    async def _locally(self, user_id: str, room_id: str, content: Mapping[str, Any]) -> Any:
        return await self.changes.join(ClientIdentity(user_id, "D"), room_id, content)

    def _restart(self) -> None:
        wait_s, self.stays_down_s = self.stays_down_s, 0.0
        if wait_s:
            self._surroundings.clock.callLater(wait_s, super()._restart)
        else:
            super()._restart()

    @property
    def is_ready(self) -> bool:
        """Whether it runs and has its lease."""
        return self.process.alive and self.writer.is_open

    # -- what clients ask for ---------------------------------------------------------------

    async def join(
        self, room_id: str, user_id: str, via: Sequence[str], *, whole: bool
    ) -> JoinedRoomResult:
        """Have a user join a room."""
        return await self.joins.join(JoinRequest(room_id, user_id, {}, via, whole=whole))

    async def send(
        self,
        room_id: str,
        kind: str,
        sender: str,
        content: Mapping[str, Any],
        state_key: str | None = None,
    ) -> str:
        """Have a user send an event; returns its ID."""
        identity = ClientIdentity(sender, "D")
        sent = await self.events.send(identity, room_id, kind, content, state_key=state_key)
        return sent.event_id

    async def members(self, room_id: str) -> int:
        """The number of members of a room: a reader waits until they are known."""

        def work(txn: Transaction) -> int:
            found = find_room(txn, room_id)
            if found is None:
                return 0
            room = require_room(txn, room_id)
            require_known(txn, room.room_no, None, self._server.name, "the members")
            txn.execute(
                "SELECT count(*) FROM synrepl._memberships WHERE room_no = %s", (room.room_no,)
            )
            return int(txn.fetchone()[0])

        return await self.waits.read(
            room_id, lambda: self.database.run("read members", work, read_only=True)
        )


class OwnSender(RestartedProcess):
    """A process that sends the events of a server to others."""

    def __init__(
        self, surroundings: RoomSurroundings, server: ServerOfProcesses, name: str
    ) -> None:
        self._server = server
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Claim partitions, and send."""
        server, log = self._server, QuietLog(self._surroundings.transcript, self.name)
        wire = ProcessTransport(process, server.federation.transport(server.name))
        self.transport = BackOffTransport(process, database, wire, log)
        self.sender = FederationSender(
            process,
            database,
            self._surroundings.store(process, database),
            database.open_session,
            self.name,
            (self.name,),
            server.name,
            FederationClient(self.transport, server.name),
            self.transport,
            lambda: 0,
            log,
            has_device_lists=False,
        )
        self.transport.listeners.append(self.sender.server_is_up)
        self.sender.start()

    async def server_is_up(self, name: str) -> None:
        """Another server is there again."""
        await self.transport.server_is_up(name)
        self.sender.server_is_up(name)
