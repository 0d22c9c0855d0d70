"""The master process: its database, listeners and services, from start to stop."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from twisted.logger import Logger

from synrepl.adapters.caches import cache_registry
from synrepl.adapters.postgres.listen import PostgresListener
from synrepl.caches.registry import Caches
from synrepl.daemon import handlers
from synrepl.daemon.assemble import MasterServices, Ports, assemble_master
from synrepl.daemon.assemble.ports import FORWARDABLE_ERRORS
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.client_api.check import check_client_api
from synrepl.daemon.client_api.listener import (
    ClientApiListener,
    make_forwarder,
    open_client_api,
)
from synrepl.daemon.config.config import MasterConfig
from synrepl.daemon.config.own_streams import own_streams
from synrepl.daemon.config.room_writers import check_room_writers
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
from synrepl.daemon.http.master import serve_master
from synrepl.daemon.process import DaemonProcess
from synrepl.daemon.redis_pubsub import bus_connector
from synrepl.daemon.replication_listener import open_listener
from synrepl.services.coherence.coherence import Coherence
from synrepl.services.forwarding import WriterActions
from synrepl.services.writing.periodic import expire_idempotency_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMaster:
    """A master that has started.

    :ivar http: None without an HTTP listener
    :ivar ports: the ports of the replication listeners, in the order of the configuration
    :ivar clients: the listener for Matrix clients; None without one
    :ivar servers: the listener for other servers; None without one
    """

    services: MasterServices
    database: ProcessDatabase
    http: HttpListener | None
    ports: tuple[Any, ...]
    clients: ClientApiListener | None
    servers: FederationListener | None


class MasterProcess(DaemonProcess[RunningMaster]):
    """Starts and stops a master.

    :param caches: registry of the caches to keep coherent
    """

    log = Logger()

    def __init__(self, reactor: Any, config: MasterConfig, caches: Caches = cache_registry) -> None:
        super().__init__(reactor)
        self.config = config
        self._catalogue = catalogue(config)
        self._own = own_streams(config, self._catalogue)
        check_room_writers(config, self._catalogue)
        self._coherence = Coherence(caches, self._catalogue, self.log)
        check_client_api(config, self._catalogue)
        check_federation(config, self._catalogue)
        self._handlers = handlers.load(config)
        self._actions = WriterActions(FORWARDABLE_ERRORS)
        self._shares = divide_for(config)

    async def begin(self, stops: AsyncExitStack) -> RunningMaster:
        """Start; returns once clients can connect."""
        config, scheduler = self.config, self._scheduler
        self._coherence.check()
        self._shares.warn_if_cut(self.log)
        http = open_configured_http(self._reactor, scheduler, config, self._shares.http, stops)
        wait = DatabaseWait(scheduler, waiting_reporter(http), self.log)
        start = DatabaseStart(self._reactor, scheduler, config, wait, stops)
        database = await start.prepare_for_master(list(self._catalogue))
        services = assemble_master(
            config,
            Ports(
                scheduler=scheduler,
                log=self.log,
                coherence=self._coherence,
                until_done=wait.until_done,
                connect_bus=bus_connector(self._reactor, scheduler, config, self.log),
                handlers=self._handlers,
                actions=self._actions,
                forwarder=make_forwarder(self._reactor, config, self._actions, stops),
                open_session=database.open_session,
                plain=database.plain,
                federation=federation_ports(self._reactor, scheduler, config, self.log, stops),
            ),
            database.store,
            database.database,
            self._catalogue,
            self._own,
        )
        stops.push_async_callback(
            self.close, "the writer's name was not given back", services.writer.stop
        )
        await wait.until_done(services.take_name)
        await start.release_startup()
        stops.push_async_callback(services.stop)
        await services.begin()
        notify = PostgresListener(
            self._reactor,
            database.dsn,
            config.instance_name,
            ["synrepl"],
            lambda channel, stream: services.announcer.wake(stream),
            services.announcer.wake_all,
        )
        notify.start()
        stops.push_async_callback(notify.stop)
        running = RunningMaster(
            services=services,
            database=database,
            http=http,
            ports=tuple(self._listen(services, stops)),
            clients=open_client_api(
                self._reactor,
                scheduler,
                config,
                self._shares.clients,
                services.rooms,
                services.client_data,
                services.reading,
                services.inbound,
                services.joining,
                stops,
            ),
            servers=open_federation(
                self._reactor,
                scheduler,
                config,
                self._shares.federation,
                services.federation_services,
                services.inbound,
                services.rooms,
                self.log,
                stops,
            ),
        )
        await start_federation(scheduler, services.federation_services, services.inbound)
        if services.bus is not None:
            services.bus.start()
        stops.callback(services.waiters.stop)
        stops.callback(scheduler.stop)
        start_partial_rooms(scheduler, services.partial_rooms, stops)
        start_sending(services.sending, stops)
        if services.relay is not None:
            stops.push_async_callback(services.relay.stop)
        expiry = expire_idempotency_keys(scheduler, database.database, self.log)
        scheduler.spawn("forget idempotency keys", expiry)
        scheduler.spawn("watch named followers", services.followers.run())
        if http is not None:
            stops.callback(
                serve_master(
                    services,
                    http,
                    running.ports,
                    self._started_at,
                    lambda: None if running.clients is None else running.clients.status(),
                    federation_status(
                        services.federation_services,
                        services.inbound,
                        services.sending,
                        services.joining,
                        running.servers,
                    ),
                )
            )
        self.log.info(
            "master {name} of {server} is ready",
            name=config.instance_name,
            server=config.server_name,
        )
        return running

    def _listen(self, services: MasterServices, stops: AsyncExitStack) -> list[Any]:
        opened = []
        for listener, connections in zip(
            self.config.listeners, self._shares.listeners, strict=True
        ):
            port = open_listener(
                self._reactor,
                self._scheduler,
                self.config,
                listener,
                services.master,
                connections,
                services.slices,
            )
            stops.push_async_callback(_close, port)
            opened.append(port)
        return opened


async def _close(port: Any) -> None:
    await port.stopListening()
