"""``synrepl demo``: the whole product in one command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.cli import EXIT_FAILED
from synrepl.daemon.cli.conventions import json_option, print_json
from synrepl.daemon.cli.running import run
from synrepl.daemon.cli.terminal import show
from synrepl.daemon.config import LOOPBACK, load_master
from synrepl.daemon.demo.outcome import Outcome
from synrepl.daemon.demo.report import report
from synrepl.daemon.demo.scenario import Scenario
from synrepl.daemon.demo.screen import open_screen
from synrepl.daemon.demo.site import MASTER, Site
from synrepl.daemon.demo.traffic import ORDERS

DEFAULT_ROWS = 100_000


@click.command("demo")
@click.option(
    "--rows",
    type=click.IntRange(2_000, 5_000_000),
    default=DEFAULT_ROWS,
    show_default=True,
    help="How many rows are appended.",
)
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="An empty directory for data, configurations and logs; it stays. Default: a temporary one.",
)
@json_option
def command(rows: int, keep: bool, directory: Path | None, as_json: bool) -> None:
    """Run PostgreSQL, a master and three workers, and see that nothing is lost.

    Recorded traffic of a real Synapse is appended over HTTP at speed. Meanwhile
    one worker is killed and started again, one is slow, one speaks the legacy
    dialect, and the master is restarted with its database. In the end every
    fact that was acknowledged is compared with what is stored and with what
    each worker applied. Exits with 1 when there is any difference.
    """

    async def main(reactor: Any) -> Outcome:
        with directory_of(directory) as where:
            site = Site(where)
            site.write()
            streams = catalogue(load_master([site.config(MASTER)]))
            screen = open_screen()
            scenario = Scenario(reactor, site, streams, rows, screen)
            try:
                try:
                    outcome = await scenario.play()
                finally:
                    screen.close()
                if as_json:
                    print_json(outcome.to_json())
                else:
                    show(*report(outcome))
                if keep:
                    click.echo(how_to_look(site), err=as_json)
                    await scenario.stay()
            finally:
                await scenario.end()
        return outcome

    if run(main).problems:
        sys.exit(EXIT_FAILED)


def how_to_look(site: Site) -> str:
    """What to type in another terminal while everything runs."""
    where = f"{LOOPBACK} {site.port}"
    master = site.config(MASTER)
    return f"""
All of it still runs, in {site.directory}. Look at it from another terminal, the rows
as they come (legacy dialect, then modern), with netcat or without:

  printf 'REPLICATE events NOW\\n' | nc {where}
  printf 'REPLICATE\\n' | nc {where}
  synrepl tail -c {site.config(site.slow.name)}

append some, and see how everybody is, here or in a browser at {site.url}/:

  echo '["o1", "anvil", 1, null]' | synrepl append -c {master} {ORDERS}
  synrepl status -c {master}

Ctrl-C stops all of it."""


@contextmanager
def directory_of(wanted: Path | None) -> Iterator[Path]:
    """The directory of the demo; a temporary one is gone afterwards."""
    if wanted is not None:
        yield wanted.absolute()
        return
    with TemporaryDirectory(prefix="synrepl-demo-") as made:
        yield Path(made)
