"""A worker: follows a master and hands facts to the user's handlers."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.logger import Logger

from synrepl import __version__
from synrepl.adapters.caches import cache_registry
from synrepl.adapters.http_client import HttpClient
from synrepl.adapters.http_source import HttpSource
from synrepl.adapters.postgres import Limits as PoolLimits
from synrepl.adapters.postgres import PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp_worker import WorkerFactory
from synrepl.caches.registry import Caches
from synrepl.core.errors import SynreplError
from synrepl.daemon import handlers
from synrepl.daemon.auditing import start_auditor
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config import WorkerConfig
from synrepl.daemon.database import DatabaseOfProcess
from synrepl.daemon.database_wait import DatabaseWait
from synrepl.daemon.descriptors import shares
from synrepl.daemon.federation import refusals
from synrepl.daemon.http_api import append_route, common_routes, memory_routes
from synrepl.daemon.http_caches import cache_routes
from synrepl.daemon.http_listener import HttpListener
from synrepl.daemon.http_wait import wait_route
from synrepl.daemon.memory_sources import SomeElsewhere
from synrepl.daemon.metrics import ProcessMetrics
from synrepl.daemon.own_streams import own_streams
from synrepl.daemon.process_bus import ProcessBus, bus_publisher, worker_bus
from synrepl.daemon.sources import OutOfReach, RoutedSource, handlers_backlog
from synrepl.daemon.worker_commands import WorkerCommands
from synrepl.daemon.worker_tokens import possible_tokens, watch_positions
from synrepl.services.auditing.audit import Auditor
from synrepl.services.bus.own_writer import OwnWriter
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.coherent import CoherentSettled
from synrepl.services.coherence.invalidate import Changes, Invalidations
from synrepl.services.following.deliver import Delivery
from synrepl.services.following.follow import Follower
from synrepl.services.following.leases import FollowerLease
from synrepl.services.following.possible_tokens import none_refused, not_ahead
from synrepl.services.following.source import Source
from synrepl.services.handlers import Access
from synrepl.services.standing.bus_status import bus_stands, check_name
from synrepl.services.standing.database_health import DatabaseHealth, healths
from synrepl.services.standing.readiness import (
    READY_LAG_S,
    Readiness,
    handlers_succeed,
    is_connected,
    lag_below,
    name_is_held,
)
from synrepl.services.standing.standing import Watch, worker_standings
from synrepl.services.standing.status import Identity, worker_status
from synrepl.services.waiting.own_positions import FollowerPositions
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.writing.announced_elsewhere import AnnouncedElsewhere
from synrepl.services.writing.intake import Intake
from synrepl.services.writing.skip_idle import skip_idle
from synrepl.services.writing.write import StreamWriter
from synrepl.storage.foreign.store import ForeignStore
from synrepl.storage.incarnations import Incarnations
from synrepl.storage.store import FactStore
from synrepl.streams.synapse.caches import CACHES as CACHES_STREAM
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.dialects import CLIENT_DIALECTS
from synrepl.wire.session import Limits

#: Seconds between two records of the positions.
RECORD_S = 1.0


class WorkerProcess:
    """Everything a worker consists of, wired from its configuration."""

    log = Logger()

    def __init__(self, reactor: Any, config: WorkerConfig, caches: Caches = cache_registry) -> None:
        self.config = config
        self.catalogue = catalogue(config)
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self.http = HttpListener(reactor, self._scheduler, config.http)
        self.handlers = handlers.load(config)
        self.own_streams = own_streams(config, self.catalogue)
        self._wait = DatabaseWait(self._scheduler, self._waiting, self.log)
        self.database: DatabaseOfProcess | None = None
        if config.has_database:
            self.database = DatabaseOfProcess(reactor, self._scheduler, config, self._wait)
        self.followed = None if config.follow == "all" else config.follow
        # Ours leaves facts out of the linear view whose rows are too long for a line.
        leaves_out = not CLIENT_DIALECTS[config.dialect].per_writer and not config.master.foreign
        self.coherence = Coherence(caches, self.catalogue, self.log, self.followed, leaves_out)
        self.waiters = PositionWaiters(self._scheduler)
        self.waiting: WaitFor | None = None
        self.delivery: Delivery | None = None
        self.follower: Follower | None = None
        self.factory: WorkerFactory | None = None
        self.commands: WorkerCommands | None = None
        self.auditor: Auditor | None = None
        self.writer: StreamWriter | None = None
        self.bus: ProcessBus | None = None
        self._bus_publisher = bus_publisher(self._scheduler, self.catalogue)
        self._own_writer = OwnWriter(self._bus_publisher)
        self._client: HttpClient | None = None
        self._foreign: PostgresDatabase | None = None
        self._databases: list[DatabaseHealth] = []
        self._store: FactStore | None = None
        self._watch: Watch | None = None
        self._readiness: Readiness | None = None
        self._started_at = self._scheduler.seconds()

    async def start(self) -> None:
        """Start following; a master or database that is away is waited for.

        :raises DatabaseRefused: waiting for the database does not help
        :raises SynreplError: the process cannot run like this
        """
        config = self.config
        self.coherence.check()
        shares(config.http).tell(self.log)
        self.http.open()
        database, store, incarnations = None, None, Incarnations()
        if self.database is not None:
            database = await self.database.connect(migrate=False)
            incarnations = self.database.incarnations
            store = await self.database.store(list(self.catalogue), as_master=False)
            self._store = store
            await self._take_lease(store)
            await self._become_writer(store)
        dialect = CLIENT_DIALECTS[config.dialect]
        source = self._source(store)
        self.delivery = Delivery(
            self._scheduler,
            self.handlers,
            self.log,
            config.name_as_follower,
            database,
            self.waiters,
            self.coherence,
            backlog=handlers_backlog(
                self.catalogue,
                source,
                store,
                self._client,
                foreign=config.master.foreign,
                has_foreign_database=self._foreign is not None,
            ),
            linear=not dialect.per_writer,
            incarnations=incarnations,
            catalogue=self.catalogue,
        )
        await self._wait.until_done(self.delivery.start)
        self._databases = healths(self._scheduler, self.log, database, incarnations, self._foreign)
        for health in self._databases:
            await self._wait.until_done(health.ask)
            self._scheduler.spawn("watch a database", health.run())
        self.follower = Follower(
            self._scheduler,
            self.catalogue,
            source,
            self.delivery,
            self.log,
            self.followed,
            earliest=config.starting == "earliest",
            foreign=config.master.foreign,
            wanted=self._wanted(),
            tokens=possible_tokens(
                self._scheduler, config, store, self._foreign, self._client, self.log
            ),
        )
        commands = self.commands = WorkerCommands(
            self._scheduler,
            config,
            self.follower,
            self.delivery.command,
            self._own_writer.states if FEDERATION in self.own_streams else None,
            store,
            self.log,
        )
        self.factory = WorkerFactory(
            self._scheduler,
            commands.link,
            config.instance_name,
            config.server_name,
            dialect,
            self.log.info,
            Limits(line=config.line_limit, ping_timeout=config.ping_timeout),
        )
        own = FollowerPositions(
            self.follower,
            self.delivery,
            self._connected,
            self.followed,
            linear=not dialect.per_writer,
        )
        self.waiting = WaitFor(self.catalogue, own, self.waiters)
        if store is not None and not config.master.foreign:
            self.auditor = start_auditor(
                self._scheduler,
                config.audit_caches,
                self.coherence,
                self.catalogue,
                store,
                own,
                self.waiting,
                self.log,
                as_master=False,
            )
        access = Access(
            self.coherence.caches,
            self.waiting.wait_for,
            commands.commands,
            commands.syncing,
            database,
            self._changes(),
        )
        for handler in self.handlers:
            await self._wait.until_done(partial(handlers.start, [handler], access))
        await self.delivery.tell_losses()
        self._follow(commands)
        self._scheduler.spawn("record positions", self._record())
        watching = watch_positions(
            self._scheduler, self.follower, self.delivery, self.catalogue, incarnations
        )
        self._scheduler.spawn("watch positions", watching)
        self._scheduler.spawn("replay dead letters", self.delivery.dead_letters.run())
        if self.bus is not None and self.writer is not None:
            looking = skip_idle(self._scheduler, self.writer, self.log)
            self._scheduler.spawn("skip idle", looking)
        self._open_http()

    async def stop(self) -> None:
        """Close the connection and put the last positions on record."""
        if self._readiness is not None:
            self._readiness.started(False)
        if self._watch is not None:
            self._watch.stop()
        if self.commands is not None:
            await self.commands.outgoing.stop()
        self._scheduler.stop()
        self.waiters.stop()
        await self.http.close()
        if self.factory is not None:
            self.factory.stop()
        if self.bus is not None:
            await self.bus.stop()
        if self.delivery is not None:
            try:
                await self.delivery.progress.record()
            except SynreplError as error:
                self.log.warn("the last positions are not on record: {error}", error=error)
        if self.writer is not None:
            try:
                await self.writer.stop()
            except SynreplError as error:
                self.log.warn("the writer's name was not given back: {error}", error=error)
        if self._client is not None:
            await self._client.close()
        if self._foreign is not None:
            await self._foreign.close()
        if self.database is not None:
            await self.database.stop()

    def _follow(self, commands: WorkerCommands) -> None:
        """Over Redis, where it is configured, else over TCP: the follower does not know which."""
        config = self.config
        if config.redis is None:
            self._reactor.connectTCP(config.master.host, config.master.port, self.factory)
            return
        self.bus = worker_bus(
            self._reactor,
            self._scheduler,
            config,
            self.catalogue,
            self._bus_publisher,
            self._own_writer,
            commands.link,
            self.followed,
            commands.outgoing.asked,
            self.log,
        )
        self.bus.start()

    def _wanted(self) -> list[str]:
        """The streams that are followed by name, in the configuration or by a handler."""
        names = set(self.followed or ())
        for each in self.handlers:
            names.update(each.handler.streams or ())
        return sorted(names)

    def _connected(self) -> bool:
        if self.bus is not None:
            return self.bus.standing
        return self.factory is not None and self.factory.handshaken

    def _waiting(self, reason: str) -> None:
        self.http.waiting = reason

    async def _become_writer(self, store: FactStore) -> None:
        """Become the writer that the process is named after, if it has streams to write.

        :raises WriterTaken: another live process has the name; :raises WriterRemoved:
        """
        config = self.config
        if not self.own_streams:
            return
        announced = self._own_writer if config.redis is not None else AnnouncedElsewhere()
        writer = self.writer = StreamWriter(
            self._scheduler,
            store,
            config.instance_name,
            self.own_streams,
            CoherentSettled(self.coherence, config.instance_name, announced),
            self.log,
            config.writers_of,
            refusals(config),
        )
        await self._wait.until_done(writer.start)

    def _changes(self) -> Changes | None:
        """What writes the ``caches`` stream, if this process does."""
        if self.writer is None or CACHES_STREAM not in self.own_streams:
            return None
        rows = Invalidations(self._scheduler, self.coherence.caches, self.coherence, self.log)
        return Changes(self.writer, rows)

    async def _take_lease(self, store: FactStore) -> None:
        """Have what this worker has not acknowledged kept, before it looks where it was."""
        config = self.config
        if config.master.foreign:
            return  # which trims as it likes
        streams = [stream.name for stream in self.catalogue]
        lease = FollowerLease(
            self._scheduler,
            store,
            config.name_as_follower,
            streams if config.follow == "all" else config.follow,
            config.lease,
            self.log,
        )
        await self._wait.until_done(lease.start)

    def _foreign_source(self, from_master: Source) -> Source:
        """A real Synapse's database; in the legacy dialect it is the master that fills gaps."""
        dsn = self.config.master.database
        if dsn is None:
            return from_master
        limits = PoolLimits(connections=2)
        name = self.config.instance_name
        self._foreign = PostgresDatabase(self._reactor, dsn.reveal(), name, limits)
        return RoutedSource(ForeignStore(self._foreign), from_master)

    def _source(self, store: FactStore | None) -> Source:
        """Where gaps are filled from; those of what is kept in this process, from here."""
        others = self._source_of_others(store)
        kept = [stream.name for stream in self.own_streams if stream.in_memory]
        if store is None or not kept:
            return others
        return SomeElsewhere(kept, store.page, others)

    def _source_of_others(self, store: FactStore | None) -> Source:
        """Others' facts of streams in memory can only be had of the master."""
        config = self.config
        from_master: Source = OutOfReach()
        if config.master.http_url is not None:
            secret = None if config.master.secret is None else config.master.secret.reveal()
            self._client = HttpClient(self._reactor, config.master.http_url, secret)
            from_master = HttpSource(self._client)
        if config.catch_up == "http":
            return from_master
        if config.master.foreign:
            return self._foreign_source(from_master)
        assert store is not None
        return RoutedSource(store, from_master)

    def _open_http(self) -> None:
        """Let the HTTP listener answer for what has started."""
        follower, delivery, commands = self.follower, self.delivery, self.commands
        if self.http.server is None or follower is None or delivery is None or commands is None:
            return
        config, clock = self.config, self._scheduler.seconds
        identity = Identity(config.server_name, config.instance_name, __version__, self._started_at)
        watch = self._watch = Watch(
            self._scheduler, lambda: worker_standings(follower.positions, follower.heard)
        )
        watch.start()

        writer, bus = self.writer, self.bus

        def status() -> dict[str, Any]:
            connected = self._connected()
            told = worker_status(
                identity, follower, delivery, connected, watch.look(), self.coherence, clock()
            )
            told["bus"] = None if bus is None else bus.status().to_json()
            told["http"] = self.http.status()
            told |= commands.status()
            if writer is not None:
                told["writer"] = {"name": writer.writer, "open": writer.open}
            return told if self.auditor is None else {**told, "audits": self.auditor.counts}

        metrics = ProcessMetrics(status, self.http.server.responses)
        checks = [
            *(each.check for each in self._databases),
            lag_below(watch, READY_LAG_S),
            handlers_succeed(delivery.failures),
            not_ahead(follower.tokens),
        ]
        if bus is None:
            where = f"{config.master.host}:{config.master.port}"
            checks.append(is_connected(self._connected, where))
        else:
            checks.append(bus_stands(bus.status))
        if writer is not None:
            checks.append(name_is_held(writer))
        ready = self._readiness = Readiness(checks, [none_refused(follower.tokens, clock)])
        ready.started()
        assert self.waiting is not None
        routes = common_routes(ready, status, metrics.render)
        if writer is not None:
            check = (lambda: None) if bus is None else partial(check_name, bus.status)
            routes.append(append_route(Intake(self.catalogue, writer, check)))
        if self._store is not None:
            own = (self.own_streams, self._own_writer.states, self._store)
            routes += memory_routes(self._scheduler, *own, self.log)
        routes += [wait_route(self.waiting), *cache_routes(self.coherence.caches, self.auditor)]
        self.http.started(routes)

    async def _record(self) -> None:
        assert self.delivery is not None
        while True:
            await self._scheduler.sleep(RECORD_S)
            try:
                await self.delivery.progress.record()
            except SynreplError as error:
                self.log.warn("cannot record positions: {error}", error=error)
