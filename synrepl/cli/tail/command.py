"""``synrepl tail``: shows the rows of a master's streams as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from synrepl.adapters.http.client import HttpClient
from synrepl.adapters.http.source import HttpSource
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.conventions import console, json_option
from synrepl.cli.running import run, run_in_thread
from synrepl.cli.tail.follow import Tail
from synrepl.cli.tail.lines import JsonLines, Lines, ShownRow, TextLines
from synrepl.cli.tail.target import TailTarget, find_target
from synrepl.cli.terminal import write_out
from synrepl.core import names
from synrepl.core.errors import ConfigError
from synrepl.positions.vector import PositionVector
from synrepl.streams.catalogue import Catalogue
from synrepl.streams.synapse import SYNAPSE_STREAMS
from synrepl.wire.commands import Command
from synrepl.wire.dialects import CLIENT_DIALECTS


class NeedsCatchUp(ConfigError):
    """--from {start}: a {dialect} master sends only what happens from now on, what was before is fetched over HTTP; name a configuration (-c) that has 'http' (a master's) or 'master.http_url' (a worker's), or use --dialect legacy with a master that speaks it"""


@click.command("tail")
@click.argument("what", nargs=-1, metavar="[HOST:PORT] [STREAM]...")
@click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Configuration of a worker or master: names the server, its streams and its HTTP listener.",
)
@click.option(
    "--from",
    "start",
    default="NOW",
    metavar="TOKEN|VECTOR|NOW",
    show_default=True,
    help="Show rows after a token, or after a position of several writers, such as 10~w1.12.",
)
@click.option(
    "--dialect",
    type=click.Choice(list(CLIENT_DIALECTS)),
    help="Dialect to speak: legacy for Synapse up to 1.12. Default: as configured, or auto.",
)
@click.option("--commands", is_flag=True, help="Show POSITIONs and other commands, too.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after this many rows.")
@click.option("--server-name", help="Refuse a master with another server name.")
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
    """Show the rows of the given streams, or of all streams, as they arrive.

    Name the master by HOST:PORT (one of its listeners) or by a configuration;
    with a configuration that has 'redis', the processes on its channel are
    followed. A lost connection is re-established. Rows that were missed
    meanwhile are shown if they can be fetched: always in the legacy dialect,
    otherwise over HTTP if a configuration says where. A stream that the master
    does not have is refused.

    With --json each row is an object {"stream", "writer", "token", "row"}.
    """
    where, streams = _split(what)
    target = find_target(where, config, dialect, server_name)
    known = target.streams or Catalogue(SYNAPSE_STREAMS)
    for stream in streams:
        if target.streams is not None and target.dialect.per_writer:
            known[stream]  # raises; a modern master does not report unknown streams
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
            lambda dialect: target.endpoint.connect(reactor, scheduler),
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
    """Prints rows, and other commands if requested.

    :param commands: whether to print commands other than RDATA
    :param count: the number of rows to print; None for no limit
    """

    def __init__(self, reactor: Any, lines: Lines, commands: bool, count: int | None) -> None:
        self._reactor = reactor
        self._lines = lines
        self._commands = commands
        self._left = count

    async def show(self, items: Sequence[ShownRow | Command]) -> bool:
        """Print, and return once stdout has accepted everything; False after ``count`` rows."""
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
            # In a thread, so that a slow reader of stdout does not block the reactor.
            await run_in_thread(self._reactor, lambda: write_out(data))
        return self._left != 0


def _split(what: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Split into HOST:PORT, if given, and stream names, which contain no colon."""
    if what and ":" in what[0]:
        return what[0], what[1:]
    return None, what


def _start(text: str, target: TailTarget) -> PositionVector | None:
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
