"""The product's own services for the simulator, assembled as in the daemons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from simulator.clock import Process
from simulator.interfaces import (
    LINE_LIMIT,
    QUEUED_LINES,
    FollowerKind,
    HandlerCallbacks,
    HandlerKind,
    InvalidationOutbox,
    Key,
    ProcessEnvironment,
    WrapListener,
)
from synrepl.adapters.caches import make_caches
from synrepl.adapters.tcp.connection_table import ConnectionLimits
from synrepl.adapters.tcp.worker import WorkerFactory
from synrepl.caches.registry import Caches
from synrepl.core.tokens import Range, Token
from synrepl.daemon.assemble import (
    Ports,
    WorkerPorts,
    assemble_master,
    assemble_worker,
    worker_coherence,
)
from synrepl.daemon.config.config import (
    AuditCachesConfig,
    ListenerConfig,
    MasterAddress,
    MasterConfig,
    RetentionConfig,
    WorkerConfig,
)
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.config.secret import Secret
from synrepl.daemon.process_bus import ConnectToBus
from synrepl.daemon.replication_listener import listener_factory
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.invalidations import Changes
from synrepl.services.following.consumer import StartAt, Subscription
from synrepl.services.following.possible_tokens import PossibleTokens
from synrepl.services.handlers import Batch, Handler, TransactionalHandler
from synrepl.services.membership import Membership
from synrepl.services.sizes import Sizes
from synrepl.services.sources import (
    LINEAR,
    CatchUpSources,
    StorePositions,
    fetchable_in_order,
)
from synrepl.services.writing.reservation import Reservation
from synrepl.services.writing.stream_writer import StreamWriter
from synrepl.storage.database import Database, Transaction
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import AppendResult
from synrepl.streams.definition import Stream
from synrepl.streams.row import Row

T = TypeVar("T")

SERVER_NAME = "simulated.example"
MASTER = "master"

#: Never used, because the store is a port.
_DSN = Secret("dbname=simulated", "dbname=simulated")

#: Larger intervals than the defaults: polls of a blocked stream are many, and all alike.
_ORDINARY = Sizes(recheck_s=0.1, slow_recheck_s=0.5)

#: Sizes of pages and buffers that a few facts fill.
_SMALL = replace(
    _ORDINARY,
    page_rows=3,
    pages_at_a_time=1,
    turn_units=15,
    high_water_rows=6,
    low_water_rows=2,
    held_rows=4,
    invalidation_keys=2,
    trim_rows=2,
)

#: No trimming in runs without an application, since only caches show what was trimmed.
_NEVER_S = 1e9


class Product:
    """Makes the product's services (see ``simulator.interfaces.ServiceFactory``)."""

    def master(
        self, environment: ProcessEnvironment, wrap_listener: WrapListener
    ) -> SimulatedMaster:
        """A master, whose announcements go through ``wrap_listener``."""
        return SimulatedMaster(environment, wrap_listener)

    def writer(
        self, environment: ProcessEnvironment, name: str, wrap_listener: WrapListener
    ) -> SimulatedWriterProcess:
        """A process that only writes."""
        return SimulatedWriterProcess(environment, name, wrap_listener)

    def follower(
        self,
        environment: ProcessEnvironment,
        name: str,
        kind: FollowerKind,
        handlers: Sequence[tuple[HandlerKind, HandlerCallbacks]],
        wrap_listener: WrapListener,
    ) -> SimulatedFollower:
        """A follower of all streams."""
        return SimulatedFollower(environment, name, kind, handlers, wrap_listener)

    def membership(self, process: Process, database: Database) -> Membership:
        """An operator at the database."""
        return Membership(process, database)


class SimulatedMaster:
    """A master on the simulator's ports."""

    def __init__(self, environment: ProcessEnvironment, wrap_listener: WrapListener) -> None:
        retention = environment.retention
        listener = ListenerConfig(port=0, line_limit=LINE_LIMIT)
        config = MasterConfig(
            server_name=SERVER_NAME,
            instance_name=MASTER,
            database=_DSN,
            listeners=(listener,),
            live_queue_commands=QUEUED_LINES,
            redis=_redis(environment),
            audit_caches=AuditCachesConfig(every=0.0),
            retention=RetentionConfig(
                every=_NEVER_S if environment.application is None else retention.every_s,
                keep=retention.keep_s,
                max=retention.max_s,
            ),
        )
        coherence = Coherence(_caches(environment), environment.catalogue, environment.log)
        coherence.check()
        ports = Ports(
            scheduler=environment.process,
            log=environment.log,
            coherence=coherence,
            until_done=_AtOnce(),
            connect_bus=_connect_bus(environment),
            watched=wrap_listener,
            sizes=_sizes(environment),
        )
        streams = list(environment.catalogue)
        services = assemble_master(
            config, ports, environment.store, environment.database, environment.catalogue, streams
        )
        self._services = services
        self.writer = SimulatedWriter(services.writer, services.changes)
        self.listener = listener_factory(
            environment.process,
            config,
            listener,
            services.master,
            ConnectionLimits(),
            services.slices,
        )

    async def start(self) -> None:
        """Start; returns once connections can be accepted."""
        await self._services.take_name()
        await self._services.begin()
        if self._services.bus is not None:
            self._services.bus.start()

    def wake(self, stream: str) -> None:
        """A NOTIFY has arrived."""
        self._services.announcer.wake(stream)

    def positions(self) -> Mapping[Key, Token]:
        """The positions of every stream and writer."""
        found: dict[Key, Token] = {}
        for name, state in self._services.announcer.states.items():
            found[name, LINEAR] = state.linear
            for writer, position in state.positions.items():
                found[name, writer] = position
        return found

    async def stop(self) -> None:
        """Stop gracefully."""
        await self._services.stop()
        await self._services.writer.stop()


class SimulatedFollower:
    """A worker on the simulator's ports.

    :ivar client_factory: connects to the master; None over Redis
    :ivar writer: None for a worker that does not write
    """

    def __init__(
        self,
        environment: ProcessEnvironment,
        name: str,
        kind: FollowerKind,
        handlers: Sequence[tuple[HandlerKind, HandlerCallbacks]],
        wrap_listener: WrapListener,
    ) -> None:
        config = replace(
            _worker_config(environment, name),
            dialect="legacy" if kind.legacy else "modern",
            starting="earliest" if kind.earliest else "now",
        )
        coherence = worker_coherence(
            config, environment.catalogue, _caches(environment), environment.log
        )
        coherence.check()
        services = self._services = assemble_worker(
            config,
            _worker_ports(
                environment,
                coherence,
                wrap_listener,
                [_subscription(kind, each, callbacks) for each, callbacks in handlers],
                has_database=kind.named,
                has_store=kind.named or kind.writes,
            ),
            environment.catalogue,
            list(environment.catalogue) if kind.writes else [],
        )
        self.writer: SimulatedWriter | None = None
        if services.writer is not None:
            self.writer = SimulatedWriter(services.writer, services.changes)
        self.client_factory: WorkerFactory | None = None
        if services.bus is None:
            self.client_factory = services.factory
            self.client_factory.clock = environment.process  # type: ignore[assignment]  # callLater is all it needs
            self.client_factory.jitter = None  # type: ignore[assignment]  # only the seed decides

    async def start(self) -> None:
        """Take the lease and the name, read recorded positions, and follow."""
        await self._services.take_names()
        await self._services.begin()
        self._services.follow()

    def positions(self) -> Mapping[Key, Token]:
        """Its positions."""
        return self._services.follower.positions

    async def wait_for(
        self, stream: str, writer: str | None, token: Token, timeout_s: float
    ) -> None:
        """Wait until it has reached the position."""
        await self._services.waiting.wait_for(stream, writer, token, timeout_s)


class SimulatedWriter:
    """The writer of a process."""

    def __init__(self, writer: StreamWriter, changes: Changes | None) -> None:
        self._writer = writer
        self._changes = changes

    async def start(self) -> None:
        """Take the name."""
        await self._writer.start()

    async def append(
        self, stream: Stream, facts: Sequence[Sequence[Row]], key: str | None
    ) -> AppendResult:
        """Append facts."""
        return await self._writer.append(stream, facts, key)

    async def change(
        self,
        name: str,
        work: Callable[[Transaction, InvalidationOutbox], T],
        streams: Sequence[Stream],
    ) -> T:
        """Run a transaction that invalidates caches."""
        assert self._changes is not None
        return (await self._changes.run(name, work, streams)).result

    async def reserve(self, stream: Stream, count: int) -> Reservation:
        """Reserve tokens."""
        return await self._writer.reserve(stream, count)

    def positions(self) -> Mapping[Key, Token]:
        """Its own positions."""
        writer = self._writer
        return {(s.name, writer.writer): writer.ledger(s.name).position for s in writer.streams}

    async def stop(self) -> None:
        """Give the name back."""
        await self._writer.stop()


class SimulatedWriterProcess(SimulatedWriter):
    """A worker that only writes."""

    def __init__(
        self, environment: ProcessEnvironment, name: str, wrap_listener: WrapListener
    ) -> None:
        coherence = Coherence(_caches(environment), environment.catalogue, environment.log)
        coherence.check()
        services = self._services = assemble_worker(
            replace(_worker_config(environment, name), follow=()),
            _worker_ports(
                environment, coherence, wrap_listener, (), has_database=False, has_store=True
            ),
            environment.catalogue,
            list(environment.catalogue),
        )
        assert services.writer is not None
        super().__init__(services.writer, services.changes)

    async def start(self) -> None:
        """Take the name, then join the bus."""
        await self._services.take_names()
        self._services.follow()

    async def stop(self) -> None:
        """Leave the bus, and release the writer name."""
        if self._services.bus is not None:
            await self._services.bus.stop()
        await super().stop()


class _AtOnce:
    """Runs the steps of a start once, because a process whose database is unreachable is restarted."""

    def __call__(self, step: Callable[[], Any]) -> Any:
        return step()


def _worker_config(environment: ProcessEnvironment, name: str) -> WorkerConfig:
    return WorkerConfig(
        server_name=SERVER_NAME,
        instance_name=name,
        database=_DSN,
        master=MasterAddress(port=1),
        redis=_redis(environment),
        lease=environment.retention.lease_s,
        line_limit=LINE_LIMIT,
        audit_caches=AuditCachesConfig(every=0.0),
    )


def _worker_ports(
    environment: ProcessEnvironment,
    coherence: Coherence,
    wrap_listener: WrapListener,
    handlers: Sequence[Subscription],
    *,
    has_database: bool,
    has_store: bool,
) -> WorkerPorts:
    process, store = environment.process, environment.store
    order = fetchable_in_order(environment.catalogue, foreign=False)
    ports = WorkerPorts(
        scheduler=process,
        log=environment.log,
        coherence=coherence,
        until_done=_AtOnce(),
        connect_bus=_connect_bus(environment),
        handlers=handlers,
        sizes=_sizes(environment),
        store=store if has_store else None,
        database=environment.database if has_database else None,
        incarnations=Incarnations(),
        source=store,
        catch_up_sources=CatchUpSources(order, store, StorePositions(store)),
        tokens=PossibleTokens(process, store, environment.log),
    )
    # Over TCP the master announces what a worker writes.
    return ports if environment.bus is None else replace(ports, watched=wrap_listener)


def _caches(environment: ProcessEnvironment) -> Caches:
    return make_caches() if environment.application is None else environment.application.caches


def _sizes(environment: ProcessEnvironment) -> Sizes:
    return _SMALL if environment.small else _ORDINARY


def _redis(environment: ProcessEnvironment) -> RedisConfig | None:
    return (
        None
        if environment.bus is None
        else RedisConfig(channel_per_stream=environment.bus.per_stream)
    )


def _connect_bus(environment: ProcessEnvironment) -> ConnectToBus | None:
    return None if environment.bus is None else environment.bus.join


def _subscription(
    kind: FollowerKind, handler: HandlerKind, callbacks: HandlerCallbacks
) -> Subscription:
    """A handler with its view and its starting position."""
    view = None
    if handler.other_view:
        view = "per_writer" if kind.legacy else "linear"
    base: Any = _ExactlyOnce if handler.exactly_once else _AtLeastOnce
    made = type(base.__name__, (base,), {"view": view})(callbacks)
    earliest = handler.late or kind.earliest
    return Subscription(made, handler.name, StartAt.EARLIEST if earliest else StartAt.NOW)


class _AtLeastOnce(Handler):
    """A plain handler, which passes batches on."""

    def __init__(self, callbacks: HandlerCallbacks) -> None:
        self._callbacks = callbacks

    async def on_rows(self, batch: Batch) -> None:
        """Pass on."""
        await self._callbacks.handle(
            batch.stream, batch.writer, batch.after, batch.upto, batch.facts
        )

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Pass on."""
        self._callbacks.reset(stream, writer, position, lost)


class _ExactlyOnce(TransactionalHandler):
    """A transactional handler, which passes batches on."""

    def __init__(self, callbacks: HandlerCallbacks) -> None:
        self._callbacks = callbacks

    def apply(self, txn: Transaction, batch: Batch) -> None:
        """Pass on."""
        self._callbacks.apply(txn, batch.stream, batch.writer, batch.after, batch.upto, batch.facts)

    async def on_reset(
        self, stream: str, writer: str, position: Token, lost: Range | None = None
    ) -> None:
        """Pass on."""
        self._callbacks.reset(stream, writer, position, lost)
