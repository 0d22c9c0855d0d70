"""The master: owns the listeners, announces what settles, and answers clients."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

from synrepl import __version__
from synrepl.adapters.postgres_listen import PostgresListener
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.adapters.tcp_master import MasterFactory
from synrepl.core.errors import SynreplError
from synrepl.daemon import handlers
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config import Listener, MasterConfig
from synrepl.daemon.database import DatabaseOfProcess
from synrepl.daemon.http_api import master_routes
from synrepl.daemon.http_listener import HttpListener, listen
from synrepl.daemon.metrics import ProcessMetrics
from synrepl.services.announce import Announcer
from synrepl.services.forget_keys import forget_keys
from synrepl.services.intake import Intake
from synrepl.services.publish import Publisher
from synrepl.services.readiness import (
    READY_LAG_S,
    Readiness,
    lag_below,
    name_is_held,
    streams_can_be_seen,
)
from synrepl.services.serve import Master
from synrepl.services.standing import Watch, master_standings
from synrepl.services.status import Identity, master_status
from synrepl.services.throughput import Throughput
from synrepl.services.updates import Updates
from synrepl.services.write import StreamWriter
from synrepl.storage.store import FactStore
from synrepl.streams.definition import Generation, Stream
from synrepl.streams.rows import RowCodec
from synrepl.wire.commands import Command
from synrepl.wire.dialects import DIALECTS
from synrepl.wire.session import Limits


class MasterProcess:
    """Everything a master consists of, wired from its configuration."""

    log = Logger()

    def __init__(self, reactor: Any, config: MasterConfig) -> None:
        self.config = config
        self.catalogue = catalogue(config)
        self._reactor = reactor
        self._scheduler = TwistedScheduler(reactor)
        self._handlers = handlers.load(config.handlers)
        self.http = HttpListener(reactor, self._scheduler, config.http)
        self.database = DatabaseOfProcess(reactor, self._scheduler, config, self._waiting)
        self.publisher = Publisher(
            self._scheduler, {stream.name: RowCodec(stream) for stream in self.catalogue}
        )
        self.throughput = Throughput(self.publisher)
        self.announcer: Announcer | None = None
        self.writer: StreamWriter | None = None
        self.master: Master | None = None
        self._notify: PostgresListener | None = None
        self._ports: list[Any] = []
        self._watch: Watch | None = None
        self._readiness: Readiness | None = None
        self._started_at = self._scheduler.seconds()

    @property
    def own_streams(self) -> list[Stream]:
        """The streams that this process writes."""
        name = self.config.instance_name
        writers_of = self.config.writers_of
        return [stream for stream in self.catalogue if name in writers_of(stream.name)]

    async def start(self) -> None:
        """Start; returns once clients can connect.

        A database that is away is waited for; what cannot mend itself is raised.

        :raises SynreplError: the process cannot run like this
        """
        self.http.open()
        await self.database.start_embedded()
        database = await self.database.connect(migrate=True)
        store = await self.database.store(list(self.catalogue), as_master=True)
        announcer = self.announcer = Announcer(
            self._scheduler,
            store,
            self.catalogue,
            self.throughput,
            self.log,
            self.config.poll_interval,
        )
        self.writer = StreamWriter(
            self._scheduler,
            store,
            self.config.instance_name,
            self.own_streams,
            self.announcer,
            self.log,
        )
        await self.writer.start()
        await self.announcer.start()
        self._scheduler.spawn(
            "forget idempotency keys", forget_keys(self._scheduler, database, self.log)
        )
        self.master = Master(
            self._scheduler,
            self.catalogue,
            self.announcer.states,
            self.publisher,
            store,
            self._command,
        )
        self._notify = PostgresListener(
            self._reactor,
            self.database.dsn,
            self.config.instance_name,
            ["synrepl"],
            lambda channel, stream: announcer.wake(stream),
            announcer.wake_all,
        )
        self._notify.start()
        self._ports += [self._listen(listener) for listener in self.config.listeners]
        self._open_http(store)
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
        self._scheduler.stop()
        await self.http.close()
        for port in self._ports:
            await port.stopListening()
        if self.master is not None:
            self.master.shut_down()
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

    def _waiting(self, reason: str) -> None:
        self.http.waiting = reason

    def _open_http(self, store: FactStore) -> None:
        """Let the HTTP listener answer for what has started."""
        announcer, writer, master = self.announcer, self.writer, self.master
        if self.http.server is None or announcer is None or writer is None or master is None:
            return
        config, clock = self.config, self._scheduler.seconds
        identity = Identity(config.server_name, config.instance_name, __version__, self._started_at)
        intake = Intake(self.catalogue, writer)
        watch = self._watch = Watch(
            self._scheduler, lambda: master_standings(announcer.states, writer)
        )
        watch.start()

        def status() -> dict[str, Any]:
            lags = watch.look()
            return master_status(
                identity, master, announcer, writer, self.throughput, intake, lags, clock()
            )

        metrics = ProcessMetrics(status, self.http.server.responses)
        ready = self._readiness = Readiness(
            [streams_can_be_seen(announcer), name_is_held(writer), lag_below(watch, READY_LAG_S)]
        )
        ready.started()
        updates = Updates(self._scheduler, self.catalogue, announcer.states, store)
        self.http.started(master_routes(intake, updates, ready, status, metrics.render))

    def _listen(self, listener: Listener) -> Any:
        assert self.master is not None
        limits = Limits(
            line=listener.line_limit,
            peer_line=listener.line_limit,
            queued_lines=self.config.live_queue_commands,
            ping_timeout=self.config.ping_timeout,
        )
        factory = MasterFactory(
            self._scheduler,
            self.master,
            self.config.server_name,
            DIALECTS[listener.dialect],
            Generation(listener.rows),
            limits,
        )
        return listen(self._reactor, "listeners", listener.port, factory, listener.bind_address)

    def _command(self, source: str, command: Command) -> None:
        for handler in self._handlers:
            self._scheduler.spawn(f"handle {command.verb}", handler.on_command(source, command))
