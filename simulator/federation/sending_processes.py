"""The processes of a server that sends to others, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.clock import Process
from simulator.federation.in_memory import InMemoryFederation
from simulator.rooms.interruptions import RandomInterruptions
from simulator.rooms.process_database import InterruptedProcessDatabase
from simulator.rooms.room_processes import (
    AnnouncedPositions,
    QuietLog,
    RestartedProcess,
    RoomSurroundings,
)
from simulator.truth import Violations
from synrepl.core.tokens import Token
from synrepl.federation.requests import FederationAnswer, FederationRequest
from synrepl.services.federation.backing_off import BackOffTransport
from synrepl.services.federation.client import FederationClient
from synrepl.services.federation.interfaces import FederationTransport
from synrepl.services.federation.sending.dispatcher import SendingLimits
from synrepl.services.federation.sending.handed_over_edus import HandedOverEdus
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.rooms.persister import RoomPersister
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.rooms.persisting.batch_facts import ROOM_STREAMS
from synrepl.streams.synapse.device_lists import DEVICE_LISTS

#: The name of the server whose processes send.
HOME = "home"


class RequestsUnderWay:
    """Watches that no two requests are under way to one destination, unless the process of one is dead."""

    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self._processes: dict[str, list[Process]] = {}

    def transport(self, process: Process, transport: FederationTransport) -> WatchedTransport:
        """The transport of a process."""
        return WatchedTransport(self, process, transport)

    def begin(self, process: Process, destination: str) -> None:
        """A request is sent."""
        others = [each for each in self._processes.get(destination, ()) if each.alive]
        if others:
            self._violations.add(
                "ALONE",
                "{one} and {other} send to {destination} at the same time",
                one=process.name,
                other=others[0].name,
                destination=destination,
            )
        self._processes[destination] = [*others, process]

    def end(self, process: Process, destination: str) -> None:
        """A request was answered, or failed."""
        self._processes[destination].remove(process)


class WatchedTransport:
    """Implements :class:`~synrepl.services.federation.interfaces.FederationTransport`."""

    def __init__(
        self, requests: RequestsUnderWay, process: Process, transport: FederationTransport
    ) -> None:
        self._requests = requests
        self._process = process
        self._transport = transport

    async def send(self, request: FederationRequest) -> FederationAnswer:
        """Send a request. A process that dies meanwhile does not go on."""
        self._requests.begin(self._process, request.destination)
        try:
            return await self._transport.send(request)
        finally:
            if not self._process.alive:
                await self._process.promise()
            self._requests.end(self._process, request.destination)


class PersistingSource:
    """The process of the server that persists the events of its rooms; it is never disturbed."""

    def __init__(self, surroundings: RoomSurroundings, quiet: RandomInterruptions) -> None:
        self.process, database = surroundings.process("source", quiet)
        store = surroundings.store(self.process, database)
        log = QuietLog(surroundings.transcript, "source")
        streams = (*ROOM_STREAMS, DEVICE_LISTS)
        announcements = AnnouncedPositions().of("source")
        self.writer = StreamWriter(self.process, store, "source", streams, announcements, log)
        self.persister = RoomPersister(self.process, self.writer)
        self.process.spawn("start", self.writer.start())


class SendingProcess(RestartedProcess):
    """A process of the server that sends.

    :ivar sender: what it runs
    :ivar handed_over: gets the facts of ``federation``
    :ivar acknowledged: tokens of ``federation`` that it acknowledged
    :ivar is_gone: whether it does not start again
    """

    def __init__(
        self,
        surroundings: RoomSurroundings,
        name: str,
        senders: Sequence[str],
        federation: InMemoryFederation,
        requests: RequestsUnderWay,
        limits: SendingLimits,
    ) -> None:
        self._requests = requests
        self.senders = senders
        self.acknowledged: list[Token] = []
        self.is_gone = False
        self._federation = federation
        self._limits = limits
        super().__init__(surroundings, name)

    def started(self, process: Process, database: InterruptedProcessDatabase) -> None:
        """Claim partitions, and send."""
        log = QuietLog(self._surroundings.transcript, self.name)
        watched = self._requests.transport(process, self._federation.transport(HOME))
        transport = BackOffTransport(process, database, watched, log)
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
            log,
            self._limits,
        )
        transport.listeners.append(self.sender.server_is_up)
        self.handed_over = HandedOverEdus(process, self.sender, lambda: self)
        self.sender.start()

    def federation_ack(self, token: Token) -> None:
        """Acknowledge ``federation``."""
        self.acknowledged.append(token)

    async def is_up(self, server: str) -> None:
        """Another process has heard of a server."""
        await self.transport.server_is_up(server)
        self.sender.server_is_up(server)

    def _restart(self) -> None:
        if not self.is_gone:
            super()._restart()
