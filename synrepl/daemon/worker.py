"""A worker: follows a master and hands facts to the user's handlers."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

from synrepl import __version__
from synrepl.adapters.http_client import HttpClient
from synrepl.adapters.http_source import HttpSource
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp_worker import WorkerFactory
from synrepl.core.errors import ConfigError, SynreplError
from synrepl.daemon import handlers
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config import WorkerConfig
from synrepl.daemon.database import DatabaseOfProcess
from synrepl.daemon.http_api import common_routes
from synrepl.daemon.http_listener import HttpListener
from synrepl.daemon.metrics import ProcessMetrics
from synrepl.daemon.sources import OutOfReach, RoutedSource
from synrepl.services.deliver import Delivery
from synrepl.services.follow import Follower
from synrepl.services.handlers import TransactionalHandler
from synrepl.services.lane import Source
from synrepl.services.readiness import READY_LAG_S, Readiness, is_connected, lag_below
from synrepl.services.standing import Watch, worker_standings
from synrepl.services.status import Identity, worker_status
from synrepl.wire.dialects import DIALECTS
from synrepl.wire.session import Limits

#: Seconds between two records of the positions.
RECORD_S = 1.0


class NeedsDatabase(ConfigError):
    """handlers: {handler} is transactional, and works in the database; configure 'database'"""


class WorkerProcess:
    """Everything a worker consists of, wired from its configuration."""

    log = Logger()

    def __init__(self, reactor: Any, config: WorkerConfig) -> None:
        self.config = config
        self.catalogue = catalogue(config)
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self.http = HttpListener(reactor, self._scheduler, config.http)
        self.handlers = handlers.load(config.handlers)
        self.database: DatabaseOfProcess | None = None
        if config.uses_embedded or config.dsn is not None:
            self.database = DatabaseOfProcess(reactor, self._scheduler, config, self._waiting)
        else:
            for handler in self.handlers:
                if isinstance(handler, TransactionalHandler):
                    raise NeedsDatabase(handler=type(handler).__name__)
        self.delivery: Delivery | None = None
        self.follower: Follower | None = None
        self.factory: WorkerFactory | None = None
        self._client: HttpClient | None = None
        self._watch: Watch | None = None
        self._readiness: Readiness | None = None
        self._started_at = self._scheduler.seconds()

    async def start(self) -> None:
        """Start following; a master that is away is waited for.

        :raises SynreplError: the process cannot run like this
        """
        config = self.config
        self.http.open()
        database = None
        if self.database is not None:
            database = await self.database.connect(migrate=False)
        self.delivery = Delivery(
            self._scheduler, self.handlers, self.log, config.name_as_follower, database
        )
        await self.delivery.start()
        self.follower = Follower(
            self._scheduler,
            self.catalogue,
            await self._source(),
            self.delivery,
            self.log,
            None if config.follow == "all" else config.follow,
            earliest=config.starting == "earliest",
            foreign=config.master.foreign,
        )
        self.factory = WorkerFactory(
            self._scheduler,
            self.follower,
            config.instance_name,
            config.server_name,
            DIALECTS[config.dialect],
            self.log.info,
            Limits(line=config.line_limit, ping_timeout=config.ping_timeout),
        )
        self._reactor.connectTCP(config.master.host, config.master.port, self.factory)
        self._scheduler.spawn("record positions", self._record())
        self._open_http()

    async def stop(self) -> None:
        """Close the connection and put the last positions on record."""
        if self._readiness is not None:
            self._readiness.started(False)
        if self._watch is not None:
            self._watch.stop()
        self._scheduler.stop()
        await self.http.close()
        if self.factory is not None:
            self.factory.stop()
        if self.delivery is not None:
            try:
                await self.delivery.record()
            except SynreplError as error:
                self.log.warn("the last positions are not on record: {error}", error=error)
        if self._client is not None:
            await self._client.close()
        if self.database is not None:
            await self.database.stop()

    def _waiting(self, reason: str) -> None:
        self.http.waiting = reason

    async def _source(self) -> Source:
        """Where gaps are filled from; those of streams in memory can only be had of the master."""
        config = self.config
        from_master: Source = OutOfReach()
        if config.master.http_url is not None:
            secret = None if config.master.secret is None else config.master.secret.reveal()
            self._client = HttpClient(self._reactor, config.master.http_url, secret)
            from_master = HttpSource(self._client)
        if config.catch_up == "http":
            return from_master
        assert self.database is not None
        tables = await self.database.store(list(self.catalogue), as_master=False)
        return RoutedSource(tables, from_master)

    def _open_http(self) -> None:
        """Let the HTTP listener answer for what has started."""
        follower, delivery, factory = self.follower, self.delivery, self.factory
        if self.http.server is None or follower is None or delivery is None or factory is None:
            return
        config, clock = self.config, self._scheduler.seconds
        identity = Identity(config.server_name, config.instance_name, __version__, self._started_at)
        watch = self._watch = Watch(
            self._scheduler, lambda: worker_standings(follower.positions, follower.heard)
        )
        watch.start()

        def status() -> dict[str, Any]:
            connected = factory.handshaken
            return worker_status(identity, follower, delivery, connected, watch.look(), clock())

        metrics = ProcessMetrics(status, self.http.server.responses)
        where = f"{config.master.host}:{config.master.port}"
        ready = self._readiness = Readiness(
            [is_connected(lambda: factory.handshaken, where), lag_below(watch, READY_LAG_S)]
        )
        ready.started()
        self.http.started(common_routes(ready, status, metrics.render))

    async def _record(self) -> None:
        assert self.delivery is not None
        while True:
            await self._scheduler.sleep(RECORD_S)
            try:
                await self.delivery.record()
            except SynreplError as error:
                self.log.warn("cannot record positions: {error}", error=error)
