"""The worker process: its database, connections and services, from start to stop."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from synrepl.adapters.caches import cache_registry
from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.caches.registry import Caches
from synrepl.daemon import handlers
from synrepl.daemon.assemble import WorkerPorts, WorkerServices, assemble_worker, worker_coherence
from synrepl.daemon.assemble.ports import FORWARDABLE_ERRORS
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.client_api.check import check_client_api
from synrepl.daemon.client_api.listener import (
    ClientApiListener,
    make_forwarder,
    open_client_api,
)
from synrepl.daemon.config.config import WorkerConfig
from synrepl.daemon.config.own_streams import own_streams
from synrepl.daemon.config.room_writers import check_room_writers
from synrepl.daemon.config.senders import check_sender
from synrepl.daemon.database import DatabaseStart, ProcessDatabase
from synrepl.daemon.database_wait import DatabaseWait
from synrepl.daemon.descriptors import divide_for
from synrepl.daemon.federation.check import check_federation
from synrepl.daemon.federation.listener import (
    FederationListener,
    open_federation,
    start_federation,
    start_partial_rooms,
    start_sending,
)
from synrepl.daemon.federation.ports import federation_ports
from synrepl.daemon.federation.status import federation_status
from synrepl.daemon.http.listener import HttpListener, open_configured_http, waiting_reporter
from synrepl.daemon.http.worker import serve_worker
from synrepl.daemon.process import DaemonProcess
from synrepl.daemon.redis_pubsub import bus_connector
from synrepl.daemon.sources import handler_sources, source_of
from synrepl.daemon.worker_tokens import possible_tokens, watch_positions
from synrepl.services.forwarding import WriterActions
from synrepl.services.status.database_health import database_healths
from synrepl.storage.incarnations import Incarnations


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningWorker:
    """A worker that has started.

    :ivar http: None without an HTTP listener
    :ivar clients: the listener for Matrix clients; None without one
    :ivar servers: the listener for other servers; None without one
    """

    services: WorkerServices
    http: HttpListener | None
    clients: ClientApiListener | None
    servers: FederationListener | None


class WorkerProcess(DaemonProcess[RunningWorker]):
    """Starts and stops a worker.

    :param caches: registry of the caches to keep coherent
    """

    log = Logger()

    def __init__(self, reactor: Any, config: WorkerConfig, caches: Caches = cache_registry) -> None:
        super().__init__(reactor)
        self.config = config
        self._catalogue = catalogue(config)
        self._own = own_streams(config, self._catalogue)
        check_room_writers(config, self._catalogue)
        check_client_api(config, self._catalogue)
        check_federation(config, self._catalogue)
        check_sender(config, self._catalogue)
        self._actions = WriterActions(FORWARDABLE_ERRORS)
        self._handlers = handlers.load(config)
        self._coherence = worker_coherence(config, self._catalogue, caches, self.log)

    async def begin(self, stops: AsyncExitStack) -> RunningWorker:
        """Start to follow, even while the master is away."""
        config, scheduler = self.config, self._scheduler
        self._coherence.check()
        limits = divide_for(config)
        limits.warn_if_cut(self.log)
        http = open_configured_http(self._reactor, scheduler, config, limits.http, stops)
        wait = DatabaseWait(scheduler, waiting_reporter(http), self.log)
        own: ProcessDatabase | None = None
        if config.has_database:
            own = await DatabaseStart(
                self._reactor, scheduler, config, wait, stops
            ).wait_for_master()
        incarnations = Incarnations() if own is None else own.incarnations
        foreign = self._foreign_database(stops)
        databases = database_healths(
            scheduler, self.log, None if own is None else own.database, incarnations, foreign
        )
        services = assemble_worker(
            config, self._ports(wait, own, foreign, stops), self._catalogue, self._own
        )
        if services.writer is not None:
            stops.push_async_callback(
                self.close, "the writer's name was not given back", services.writer.stop
            )
        await services.take_names()
        for health in databases:
            await wait.until_done(health.probe)
            scheduler.spawn("watch a database", health.run())
        await services.begin()
        stops.push_async_callback(
            self.close, "the last positions are not on record", services.delivery.progress.record
        )
        services.follow()
        if services.bus is None:
            master = config.master
            self._reactor.connectTCP(master.host, master.port, services.factory)
            stops.callback(services.factory.stop)
        else:
            stops.push_async_callback(services.bus.stop)
        watching = watch_positions(
            scheduler, services.follower, services.delivery, self._catalogue, incarnations
        )
        scheduler.spawn("watch positions", watching)
        stops.callback(services.waiters.stop)
        stops.callback(scheduler.stop)
        stops.push_async_callback(services.commands.outgoing.stop)
        clients = open_client_api(
            self._reactor,
            scheduler,
            config,
            limits.clients,
            services.rooms,
            services.client_data,
            services.reading,
            services.inbound,
            services.joining,
            stops,
        )
        servers = open_federation(
            self._reactor,
            scheduler,
            config,
            limits.federation,
            services.federation_services,
            services.inbound,
            services.rooms,
            self.log,
            stops,
        )
        await start_federation(scheduler, services.federation_services, services.inbound)
        start_partial_rooms(scheduler, services.partial_rooms, stops)
        start_sending(services.sending, stops)
        if http is not None:
            store = None if own is None else own.store
            stops.callback(
                serve_worker(
                    services,
                    store,
                    http,
                    databases,
                    self._started_at,
                    lambda: None if clients is None else clients.status(),
                    federation_status(
                        services.federation_services,
                        services.inbound,
                        services.sending,
                        services.joining,
                        servers,
                    ),
                )
            )
        return RunningWorker(services=services, http=http, clients=clients, servers=servers)

    def _ports(
        self,
        wait: DatabaseWait,
        own: ProcessDatabase | None,
        foreign: PostgresDatabase | None,
        stops: AsyncExitStack,
    ) -> WorkerPorts:
        config, scheduler = self.config, self._scheduler
        store = None if own is None else own.store
        client = self._client(stops)
        source = source_of(config, self._own, store, foreign, client)
        return WorkerPorts(
            scheduler=scheduler,
            log=self.log,
            coherence=self._coherence,
            until_done=wait.until_done,
            connect_bus=bus_connector(self._reactor, scheduler, config, self.log),
            handlers=self._handlers,
            store=store,
            database=None if own is None else own.database,
            incarnations=Incarnations() if own is None else own.incarnations,
            source=source,
            catch_up_sources=handler_sources(
                self._catalogue,
                source,
                store,
                client,
                foreign=config.master.foreign,
                has_foreign_database=foreign is not None,
            ),
            actions=self._actions,
            forwarder=make_forwarder(self._reactor, config, self._actions, stops),
            open_session=None if own is None else own.open_session,
            plain=None if own is None else own.plain,
            federation=federation_ports(self._reactor, scheduler, config, self.log, stops),
            tokens=possible_tokens(scheduler, config, store, foreign, client, self.log),
        )

    def _client(self, stops: AsyncExitStack) -> HttpClient | None:
        """The client of the master's HTTP listener; None without ``http_url``."""
        master = self.config.master
        if master.http_url is None:
            return None
        secret = None if master.secret is None else master.secret.reveal()
        client = HttpClient(self._reactor, master.http_url, secret)
        stops.push_async_callback(client.close)
        return client

    def _foreign_database(self, stops: AsyncExitStack) -> PostgresDatabase | None:
        """The database of a real Synapse, from which missed facts are read."""
        config = self.config
        dsn = config.master.database
        if dsn is None or config.catch_up == "http":
            return None
        limits = DatabaseLimits(connections=2)
        database = PostgresDatabase(self._reactor, dsn.reveal(), config.instance_name, limits)
        stops.push_async_callback(database.close)
        return database
