"""The services of a master and of a worker, wired from a configuration and ports.

This is the only place where they are wired: the daemons, the simulator and the tests differ in
the ports alone. An assembled process is complete and has done nothing yet; its ``start`` methods
say in which order its parts begin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from synrepl.adapters.tcp_worker import WorkerFactory
from synrepl.caches.registry import Caches
from synrepl.core.backlog import AllOf
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.daemon import handlers
from synrepl.daemon.auditing import auditor_of
from synrepl.daemon.config import Config, MasterConfig, WorkerConfig
from synrepl.daemon.federation import refusals
from synrepl.daemon.memory_sources import SomeElsewhere
from synrepl.daemon.own_streams import kept_elsewhere
from synrepl.daemon.process_bus import Join, MasterBus, ProcessBus, publisher_of, worker_bus
from synrepl.daemon.worker_commands import WorkerCommands
from synrepl.services.announcing.announce import Announcer, Log
from synrepl.services.announcing.stream_state import Movements
from synrepl.services.announcing.throughput import Throughput
from synrepl.services.auditing.audit import Auditor
from synrepl.services.auditing.sample_caches import sample_caches
from synrepl.services.bus.both import BothMovements
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.bus.syncing_repeater import SyncingRepeater
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.coherent import CoherentMovements, CoherentSettled
from synrepl.services.coherence.invalidate import Changes, Invalidations
from synrepl.services.coherence.relay_invalidations import InvalidationRelay
from synrepl.services.command_queue import CommandQueue
from synrepl.services.following.consumer import Subscription
from synrepl.services.following.deliver import Delivery
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.following.follow import Follower
from synrepl.services.following.leases import FollowerLease
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.following.source import Backlog, Source
from synrepl.services.handlers import Access
from synrepl.services.sending.commands import Commands
from synrepl.services.serving.federation_trim import FederationTrim, trims_mirror, trims_store
from synrepl.services.serving.peer_states import BUS
from synrepl.services.serving.serve import Master
from synrepl.services.sizes import DEFAULT_SIZES, Sizes
from synrepl.services.standing.expected_followers import ExpectedFollowers
from synrepl.services.trim import Trimmer
from synrepl.services.waiting.own_positions import FollowerPositions, MasterPositions
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.waiting.waking_movements import WakingMovements
from synrepl.services.writing.announced_elsewhere import AnnouncedElsewhere
from synrepl.services.writing.settled import Settled
from synrepl.services.writing.skip_idle import skip_idle
from synrepl.services.writing.write import StreamWriter
from synrepl.storage.database import Database
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Stream
from synrepl.streams.synapse.caches import CACHES
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CLIENT_DIALECTS
from synrepl.wire.session import Limits

T = TypeVar("T")

#: Seconds between two records of a worker's positions.
RECORD_S = 1.0


class UntilDone(Protocol):
    """Runs a step of a start, again while the database is away."""

    def __call__(self, step: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """The result of the step.

        :raises SynreplError: waiting does not help
        """


def unchanged(movements: Movements) -> Movements:
    """Nobody watches what is announced."""
    return movements


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What every process stands on.

    :ivar join: makes its connections to Redis; for a configuration with ``redis``
    :ivar coherence: of the process's caches, already checked
    :ivar handlers: of the user
    :ivar until_done: runs the steps of the start
    :ivar watched: puts an observer in front of what is announced
    """

    scheduler: Scheduler
    log: Log
    coherence: Coherence
    until_done: UntilDone
    join: Join | None = None
    handlers: Sequence[Subscription] = ()
    watched: Callable[[Movements], Movements] = unchanged
    sizes: Sizes = DEFAULT_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPorts(Ports):
    """What a worker stands on.

    :ivar store: None for a worker without a database
    :ivar database: for the record of its positions, and for transactional handlers
    :ivar incarnations: those of the database's server that the process has met
    :ivar source: where it fetches what it missed
    :ivar backlog: where handlers get facts from the past; None where nobody has them
    :ivar tokens: which tokens can have been given out
    """

    store: FactStore | None
    database: Database | None
    incarnations: Incarnations
    source: Source
    backlog: Backlog | None
    tokens: PossibleTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterServices:
    """The services of a master.

    :ivar bus: None without Redis
    :ivar changes: None where it does not write the ``caches`` stream; so is ``relay``
    """

    config: MasterConfig
    ports: Ports
    store: FactStore
    catalogue: Catalogue
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
    source: Source
    master: Master
    federation: FederationTrim
    followers: ExpectedFollowers
    access: Access

    async def take_name(self) -> None:
        """Become the writer, on a server that is confirmed.

        :raises WriterTaken: another live process has the name
        :raises DatabaseAway:
        """
        await self.store.confirm({})
        await self.writer.start()

    async def begin(self) -> None:
        """Begin to announce, and let the handlers start; clients can be accepted afterwards.

        :raises SynreplError: a handler cannot start
        """
        scheduler, until_done = self.ports.scheduler, self.ports.until_done
        await until_done(self.announcer.start)
        for name, state in self.announcer.states.items():
            for writer, position in state.positions.items():
                self.ports.coherence.begin(name, writer, position)
        scheduler.spawn("trim", self.trimmer.run())
        _sample_caches(self.ports, self.config, self.auditor)
        self.handler_commands.hold()  # on_start of one handler may send what another one hears
        for handler in self.ports.handlers:
            await until_done(partial(handlers.start, [handler], self.access))
        self.handler_commands.release()

    async def stop(self) -> None:
        """Tell clients and the bus, and record the positions; the name is still held."""
        self.master.shut_down()
        if self.repeater is not None:
            self.repeater.stop()
        if self.bus is not None:
            await self.bus.stop()
        await self.announcer.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerServices:
    """The services of a worker.

    :ivar writer: None where it writes no stream; so is ``changes`` where not ``caches``
    :ivar lease: None where it leaves nothing on record
    :ivar auditor: None without a database of its own
    :ivar bus: None over TCP
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

    @property
    def is_connected(self) -> bool:
        """It hears its master, or the bus."""
        return self.factory.handshaken if self.bus is None else self.bus.standing

    async def take_names(self) -> None:
        """Have what this worker has not acknowledged kept, and become a writer if it is one.

        :raises WriterTaken: another live process has the name; :raises WriterRemoved:
        """
        if self.lease is not None:
            await self.ports.until_done(self.lease.start)
        if self.writer is not None:
            await self.ports.until_done(self.writer.start)

    async def begin(self) -> None:
        """Read what is on record, and let the handlers start; it can follow afterwards.

        :raises SynreplError: a handler cannot start
        """
        until_done = self.ports.until_done
        await until_done(self.delivery.start)
        for handler in self.ports.handlers:
            await until_done(partial(handlers.start, [handler], self.access))
        await self.delivery.tell_losses()

    def follow(self) -> None:
        """Join the bus, if there is one, and keep the record up to date from now on."""
        scheduler = self.ports.scheduler
        if self.bus is not None:
            self.bus.start()
            if self.writer is not None:
                scheduler.spawn("skip idle", skip_idle(scheduler, self.writer, self.ports.log))
        scheduler.spawn("record positions", self._record())
        scheduler.spawn("replay dead letters", self.delivery.dead_letters.run())
        if self.auditor is not None:
            _sample_caches(self.ports, self.config, self.auditor)

    async def _record(self) -> None:
        while True:
            await self.ports.scheduler.sleep(RECORD_S)
            try:
                await self.delivery.progress.record()
            except SynreplError as error:
                self.ports.log.warn("cannot record positions: {error}", error=error)


def assemble_master(
    config: MasterConfig,
    ports: Ports,
    store: FactStore,
    database: Database,
    catalogue: Catalogue,
    own: Sequence[Stream],
) -> MasterServices:
    """A master.

    :param own: the streams that it writes itself
    """
    scheduler, log, sizes, name = ports.scheduler, ports.log, ports.sizes, config.instance_name
    publisher = publisher_of(scheduler, catalogue)
    slices = Slices(scheduler, sizes.turn_units)
    handler_commands = CommandQueue(
        scheduler,
        slices,
        {each.name: each.handler for each in ports.handlers if each.name is not None},
        HandlerFailures(scheduler, log),
        log,
    )

    # What comes from the bus reaches the master, which is made further down.
    def heard_on_bus(command: Command) -> None:
        master.heard_on_bus(command)
        handler_commands.put("bus", command)

    def joined() -> None:
        if repeater is not None:
            repeater.joined()

    def asked() -> None:
        if repeater is not None:
            repeater.asked()

    def said_by_client(source: str, command: Command) -> None:
        if bus is not None:
            bus.relay.from_client(source, command)
        handler_commands.put(source, command)

    def started_again(stream: Stream, writer: str, position: Token, known: bool) -> None:
        started = coherence.reset if known else coherence.begin
        started(stream.name, writer, position)
        if stream is FEDERATION:
            federation.started_again()
        master.started_again(stream)

    bus: MasterBus | None = None
    if ports.join is not None:
        bus = MasterBus(
            ports.join,
            scheduler,
            config,
            catalogue,
            kept_elsewhere(config, catalogue),
            heard_on_bus,
            joined,
            lambda: master.bus_lost(),
            asked,
            log,
        )
    onward: Movements = publisher if bus is None else BothMovements(publisher, bus.spokesman)
    throughput = Throughput(ports.watched(onward))
    coherence = ports.coherence
    waiters = PositionWaiters(scheduler)
    announcer = Announcer(
        scheduler,
        store,
        catalogue,
        CoherentMovements(coherence, name, WakingMovements(throughput, waiters)),
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
        CoherentSettled(coherence, name, announcer),
        log,
        config.writers_of,
        refusals(config),
    )
    positions = MasterPositions(announcer, writer)
    waiting = WaitFor(catalogue, positions, waiters)
    auditor = auditor_of(
        scheduler, coherence, catalogue, store, positions, waiting, log, in_memory=True
    )
    trimmer = Trimmer(
        scheduler,
        store,
        # Streams in memory are bounded by themselves.
        [stream for stream in catalogue if stream.ephemeral and not stream.in_memory],
        lambda stream: announcer.states[stream.name].linear,
        log,
        every_s=config.retention.every,
        keep_s=config.retention.keep,
        max_s=config.retention.max,
        rows=sizes.trim_rows,
    )
    changes = _changes(ports, coherence, writer, own)
    relay = None
    if changes is not None:
        relay = InvalidationRelay(scheduler, writer, changes.invalidations, log)
    source: Source = store
    if bus is not None:
        source = SomeElsewhere(bus.mirror.streams, bus.mirror.page, store)
    master = Master(
        scheduler,
        catalogue,
        announcer.states,
        publisher,
        source,
        said_by_client,
        log,
        None if relay is None else relay.take,
        slices,
        AllOf([handler_commands] if bus is None else [handler_commands, bus.capacity]),
        name,
        config.federation_sender_instances,
        sizes,
    )
    repeater = None
    trim = trims_store(store, FEDERATION)
    if bus is not None:
        repeater = SyncingRepeater(scheduler, bus.relay, master.user_syncs, BUS)
        if FEDERATION.name in bus.mirror.streams:
            trim = trims_mirror(bus.mirror, FEDERATION)
        bus.spokesman.begin(announcer.states)
        bus.mirror.begin(announcer.states, started_again)
    federation = FederationTrim(scheduler, master.federation_acks, trim, log)
    return MasterServices(
        config=config,
        ports=ports,
        store=store,
        catalogue=catalogue,
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
            Commands(name, master, scheduler.seconds),
            master.user_syncs,
            database,
            changes,
        ),
    )


def worker_coherence(
    config: WorkerConfig, catalogue: Catalogue, caches: Caches, log: Log
) -> Coherence:
    """What keeps the caches of a worker coherent."""
    is_linear = not CLIENT_DIALECTS[config.dialect].per_writer
    return Coherence(
        caches,
        catalogue,
        log,
        None if config.follow == "all" else config.follow,
        # Ours leaves facts out of the linear view whose rows are too long for a line.
        leaves_out=is_linear and not config.master.foreign,
    )


def assemble_worker(
    config: WorkerConfig,
    ports: WorkerPorts,
    catalogue: Catalogue,
    own: Sequence[Stream],
) -> WorkerServices:
    """A worker.

    :param own: the streams that it writes
    """
    scheduler, log, sizes, store = ports.scheduler, ports.log, ports.sizes, ports.store
    name, followed = config.instance_name, None if config.follow == "all" else config.follow
    dialect = CLIENT_DIALECTS[config.dialect]
    is_linear, coherence = not dialect.per_writer, ports.coherence
    waiters = PositionWaiters(scheduler)
    publisher = publisher_of(scheduler, catalogue)
    own_writer = OwnWriter(ports.watched(publisher))
    delivery = Delivery(
        scheduler,
        ports.handlers,
        log,
        config.name_as_follower,
        ports.database,
        waiters,
        coherence,
        backlog=ports.backlog,
        linear=is_linear,
        incarnations=ports.incarnations,
        catalogue=catalogue,
        sizes=sizes,
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
        delivery.command,
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
        Limits(line=config.line_limit, ping_timeout=config.ping_timeout),
    )
    bus: ProcessBus | None = None
    if ports.join is not None:
        bus = worker_bus(
            ports.join,
            config,
            catalogue,
            publisher,
            own_writer,
            commands.link,
            followed,
            commands.outgoing.asked,
            log,
        )
    writer = None
    if store is not None and own:
        settled: Settled = AnnouncedElsewhere() if bus is None else own_writer
        writer = StreamWriter(
            scheduler,
            store,
            name,
            own,
            CoherentSettled(coherence, name, settled),
            log,
            config.writers_of,
            refusals(config),
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
    changes = None if writer is None else _changes(ports, coherence, writer, own)
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
    )
    return services


def _sample_caches(ports: Ports, config: Config, auditor: Auditor) -> None:
    """Have a few entries compared with the database all the time."""
    audits = config.audit_caches
    if audits.every:
        sampling = sample_caches(ports.scheduler, auditor, audits.every, audits.keys)
        ports.scheduler.spawn("audit caches", sampling)


def _changes(
    ports: Ports, coherence: Coherence, writer: StreamWriter, own: Sequence[Stream]
) -> Changes | None:
    """What writes the ``caches`` stream, if this process does."""
    if CACHES not in own:
        return None
    most = ports.sizes.invalidation_keys
    rows = Invalidations(ports.scheduler, coherence.caches, coherence, ports.log, most)
    return Changes(writer, rows)


def _lease(config: WorkerConfig, ports: WorkerPorts, catalogue: Catalogue) -> FollowerLease | None:
    """What has the worker's unacknowledged facts kept; a real Synapse trims as it likes."""
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
