"""``synrepl watch``: compares a real server's announcements with its database."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from synrepl.adapters.http.messages import HttpAnswer, HttpRequest, json_answer
from synrepl.adapters.http.routes import Route
from synrepl.adapters.postgres.database import DatabaseLimits, PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.conventions import console, json_option, print_json
from synrepl.cli.dsn import dsn_from_options, dsn_options
from synrepl.cli.redis_url import password_option
from synrepl.cli.running import run
from synrepl.cli.terminal import show
from synrepl.cli.watch.sources import LiveSource, SourceAddress, source_address
from synrepl.cli.watch.view import WatchView
from synrepl.core.clock import Scheduler
from synrepl.core.errors import SynreplError
from synrepl.daemon.config.config import HttpConfig
from synrepl.daemon.descriptors import divide_descriptors
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.daemon.http.listener import open_http
from synrepl.storage.foreign.store import ForeignStore
from synrepl.tools.watch.announcements import Announcements
from synrepl.tools.watch.lag_monitor import LagMonitor, read_committed

#: Seconds between two polls of the source and of the database.
POLL_INTERVAL_S = 1.0


@click.command("watch")
@click.option("--tcp", metavar="HOST:PORT", help="The server's replication listener.")
@click.option("--redis", "url", metavar="URL", help="The Redis server that its processes use.")
@password_option
@click.option(
    "--server-name",
    help="The server's name: the channel on Redis. Over TCP, another server is refused.",
)
@dsn_options
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    help="Port of an HTTP listener for /metrics and /status.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Exit after this many seconds."
)
@json_option
def command(
    tcp: str | None,
    url: str | None,
    redis_password_path: Path | None,
    server_name: str | None,
    dsn: str | None,
    database_path: Path | None,
    insecure: bool,
    metrics_port: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Watch a real server: compare what it announces with its database.

    Follows the server as a worker would, whatever its release. Sends only
    REPLICATE, which asks for positions; on Redis every process answers it, as it
    does whenever a process starts. REPLICATE is repeated when a process has been
    silent for 30 seconds; a process that does not answer hangs or is not running.
    Over TCP only the main process can be observed. With the database, which is
    only read, a stream that advances there without being announced is reported
    within 5 seconds.

    With --json, each second's state is an object on its own line. With --seconds,
    the exit code is 1 if, at the end, nothing was received, a stream or process
    was silent, or the database could not be read.
    """
    address = source_address(tcp, url, redis_password_path, server_name)
    database_dsn = dsn_from_options(dsn, database_path, insecure)

    async def main(reactor: Any) -> WatchView:
        scheduler = TwistedScheduler(reactor)
        async with AsyncExitStack() as stops:
            announcements = Announcements(scheduler)
            source = address.open(reactor, scheduler, announcements)
            watcher = _Watcher(scheduler, address, source, LagMonitor(scheduler, announcements))
            if database_dsn is not None:
                limits = DatabaseLimits(connections=1, give_up_s=POLL_INTERVAL_S)
                database = PostgresDatabase(reactor, database_dsn, "synrepl-watch", limits)
                stops.push_async_callback(database.close)
                scheduler.spawn("read the database", watcher.read(ForeignStore(database)))
            if metrics_port is not None:
                config = HttpConfig(port=metrics_port)
                http = open_http(reactor, scheduler, config, divide_descriptors(config).http, stops)
                http.started(watcher.routes())
            stops.callback(scheduler.stop)
            source.start()
            stops.push_async_callback(source.stop)
            return await watcher.show(as_json, seconds)

    last = run(main)
    if not last.is_healthy:
        raise click.exceptions.Exit(EXIT_FAILED)


class _Watcher:
    """Polls the source and the database, and shows the result."""

    def __init__(
        self, scheduler: Scheduler, address: SourceAddress, source: LiveSource, monitor: LagMonitor
    ) -> None:
        self._scheduler = scheduler
        self._address = address
        self._source = source
        self._monitor = monitor
        self._unread: tuple[str, ...] = ()
        self.view = self.current_view()

    def current_view(self) -> WatchView:
        """Return the current state."""
        source = self._source
        trouble = [] if source.trouble is None else [source.trouble]
        trouble += self._unread
        dialect = None if source.dialect is None else source.dialect.name
        return WatchView(
            str(self._address),
            dialect,
            source.is_receiving,
            trouble,
            source.bad,
            self._monitor.measure(source.is_receiving),
            self._monitor.silent_writers(),
            self._address.note,
            not self._unread,
        )

    async def read(self, store: ForeignStore) -> None:
        """Poll the positions in the database until cancelled."""
        while True:
            try:
                found = await read_committed(store, self._address.announces_moves)
                self._monitor.update_committed(found.positions, found.streams_with_writers)
                self._unread = found.unread
            except SynreplError as error:
                self._unread = (str(error),)
            await self._scheduler.sleep(POLL_INTERVAL_S)

    async def show(self, as_json: bool, seconds: float | None) -> WatchView:
        """Show the state every second; return the last one after ``seconds``, if given."""
        end = None if seconds is None else self._scheduler.seconds() + seconds
        output = console()
        on_screen = output.is_terminal and not as_json
        with Live(console=output, auto_refresh=False) if on_screen else nullcontext() as live:
            while end is None or self._scheduler.seconds() < end:
                await self._scheduler.sleep(POLL_INTERVAL_S)
                self.view = self.current_view()
                if as_json:
                    print_json(self.view.to_json())
                elif live is not None:
                    live.update(self.view.table(), refresh=True)
                else:
                    show(self.view.table())
        return self.view

    def routes(self) -> list[Route]:
        """The HTTP routes that serve the latest state."""

        async def metrics(request: HttpRequest) -> HttpAnswer:
            body, content_type = self.view.metrics()
            return HttpAnswer(200, body, content_type)

        async def status(request: HttpRequest) -> HttpAnswer:
            return json_answer(self.view.to_json())

        return [Route("GET", "/metrics", metrics), Route("GET", "/status", status)]
