"""Assembles the services of a worker from a configuration and ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.caches.registry import Caches
from synrepl.core.errors import SynreplError
from synrepl.core.log import Logger
from synrepl.core.tokens import Token
from synrepl.daemon import handlers
from synrepl.daemon.assemble.client_data import ClientDataServices, assemble_client_data
from synrepl.daemon.assemble.clients import (
    ClientReading,
    assemble_linear,
    assemble_news,
    assemble_reading,
)
from synrepl.daemon.assemble.federation import FederationServices, assemble_federation
from synrepl.daemon.assemble.inbound import InboundServices, assemble_inbound
from synrepl.daemon.assemble.joining import JoiningServices, assemble_joining
from synrepl.daemon.assemble.partial_rooms import (
    PartialRoomServices,
    assemble_partial_rooms,
)
from synrepl.daemon.assemble.ports import WorkerPorts, auditor_of, begin_sampling, changes_of
from synrepl.daemon.assemble.rooms import RoomServices, assemble_rooms
from synrepl.daemon.assemble.sending import assemble_sending, sending_handlers
from synrepl.daemon.config.config import WorkerConfig
from synrepl.daemon.config.own_streams import refused_streams
from synrepl.daemon.process_bus import ProcessBus, publisher_of, worker_bus
from synrepl.daemon.worker_commands import WorkerCommands
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidations import Changes
from synrepl.services.coherence.listeners import CoherentCommitListener
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.delivery import Delivery
from synrepl.services.following.follower import Follower
from synrepl.services.following.follower_lease import FollowerLease
from synrepl.services.handlers import Access
from synrepl.services.position_waiters import PositionWaiters
from synrepl.services.rooms.news.linear_positions import LinearPositions
from synrepl.services.rooms.news.token_wait import WorkerGivenOut
from synrepl.services.waiting.applied_positions import FollowerPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.writing.commit_listener import CommitListener, NullCommitListener
from synrepl.services.writing.periodic import skip_idle
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.tools.audit.audit import Auditor
from synrepl.wire.dialects import CLIENT_DIALECTS
from synrepl.wire.session import SessionLimits

#: Interval at which a worker records its positions, in seconds.
RECORD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """The services of a worker.

    :ivar writer: None if it writes no stream
    :ivar changes: None unless it writes the ``caches`` stream
    :ivar lease: None if it records no positions for its master
    :ivar auditor: None without a synrepl database
    :ivar bus: None over TCP
    :ivar rooms: None without ``rooms``, as ``client_data``
    :ivar reading: None without a listener for Matrix clients; likewise ``linear``
    :ivar federation_services: None without ``rooms.federation``, as ``inbound``
    :ivar sending: None unless it sends to other servers
    :ivar partial_rooms: None without it, and in a process that persists no room
    :ivar joining: None without ``rooms.federation``
    :ivar factory: makes the connections over TCP
    """

    config: WorkerConfig
    ports: WorkerPorts
    catalogue: Catalogue
    own_streams: Sequence[Stream]
    own_writer: OwnWriter
    waiters: PositionWaiters
    delivery: Delivery
    follower: Follower
    commands: WorkerCommands
    writer: StreamWriter | None
    changes: Changes | None
    lease: FollowerLease | None
    factory: WorkerFactory
    bus: ProcessBus | None
    waiting: WaitFor
    auditor: Auditor | None
    access: Access
    rooms: RoomServices | None
    client_data: ClientDataServices | None
    reading: ClientReading | None
    linear: LinearPositions | None
    federation_services: FederationServices | None
    inbound: InboundServices | None
    sending: FederationSender | None
    partial_rooms: PartialRoomServices | None
    joining: JoiningServices | None

    @property
    def is_connected(self) -> bool:
        """Whether it is connected to its master, or to the bus."""
        return self.factory.has_handshake if self.bus is None else self.bus.is_connected

    async def take_names(self) -> None:
        """Acquire the follower's lease, and the writer's lease if it writes a stream.

        :raises WriterTaken: another live process has the name; :raises WriterRemoved:
        """
        if self.lease is not None:
            await self.ports.until_done(self.lease.start)
        if self.writer is not None:
            await self.ports.until_done(self.writer.start)

    async def begin(self) -> None:
        """Read the recorded positions, and start the handlers; it can follow afterwards.

        :raises SynreplError: a handler cannot start
        """
        until_done = self.ports.until_done
        if self.linear is not None:
            await until_done(self.linear.start)
        await until_done(self.delivery.start)
        for handler in self.ports.handlers:
            await until_done(partial(handlers.start, [handler], self.access))
        await self.delivery.report_losses()

    def follow(self) -> None:
        """Join the bus, if there is one, and start the background tasks."""
        scheduler = self.ports.scheduler
        if self.bus is not None:
            self.bus.start()
            if self.writer is not None:
                scheduler.spawn("skip idle", skip_idle(scheduler, self.writer, self.ports.log))
        scheduler.spawn("record positions", self._record())
        if self.client_data is not None:
            self.client_data.begin(scheduler)
        scheduler.spawn("replay dead letters", self.delivery.dead_letters.run())
        if self.linear is not None:
            scheduler.spawn("linear positions", self.linear.run())
        if self.auditor is not None:
            begin_sampling(self.ports, self.config, self.auditor)

    async def _record(self) -> None:
        while True:
            await self.ports.scheduler.sleep(RECORD_S)
            try:
                await self.delivery.progress.record()
            except SynreplError as error:
                self.ports.log.warn("cannot record positions: {error}", error=error)


def worker_coherence(
    config: WorkerConfig, catalogue: Catalogue, caches: Caches, log: Logger
) -> Coherence:
    """Make the coherence of a worker's caches."""
    is_linear = not CLIENT_DIALECTS[config.dialect].per_writer
    return Coherence(
        caches,
        catalogue,
        log,
        None if config.follow == "all" else config.follow,
        # A synrepl master leaves facts out of the linear view if a row is too long for a line.
        may_omit_facts=is_linear and not config.master.foreign,
    )


def assemble_worker(
    config: WorkerConfig,
    ports: WorkerPorts,
    catalogue: Catalogue,
    own: Sequence[Stream],
) -> WorkerServices:
    """Wire the services of a worker.

    :param own: the streams that the worker writes
    """
    scheduler, log, sizes, store = ports.scheduler, ports.log, ports.sizes, ports.store
    name, followed = config.instance_name, None if config.follow == "all" else config.follow
    dialect = CLIENT_DIALECTS[config.dialect]
    is_linear, coherence = not dialect.per_writer, ports.coherence
    waiters = PositionWaiters(scheduler)
    publisher = publisher_of(scheduler, catalogue)
    own_writer = OwnWriter(ports.watched(publisher))
    news = assemble_news(config, ports, ports.database, catalogue)
    servers = assemble_federation(config, ports, ports.database)
    # A worker learns of its linear position late, so the sender observes the database.
    sending = assemble_sending(
        config,
        ports,
        store,
        ports.database,
        catalogue,
        servers,
        lambda: 0,
    )
    built_in = sending_handlers(ports, catalogue, servers, sending, lambda: commands.commands)

    def lane_moved(stream: str, writer: str, position: Token) -> None:
        if news is not None:
            news.applied.moved(stream, writer, position)
        if sending is not None:
            sending.moved(stream, writer, position)

    delivery = Delivery(
        scheduler,
        [*ports.handlers, *built_in],
        log,
        config.name_as_follower,
        ports.database,
        waiters,
        coherence,
        sources=ports.catch_up_sources,
        linear=is_linear,
        incarnations=ports.incarnations,
        catalogue=catalogue,
        sizes=sizes,
        lane_moved=lane_moved,
    )
    follower = Follower(
        scheduler,
        catalogue,
        ports.source,
        delivery,
        log,
        followed,
        earliest=config.starting == "earliest",
        foreign=config.master.foreign,
        wanted=_wanted(followed, ports.handlers),
        tokens=ports.tokens,
        sizes=sizes,
    )
    commands = WorkerCommands(
        scheduler,
        config,
        follower,
        delivery.deliver_command,
        own_writer.states if FEDERATION in own else None,
        store,
        log,
    )
    factory = WorkerFactory(
        scheduler,
        commands.link,
        name,
        config.server_name,
        dialect,
        log.info,
        SessionLimits(line=config.line_limit, ping_timeout=config.ping_timeout),
    )
    bus: ProcessBus | None = None
    if ports.connect_bus is not None:
        bus = worker_bus(
            ports.connect_bus,
            config,
            catalogue,
            publisher,
            own_writer,
            commands.link,
            followed,
            commands.outgoing.process_joined,
            log,
        )
    writer = None
    if store is not None and own:
        settled: CommitListener = NullCommitListener() if bus is None else own_writer
        writer = StreamWriter(
            scheduler,
            store,
            name,
            own,
            CoherentCommitListener(coherence, name, settled),
            log,
            config.writers_of,
            refused_streams(config),
        )
    positions = FollowerPositions(
        follower,
        delivery,
        lambda: services.is_connected,
        followed,
        linear=is_linear,
    )
    waiting = WaitFor(catalogue, positions, waiters)
    is_ours = store is not None and not config.master.foreign
    changes = None if writer is None else changes_of(ports, coherence, writer, own)
    rooms = assemble_rooms(config, ports, ports.database, writer)
    client_data = assemble_client_data(config, ports, ports.database, catalogue, writer)
    inbound = assemble_inbound(config, ports, ports.database, writer, rooms, client_data, servers)
    partial_rooms = assemble_partial_rooms(config, ports, ports.database, writer, rooms, servers)
    joining = assemble_joining(
        config, ports, ports.database, rooms, servers, inbound, partial_rooms
    )
    services = WorkerServices(
        config=config,
        ports=ports,
        catalogue=catalogue,
        own_streams=own,
        own_writer=own_writer,
        waiters=waiters,
        delivery=delivery,
        follower=follower,
        commands=commands,
        writer=writer,
        changes=changes,
        lease=_lease(config, ports, catalogue),
        factory=factory,
        bus=bus,
        waiting=waiting,
        auditor=auditor_of(
            scheduler, coherence, catalogue, store, positions, waiting, log, in_memory=False
        )
        if is_ours and store is not None
        else None,
        access=Access(
            coherence.caches,
            waiting.wait_for,
            commands.commands,
            commands.syncing,
            ports.database,
            changes,
        ),
        rooms=rooms,
        client_data=client_data,
        reading=assemble_reading(ports, news, client_data, WorkerGivenOut(ports.tokens, store)),
        linear=assemble_linear(ports, news, catalogue),
        federation_services=servers,
        inbound=inbound,
        sending=sending,
        partial_rooms=partial_rooms,
        joining=joining,
    )
    return services


def _lease(config: WorkerConfig, ports: WorkerPorts, catalogue: Catalogue) -> FollowerLease | None:
    """The lease that retains unacknowledged facts; None with a real Synapse, which ignores it."""
    if ports.store is None or ports.database is None or config.master.foreign:
        return None
    return FollowerLease(
        ports.scheduler,
        ports.store,
        config.name_as_follower,
        [stream.name for stream in catalogue] if config.follow == "all" else config.follow,
        config.lease,
        ports.log,
    )


def _wanted(followed: Sequence[str] | None, subscriptions: Sequence[Subscription]) -> list[str]:
    """The streams that are followed by name, in the configuration or by a handler."""
    names = set(followed or ())
    for each in subscriptions:
        names.update(each.handler.streams or ())
    return sorted(names)
