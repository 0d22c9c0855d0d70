"""``synrepl tail``: show the rows of a master's streams as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from synrepl.adapters.http_client import HttpClient
from synrepl.adapters.http_source import HttpSource
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.core import names
from synrepl.core.errors import ConfigError
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.cli.addresses import (
    AnyPort,
    HttpAddress,
    NoHttpListener,
    master_http,
    reachable,
)
from synrepl.daemon.cli.conventions import console, json_option
from synrepl.daemon.cli.given import host_and_port
from synrepl.daemon.cli.running import aside, run
from synrepl.daemon.cli.tail_follow import Tail
from synrepl.daemon.cli.tail_lines import JsonLines, Lines, ShownRow, TextLines
from synrepl.daemon.cli.tail_peer import connect
from synrepl.daemon.cli.terminal import write_out
from synrepl.daemon.config import LOOPBACK, MasterConfig, WorkerConfig, load
from synrepl.positions.vector import PositionVector
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.definition import Generation
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.commands import Command
from synrepl.wire.dialects import DIALECTS, LEGACY, Dialect


class NoListener(ConfigError):
    """the configuration has no listener for followers: set 'listeners', or say HOST:PORT"""


class NeedsCatchUp(ConfigError):
    """--from {start}: a {dialect} master sends only what happens from now on, what was before is fetched over HTTP; name a configuration (-c) that has 'http' (a master's) or 'master.http_url' (a worker's), or use --dialect legacy with a master that speaks it"""


@dataclass(frozen=True, slots=True)
class Target:
    """A master, and what is known of it.

    :ivar server_name: what it must be called; None for whatever it is called
    :ivar streams: the catalogue of its configuration; None without one
    :ivar foreign: it may be a real Synapse
    :ivar rows: the generation of its row shapes
    :ivar http: where missed rows can be fetched
    """

    host: str
    port: int
    dialect: Dialect
    server_name: str | None
    streams: Catalogue | None
    foreign: bool
    rows: Generation
    http: HttpAddress | None


@click.command("tail")
@click.argument("what", nargs=-1, metavar="[HOST:PORT] [STREAM]...")
@click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A worker's or master's configuration, in place of HOST:PORT or for what else it knows.",
)
@click.option(
    "--from",
    "start",
    default="NOW",
    metavar="TOKEN|VECTOR|NOW",
    show_default=True,
    help="Show what comes after a token, or after a position of several writers such as 10~w1.12.",
)
@click.option(
    "--dialect",
    type=click.Choice(["modern", "legacy"]),
    help="How the master is spoken to: legacy up to Synapse 1.12. Default: as configured, or modern.",
)
@click.option("--commands", is_flag=True, help="Show POSITIONs and other commands too.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many rows.")
@click.option("--server-name", help="Refuse a master of another name.")
@json_option
def command(
    what: tuple[str, ...],
    config: tuple[Path, ...],
    start: str,
    dialect: str | None,
    commands: bool,
    count: int | None,
    server_name: str | None,
    as_json: bool,
) -> None:
    """Show the rows of some streams, or of all, as they come.

    The master is given as HOST:PORT (one of its listeners) or by a
    configuration. Connections that are lost are made again; what happened
    meanwhile is shown when it can be had: in the legacy dialect always, else
    over HTTP with a configuration that says where.

    With --json each row is an object {"stream", "writer", "token", "row"}.
    """
    where, streams = _split(what)
    target = find_target(where, config, dialect, server_name)
    known = target.streams or Catalogue(SYNAPSE_STREAMS)
    for stream in streams:
        if target.streams is not None and target.dialect.per_writer:
            known[stream]  # a modern master would not say that it has none
        names.stream_name(stream)
    begin = _start(start, target)
    output = console()
    colour = output.is_terminal and not output.no_color
    lines: Lines = JsonLines() if as_json else TextLines(target.dialect, colour)

    async def main(reactor: Any) -> None:
        scheduler = TwistedScheduler(reactor)
        printer = Printer(reactor, lines, commands, count)
        source = None
        if target.http is not None and target.dialect.per_writer:
            source = HttpSource(HttpClient(reactor, target.http.url, target.http.secret))
        tail = Tail(
            scheduler,
            lambda: connect(
                reactor, scheduler, target.host, target.port, target.dialect, target.server_name
            ),
            target.dialect,
            known,
            streams,
            begin,
            target.foreign,
            source,
            target.rows,
            printer.show,
            lambda text: click.echo(f"synrepl: {text}", err=True),
        )
        await tail.run()

    run(main)


class Printer:
    """Prints rows, and commands if wanted.

    :param count: after how many rows it has had enough; None for never
    """

    def __init__(self, reactor: Any, lines: Lines, commands: bool, count: int | None) -> None:
        self._reactor = reactor
        self._lines = lines
        self._commands = commands
        self._left = count

    async def show(self, items: Sequence[ShownRow | Command]) -> bool:
        """Print; returns once stdout has taken it all. False after the last row of the count."""
        now = self._reactor.seconds()
        printed: list[str] = []
        for item in items:
            if isinstance(item, ShownRow):
                printed.append(self._lines.row(item, now))
                if self._left is not None:
                    self._left -= 1
                    if self._left == 0:
                        break
            elif self._commands:
                printed.append(self._lines.command(item, now))
        if printed:
            data = ("\n".join(printed) + "\n").encode()
            # A reader that is slow must not keep us from answering the master.
            await aside(self._reactor, lambda: write_out(data))
        return self._left != 0


def find_target(
    where: str | None, config: Sequence[Path], dialect: str | None, server_name: str | None
) -> Target:
    """The master that the command line means.

    :param where: HOST:PORT, which goes before the configuration's address
    :raises ConfigError: the configuration is not acceptable, or does not say enough
    """
    if not config:
        if where is None:
            raise click.UsageError("name a master: HOST:PORT, or a configuration with -c")
        host, port = host_and_port(where)
        spoken = DIALECTS[dialect or "modern"]
        return Target(host, port, spoken, server_name, None, True, Generation.MODERN, None)
    loaded = load(config)
    expected = server_name or loaded.server_name
    if isinstance(loaded, WorkerConfig):
        master = loaded.master
        host, port = (master.host, master.port) if where is None else host_and_port(where)
        spoken = DIALECTS[dialect or loaded.dialect]
        foreign, rows = master.foreign, Generation.MODERN
    else:
        listener = _listener(loaded, where)
        host, port = (listener.host, listener.port) if where is None else host_and_port(where)
        spoken = LEGACY if dialect == "legacy" else listener.dialect
        foreign, rows = False, listener.rows
    try:
        http = master_http(loaded)
    except (NoHttpListener, AnyPort):
        http = None
    return Target(host, port, spoken, expected, catalogue(loaded), foreign, rows, http)


@dataclass(frozen=True, slots=True)
class _Listener:
    host: str
    port: int
    dialect: Dialect
    rows: Generation


def _listener(config: MasterConfig, where: str | None) -> _Listener:
    """The first listener, or what is known without one when an address is given."""
    if not config.listeners:
        if where is None:
            raise NoListener()
        return _Listener(LOOPBACK, 0, DIALECTS["modern"], Generation.MODERN)
    first = config.listeners[0]
    if first.port == 0 and where is None:
        raise AnyPort(key="listeners", option="HOST:PORT")
    host = reachable(first.bind_address)
    return _Listener(host, first.port, DIALECTS[first.dialect], Generation(first.rows))


def _split(what: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """HOST:PORT, if it is there, and the streams; a stream's name has no colon."""
    if what and ":" in what[0]:
        return what[0], what[1:]
    return None, what


def _start(text: str, target: Target) -> PositionVector | None:
    if text.upper() == "NOW":
        return None
    start = PositionVector.parse(text)
    if not target.dialect.per_writer:
        if start.writers:
            raise click.BadParameter(
                "the legacy dialect knows one token per stream, not one per writer",
                param_hint="--from",
            )
    elif target.http is None:
        raise NeedsCatchUp(start=text, dialect=target.dialect.name)
    return start
