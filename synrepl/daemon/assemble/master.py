"""Assembles the services of a master from a configuration and ports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from synrepl.core.backlog import AllOf
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.daemon import handlers
from synrepl.daemon.assemble.client_data import ClientDataServices, assemble_client_data
from synrepl.daemon.assemble.clients import ClientReading, assemble_news, assemble_reading
from synrepl.daemon.assemble.federation import FederationServices, assemble_federation
from synrepl.daemon.assemble.inbound import InboundServices, assemble_inbound
from synrepl.daemon.assemble.joining import JoiningServices, assemble_joining
from synrepl.daemon.assemble.partial_rooms import (
    PartialRoomServices,
    assemble_partial_rooms,
)
from synrepl.daemon.assemble.ports import Ports, auditor_of, begin_sampling, changes_of
from synrepl.daemon.assemble.rooms import RoomServices, assemble_rooms
from synrepl.daemon.assemble.sending import assemble_sending, sending_handlers
from synrepl.daemon.config.config import MasterConfig
from synrepl.daemon.config.own_streams import memory_streams_elsewhere, refused_streams
from synrepl.daemon.process_bus import MasterBus, publisher_of
from synrepl.daemon.sources import SplitSource
from synrepl.services.announcing.announcer import Announcer
from synrepl.services.announcing.position_listeners import FanOut, Throughput
from synrepl.services.announcing.publisher import Publisher
from synrepl.services.announcing.stream_state import PositionListener
from synrepl.services.bus.bus_relay import SyncingRepeater
from synrepl.services.coherence.invalidation_relay import InvalidationRelay
from synrepl.services.coherence.invalidations import Changes
from synrepl.services.coherence.listeners import CoherentCommitListener, CoherentPositionListener
from synrepl.services.federation.sending.sender import FederationSender
from synrepl.services.following.command_queue import CommandQueue
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.handlers import Access
from synrepl.services.position_waiters import PositionWaiters, WakingPositionListener
from synrepl.services.rooms.news.token_wait import MasterGivenOut
from synrepl.services.sending.commands import Commands
from synrepl.services.serving.federation_trim import FederationTrim, mirror_trimmer, store_trimmer
from synrepl.services.serving.master import Master
from synrepl.services.serving.peer_states import BUS
from synrepl.services.sources import FactSource
from synrepl.services.status.expected_followers import ExpectedFollowers
from synrepl.services.trimmer import Trimmer
from synrepl.services.waiting.applied_positions import MasterPositions
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.events import EVENTS
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.tools.audit.audit import Auditor
from synrepl.wire.commands import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterServices:
    """The services of a master.

    :ivar bus: None without Redis
    :ivar rooms: None without ``rooms``, as ``client_data``
    :ivar reading: None without a listener for Matrix clients
    :ivar federation_services: None without ``rooms.federation``, as ``inbound``
    :ivar sending: None unless it sends to other servers
    :ivar partial_rooms: None without it, and in a process that persists no room
    :ivar joining: None without ``rooms.federation``
    :ivar changes: None unless it writes the ``caches`` stream; likewise ``relay``
    """

    config: MasterConfig
    ports: Ports
    store: FactStore
    catalogue: Catalogue
    publisher: Publisher
    throughput: Throughput
    slices: Slices
    handler_commands: CommandQueue
    announcer: Announcer
    writer: StreamWriter
    waiters: PositionWaiters
    waiting: WaitFor
    auditor: Auditor
    trimmer: Trimmer
    changes: Changes | None
    relay: InvalidationRelay | None
    bus: MasterBus | None
    repeater: SyncingRepeater | None
    source: FactSource
    master: Master
    federation: FederationTrim
    followers: ExpectedFollowers
    access: Access
    rooms: RoomServices | None
    client_data: ClientDataServices | None
    reading: ClientReading | None
    federation_services: FederationServices | None
    inbound: InboundServices | None
    sending: FederationSender | None
    partial_rooms: PartialRoomServices | None
    joining: JoiningServices | None

    async def take_name(self) -> None:
        """Acquire the writer's lease, after confirming the incarnation of the database server.

        :raises WriterTaken: another live process has the name
        :raises DatabaseAway:
        """
        await self.store.confirm({})
        await self.writer.start()

    async def begin(self) -> None:
        """Begin to announce, and start the handlers; clients can be accepted afterwards.

        :raises SynreplError: a handler cannot start
        """
        scheduler, until_done = self.ports.scheduler, self.ports.until_done
        await until_done(self.announcer.start)
        for name, state in self.announcer.states.items():
            for writer, position in state.positions.items():
                self.ports.coherence.begin(name, writer, position)
            if self.reading is not None:
                self.reading.applied.begin(name, state.positions, state.linear)
        scheduler.spawn("trim", self.trimmer.run())
        if self.client_data is not None:
            self.client_data.begin(scheduler)
        begin_sampling(self.ports, self.config, self.auditor)
        self.handler_commands.hold()  # on_start of one handler may send commands that another gets
        for handler in self.ports.handlers:
            await until_done(partial(handlers.start, [handler], self.access))
        self.handler_commands.release()

    async def stop(self) -> None:
        """Disconnect clients and the bus, and record the positions; the lease is still held."""
        self.master.shut_down()
        if self.repeater is not None:
            self.repeater.stop()
        if self.bus is not None:
            await self.bus.stop()
        await self.announcer.stop()


def assemble_master(
    config: MasterConfig,
    ports: Ports,
    store: FactStore,
    database: Database | None,
    catalogue: Catalogue,
    own: Sequence[Stream],
) -> MasterServices:
    """Wire the services of a master.

    :param database: the database that handlers may use
    :param own: the streams that the master writes itself
    """
    scheduler, log, sizes, name = ports.scheduler, ports.log, ports.sizes, config.instance_name
    publisher = publisher_of(scheduler, catalogue)
    slices = Slices(scheduler, sizes.turn_units)
    servers = assemble_federation(config, ports, database)
    sending = assemble_sending(
        config,
        ports,
        store,
        database,
        catalogue,
        servers,
        lambda: announcer.states[EVENTS.name].linear,
    )
    built_in = sending_handlers(ports, catalogue, servers, sending, lambda: commands)
    handler_commands = CommandQueue(
        scheduler,
        slices,
        {each.name: each.handler for each in (*ports.handlers, *built_in) if each.name is not None},
        HandlerFailures(scheduler, log),
        log,
    )

    # Commands from the bus go to the master, which is made further down.
    def received_from_bus(command: Command) -> None:
        master.received_from_bus(command)
        handler_commands.put("bus", command)

    def joined() -> None:
        if repeater is not None:
            repeater.joined()

    def process_joined() -> None:
        if repeater is not None:
            repeater.process_joined()

    def received_from_client(source: str, command: Command) -> None:
        if bus is not None:
            bus.relay.from_client(source, command)
        handler_commands.put(source, command)

    def stream_restarted(stream: Stream, writer: str, position: Token, known: bool) -> None:
        started = coherence.reset if known else coherence.begin
        started(stream.name, writer, position)
        if stream is FEDERATION:
            federation.stream_restarted()
        master.stream_restarted(stream)

    bus: MasterBus | None = None
    if ports.connect_bus is not None:
        bus = MasterBus(
            ports.connect_bus,
            scheduler,
            config,
            catalogue,
            memory_streams_elsewhere(config, catalogue),
            received_from_bus,
            joined,
            lambda: master.bus_lost(),
            process_joined,
            log,
        )
    announced: PositionListener = publisher if bus is None else FanOut((publisher, bus.proxy))
    throughput = Throughput()
    coherence = ports.coherence
    waiters = PositionWaiters(scheduler)
    news = assemble_news(config, ports, database, catalogue)
    listeners: tuple[PositionListener, ...] = (
        # Caches drop stale entries before the position is announced to anyone (R4).
        CoherentPositionListener(coherence, name),
        throughput,
        ports.watched(announced),
        *(() if news is None else (news.applied,)),
        *(() if sending is None else (sending,)),
        # Last, so that a waiter that is woken finds the position announced.
        WakingPositionListener(waiters),
    )
    announcer = Announcer(
        scheduler,
        store,
        catalogue,
        FanOut(listeners),
        log,
        config.poll_interval,
        coherence.reset,
        lambda incarnation: writer.failed_over(incarnation),
        sizes,
    )
    writer = StreamWriter(
        scheduler,
        store,
        name,
        own,
        CoherentCommitListener(coherence, name, announcer),
        log,
        config.writers_of,
        refused_streams(config),
    )
    positions = MasterPositions(announcer, writer)
    waiting = WaitFor(catalogue, positions, waiters)
    auditor = auditor_of(
        scheduler, coherence, catalogue, store, positions, waiting, log, in_memory=True
    )
    trimmer = Trimmer(
        scheduler,
        store,
        # In-memory streams bound themselves.
        [stream for stream in catalogue if stream.ephemeral and not stream.in_memory],
        lambda stream: announcer.states[stream.name].linear,
        log,
        every_s=config.retention.every,
        keep_s=config.retention.keep,
        max_s=config.retention.max,
        rows=sizes.trim_rows,
    )
    changes = changes_of(ports, coherence, writer, own)
    relay = None
    if changes is not None:
        relay = InvalidationRelay(scheduler, writer, changes.invalidations, log)
    source: FactSource = store
    if bus is not None:
        source = SplitSource(bus.mirror.streams, bus.mirror.page, store)
    master = Master(
        scheduler,
        catalogue,
        announcer.states,
        publisher,
        source,
        received_from_client,
        log,
        None if relay is None else relay.take,
        slices,
        AllOf([handler_commands] if bus is None else [handler_commands, bus.capacity]),
        name,
        config.federation_sender_instances,
        sizes,
    )
    commands = Commands(name, master, scheduler.seconds)
    repeater = None
    trim = store_trimmer(store, FEDERATION)
    if bus is not None:
        repeater = SyncingRepeater(scheduler, bus.relay, master.user_syncs, BUS)
        if FEDERATION.name in bus.mirror.streams:
            trim = mirror_trimmer(bus.mirror, FEDERATION)
        bus.proxy.begin(announcer.states)
        bus.mirror.begin(announcer.states, stream_restarted)
    federation = FederationTrim(scheduler, master.federation_acks, trim, log)
    rooms = assemble_rooms(config, ports, database, writer)
    client_data = assemble_client_data(config, ports, database, catalogue, writer)
    inbound = assemble_inbound(config, ports, database, writer, rooms, client_data, servers)
    partial_rooms = assemble_partial_rooms(config, ports, database, writer, rooms, servers)
    joining = assemble_joining(config, ports, database, rooms, servers, inbound, partial_rooms)
    return MasterServices(
        config=config,
        ports=ports,
        store=store,
        catalogue=catalogue,
        publisher=publisher,
        throughput=throughput,
        slices=slices,
        handler_commands=handler_commands,
        announcer=announcer,
        writer=writer,
        waiters=waiters,
        waiting=waiting,
        auditor=auditor,
        trimmer=trimmer,
        changes=changes,
        relay=relay,
        bus=bus,
        repeater=repeater,
        source=source,
        master=master,
        federation=federation,
        followers=ExpectedFollowers(
            scheduler,
            store,
            announcer.states,
            lambda: {connection.name for connection in master.followers},
            config.followers.limits,
            log,
        ),
        access=Access(
            coherence.caches,
            waiting.wait_for,
            commands,
            master.user_syncs,
            database,
            changes,
        ),
        rooms=rooms,
        client_data=client_data,
        reading=assemble_reading(ports, news, client_data, MasterGivenOut(announcer, writer)),
        federation_services=servers,
        inbound=inbound,
        sending=sending,
        partial_rooms=partial_rooms,
        joining=joining,
    )
