"""The master: owns the listeners, announces what settles, and answers clients."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.logger import Logger

from synrepl import __version__
from synrepl.adapters.caches import cache_registry
from synrepl.adapters.postgres_listen import PostgresListener
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.caches.registry import Caches
from synrepl.core.backlog import AllOf
from synrepl.core.errors import SynreplError
from synrepl.core.slices import Slices
from synrepl.core.tokens import Token
from synrepl.daemon import handlers
from synrepl.daemon.auditing import start_auditor
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config import MasterConfig
from synrepl.daemon.database import DatabaseOfProcess
from synrepl.daemon.database_wait import DatabaseWait
from synrepl.daemon.descriptors import shares
from synrepl.daemon.federation import refusals
from synrepl.daemon.http_api import master_routes
from synrepl.daemon.http_caches import cache_routes
from synrepl.daemon.http_listener import HttpListener
from synrepl.daemon.http_wait import wait_route
from synrepl.daemon.listener_status import connections_status
from synrepl.daemon.memory_sources import SomeElsewhere
from synrepl.daemon.metrics import ProcessMetrics
from synrepl.daemon.own_streams import kept_elsewhere, own_streams
from synrepl.daemon.process_bus import MasterBus
from synrepl.daemon.replication_listener import open_listener
from synrepl.services.announcing.announce import Announcer
from synrepl.services.announcing.publish import Publisher
from synrepl.services.announcing.stream_state import Movements
from synrepl.services.announcing.throughput import Throughput
from synrepl.services.auditing.audit import Auditor
from synrepl.services.bus.both import BothMovements
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.coherence.coherent import CoherentMovements, CoherentSettled
from synrepl.services.coherence.invalidate import Changes, Invalidations
from synrepl.services.coherence.relay_invalidations import InvalidationRelay
from synrepl.services.command_queue import CommandQueue
from synrepl.services.following.failures import HandlerFailures
from synrepl.services.following.source import Source
from synrepl.services.handlers import Access
from synrepl.services.sending.commands import Commands
from synrepl.services.serving.federation_trim import FederationTrim, trims_mirror, trims_store
from synrepl.services.serving.serve import Master
from synrepl.services.serving.updates import Updates
from synrepl.services.standing.bus_status import bus_stands
from synrepl.services.standing.expected_followers import (
    ExpectedFollowers,
    followers_get_on,
)
from synrepl.services.standing.readiness import (
    READY_LAG_S,
    Readiness,
    lag_below,
    name_is_held,
    streams_can_be_seen,
)
from synrepl.services.standing.standing import Watch, master_standings
from synrepl.services.standing.status import Identity, master_status
from synrepl.services.trim import Trimmer
from synrepl.services.waiting.own_positions import MasterPositions
from synrepl.services.waiting.position_waiters import PositionWaiters
from synrepl.services.waiting.wait_for import WaitFor
from synrepl.services.waiting.waking_movements import WakingMovements
from synrepl.services.writing.forget_keys import forget_keys
from synrepl.services.writing.intake import Intake
from synrepl.services.writing.write import StreamWriter
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Stream
from synrepl.streams.rows import RowCodec
from synrepl.streams.synapse.caches import CACHES as CACHES_STREAM
from synrepl.streams.synapse.federation import FEDERATION
from synrepl.wire.commands import Command


class MasterProcess:
    """Everything a master consists of, wired from its configuration."""

    log = Logger()

    def __init__(self, reactor: Any, config: MasterConfig, caches: Caches = cache_registry) -> None:
        self.config = config
        self.catalogue = catalogue(config)
        self.own_streams = own_streams(config, self.catalogue)
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._handlers = handlers.load(config)
        self._shares = shares(config.http, config.listeners)
        self.http = HttpListener(reactor, self._scheduler, config.http, self._shares.http)
        self._wait = DatabaseWait(self._scheduler, self._waiting, self.log)
        self.database = DatabaseOfProcess(reactor, self._scheduler, config, self._wait)
        self.publisher = Publisher(
            self._scheduler, {stream.name: RowCodec(stream) for stream in self.catalogue}
        )
        self.bus: MasterBus | None = None
        movements: Movements = self.publisher
        if config.redis is not None:
            self.bus = MasterBus(
                reactor,
                self._scheduler,
                config,
                self.catalogue,
                kept_elsewhere(config, self.catalogue),
                self._heard_on_bus,
                self._bus_lost,
                self.log,
            )
            movements = BothMovements(self.publisher, self.bus.spokesman)
        self.throughput = Throughput(movements)
        self.coherence = Coherence(caches, self.catalogue, self.log)
        # HTTP requests have a budget of their own, so that they do not wait behind clients.
        self._slices = Slices(self._scheduler)
        self._commands = CommandQueue(
            self._scheduler,
            self._slices,
            {each.name: each.handler for each in self._handlers if each.name is not None},
            HandlerFailures(self._scheduler, self.log),
            self.log,
        )
        self.waiters = PositionWaiters(self._scheduler)
        self.waiting: WaitFor | None = None
        self.announcer: Announcer | None = None
        self.writer: StreamWriter | None = None
        self.master: Master | None = None
        self.trimmer: Trimmer | None = None
        self.auditor: Auditor | None = None
        self._federation: FederationTrim | None = None
        self._relay: InvalidationRelay | None = None
        self._notify: PostgresListener | None = None
        self._ports: list[Any] = []
        self._watch: Watch | None = None
        self._readiness: Readiness | None = None
        self._started_at = self._scheduler.seconds()

    async def start(self) -> None:
        """Start; returns once clients can connect.

        A database that is away, from the beginning or from any step on, is waited for;
        what waiting does not cure is raised.

        :raises SynreplError: the process cannot run like this
        """
        self.coherence.check()
        self._shares.tell(self.log)
        self.http.open()
        await self.database.start_embedded()
        database = await self.database.connect(migrate=True)
        store = await self.database.store(list(self.catalogue), as_master=True)
        announcer = self.announcer = Announcer(
            self._scheduler,
            store,
            self.catalogue,
            CoherentMovements(
                self.coherence,
                self.config.instance_name,
                WakingMovements(self.throughput, self.waiters),
            ),
            self.log,
            self.config.poll_interval,
            self.coherence.reset,
            self._failed_over,
        )
        if self.bus is not None:
            self.bus.spokesman.begin(announcer.states)
        self.writer = StreamWriter(
            self._scheduler,
            store,
            self.config.instance_name,
            self.own_streams,
            CoherentSettled(self.coherence, self.config.instance_name, self.announcer),
            self.log,
            self.config.writers_of,
            refusals(self.config),
        )
        await self._wait.until_done(partial(self._take_name, store, self.writer))
        await self.database.finish_startup()
        await self._wait.until_done(self.announcer.start)
        for name, state in announcer.states.items():
            for writer, position in state.positions.items():
                self.coherence.begin(name, writer, position)
        own = MasterPositions(announcer, self.writer)
        self.waiting = WaitFor(self.catalogue, own, self.waiters)
        self.auditor = start_auditor(
            self._scheduler,
            self.config.audit_caches,
            self.coherence,
            self.catalogue,
            store,
            own,
            self.waiting,
            self.log,
            as_master=True,
        )
        self._scheduler.spawn(
            "forget idempotency keys", forget_keys(self._scheduler, database, self.log)
        )
        retention = self.config.retention
        self.trimmer = Trimmer(
            self._scheduler,
            store,
            # Streams in memory are bounded by themselves.
            [stream for stream in self.catalogue if stream.ephemeral and not stream.in_memory],
            lambda stream: announcer.states[stream.name].linear,
            self.log,
            every_s=retention.every,
            keep_s=retention.keep,
            max_s=retention.max,
        )
        self._scheduler.spawn("trim", self.trimmer.run())
        changes = self._invalidating(self.writer)
        source: Source = store
        if self.bus is not None:
            mirror = self.bus.mirror
            source = SomeElsewhere(mirror.streams, mirror.page, store)
            mirror.begin(announcer.states, self._started_again)
        master = self.master = Master(
            self._scheduler,
            self.catalogue,
            self.announcer.states,
            self.publisher,
            source,
            self._said_by_client,
            self.log,
            None if self._relay is None else self._relay.take,
            self._slices,
            AllOf([self._commands] if self.bus is None else [self._commands, self.bus.capacity]),
            self.config.instance_name,
            self.config.federation_sender_instances,
        )
        self._federation = self._trims_federation(master, store)
        access = Access(
            self.coherence.caches,
            self.waiting.wait_for,
            Commands(self.config.instance_name, master, self._scheduler.seconds),
            master.user_syncs,
            database,
            changes,
        )
        self._commands.hold()  # on_start of one handler may send what another one hears
        for handler in self._handlers:
            await self._wait.until_done(partial(handlers.start, [handler], access))
        self._commands.release()
        self._notify = PostgresListener(
            self._reactor,
            self.database.dsn,
            self.config.instance_name,
            ["synrepl"],
            lambda channel, stream: announcer.wake(stream),
            announcer.wake_all,
        )
        self._notify.start()
        for listener, connections in zip(
            self.config.listeners, self._shares.listeners, strict=True
        ):
            port = open_listener(
                self._reactor,
                self._scheduler,
                self.config,
                listener,
                master,
                connections,
                self._slices,
            )
            self._ports.append(port)
        if self.bus is not None:
            self.bus.start(master.user_syncs)
        self._open_http(store, self._watch_followers(store, announcer, master))
        self.log.info(
            "master {name} of {server} is ready",
            name=self.config.instance_name,
            server=self.config.server_name,
        )

    async def stop(self) -> None:
        """Stop in the reverse order: clients are told, the writer's name is given free."""
        if self._readiness is not None:
            self._readiness.started(False)
        if self._watch is not None:
            self._watch.stop()
        if self._relay is not None:
            await self._relay.stop()
        self._scheduler.stop()
        self.waiters.stop()
        await self.http.close()
        for port in self._ports:
            await port.stopListening()
        if self.master is not None:
            self.master.shut_down()
        if self.bus is not None:
            await self.bus.stop()
        if self.announcer is not None:
            await self.announcer.stop()
        if self._notify is not None:
            await self._notify.stop()
        if self.writer is not None:
            try:
                await self.writer.stop()
            except SynreplError as error:
                self.log.warn("the writer's name was not given back: {error}", error=error)
        await self.database.stop()

    async def _take_name(self, store: FactStore, writer: StreamWriter) -> None:
        """Become the writer, on a server that is confirmed.

        :raises WriterTaken: :raises DatabaseAway:
        """
        number = await store.confirm({})
        self.log.debug("the database's server is incarnation {number}", number=number)
        await writer.start()

    def _failed_over(self, incarnation: int) -> None:
        if self.writer is not None:
            self.writer.failed_over(incarnation)

    def _invalidating(self, writer: StreamWriter) -> Changes | None:
        """What writes the ``caches`` stream, if this process does."""
        if CACHES_STREAM not in self.own_streams:
            return None
        coherence = self.coherence
        rows = Invalidations(self._scheduler, coherence.caches, coherence, self.log)
        self._relay = InvalidationRelay(self._scheduler, writer, rows, self.log)
        return Changes(writer, rows)

    def _waiting(self, reason: str) -> None:
        self.http.waiting = reason

    def _watch_followers(
        self, store: FactStore, announcer: Announcer, master: Master
    ) -> ExpectedFollowers:
        expected = ExpectedFollowers(
            self._scheduler,
            store,
            announcer.states,
            lambda: {connection.name for connection in master.followers},
            self.config.followers.limits,
            self.log,
        )
        self._scheduler.spawn("watch named followers", expected.run())
        return expected

    def _open_http(self, store: FactStore, expected: ExpectedFollowers) -> None:
        """Let the HTTP listener answer for what has started."""
        announcer, writer, master = self.announcer, self.writer, self.master
        if self.http.server is None or announcer is None or writer is None or master is None:
            return
        trimmer, auditor, bus = self.trimmer, self.auditor, self.bus
        federation = self._federation
        assert federation is not None
        assert self.waiting is not None
        assert trimmer is not None
        assert auditor is not None
        config, clock = self.config, self._scheduler.seconds
        identity = Identity(config.server_name, config.instance_name, __version__, self._started_at)
        intake = Intake(self.catalogue, writer)
        watch = self._watch = Watch(
            self._scheduler, lambda: master_standings(announcer.states, writer)
        )
        watch.start()

        def status() -> dict[str, Any]:
            told = master_status(
                identity,
                master,
                announcer,
                writer,
                self.throughput,
                intake,
                watch.look(),
                {**trimmer.streams, FEDERATION.name: federation.trimming},
                self.coherence,
                clock(),
            )
            heard = None if bus is None else bus.status().to_json()
            return {
                **told,
                "bus": heard,
                "named_followers": [report.to_json() for report in expected.reports()],
                "audits": auditor.counts,
                "http": self.http.status(),
                "listeners": [
                    {"port": port.getHost().port, **connections_status(port.factory.connections)}
                    for port in self._ports
                ],
                "handler_commands": {
                    "waiting": self._commands.waiting,
                    "dropped": self._commands.dropped,
                },
            }

        metrics = ProcessMetrics(status, self.http.server.responses)
        checks = [
            streams_can_be_seen(announcer),
            name_is_held(writer),
            lag_below(watch, READY_LAG_S),
        ]
        source: Source = store
        if bus is not None:
            checks.append(bus_stands(bus.status))
            source = SomeElsewhere(bus.mirror.streams, bus.mirror.sure_page, store)
        warnings = [followers_get_on(expected)]
        if config.followers.required:
            checks, warnings = [*checks, *warnings], []
        ready = self._readiness = Readiness(checks, warnings)
        ready.started()
        updates = Updates(self._scheduler, self.catalogue, announcer.states, source, self.log)
        routes = master_routes(intake, updates, ready, status, metrics.render)
        routes += [wait_route(self.waiting), *cache_routes(self.coherence.caches, auditor)]
        self.http.started(routes)

    def _said_by_client(self, source: str, command: Command) -> None:
        if self.bus is not None:
            self.bus.relay.from_client(source, command)
        self._commands.put(source, command)

    def _heard_on_bus(self, command: Command) -> None:
        if self.master is not None:
            self.master.heard_on_bus(command)
        self._commands.put("bus", command)

    def _bus_lost(self) -> None:
        if self.master is not None:
            self.master.bus_lost()

    def _trims_federation(self, master: Master, store: FactStore) -> FederationTrim:
        """Drops what federation senders have acknowledged, wherever the stream is kept."""
        trim = trims_store(store, FEDERATION)
        if self.bus is not None and FEDERATION.name in self.bus.mirror.streams:
            trim = trims_mirror(self.bus.mirror, FEDERATION)
        return FederationTrim(self._scheduler, master.federation_acks, trim, self.log)

    def _started_again(self, stream: Stream, writer: str, position: Token, known: bool) -> None:
        if known:
            self.coherence.reset(stream.name, writer, position)
        else:
            self.coherence.begin(stream.name, writer, position)
        if self._federation is not None and stream is FEDERATION:
            self._federation.started_again()
        if self.master is not None:
            self.master.started_again(stream)
