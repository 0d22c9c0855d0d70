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
from synrepl.daemon.cli.redis_url import given_redis, password_option
from synrepl.daemon.cli.running import run
from synrepl.daemon.cli.terminal import show
from synrepl.daemon.config import LOOPBACK, load_master
from synrepl.daemon.config_redis import Redis
from synrepl.daemon.demo.lake_act import lake_report, play_lake
from synrepl.daemon.demo.report import report
from synrepl.daemon.demo.scenario import Scenario
from synrepl.daemon.demo.screen import open_screen
from synrepl.daemon.demo.site import MASTER, Site, free_ports
from synrepl.daemon.demo.traffic import ORDERS
from synrepl.pipeline.session.available import SPARK, missing, require_spark
from synrepl.storage.launch.redis import RedisServer

DEFAULT_ROWS = 100_000


@click.command("demo")
@click.option(
    "--rows",
    type=click.IntRange(2_000, 5_000_000),
    default=DEFAULT_ROWS,
    show_default=True,
    help="How many rows are appended.",
)
@click.option(
    "--redis",
    "over_redis",
    is_flag=True,
    help="Processes hear each other over Redis, a worker writes too, and Redis is killed.",
)
@click.option("--redis-url", help="The same over a Redis that is there, and is left alone.")
@password_option
@click.option(
    "--lake/--no-lake",
    "wants_lake",
    default=None,
    help="Land the streams in a lake in the end, and check it. Default: if Spark is installed.",
)
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="An empty directory for data, configurations and logs; it stays. Default: a temporary one.",
)
@json_option
def command(
    rows: int,
    over_redis: bool,
    redis_url: str | None,
    redis_password_path: Path | None,
    wants_lake: bool | None,
    keep: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Run PostgreSQL, a master and three workers, and see that nothing is lost.

    Recorded traffic of a real Synapse is appended over HTTP at speed. Meanwhile
    one worker is killed and started again, one is slow, one speaks the legacy
    dialect, and the master is restarted with its database. In the end every
    fact that was acknowledged is compared with what is stored and with what
    each worker applied. Then, with Spark, the streams are landed in a lake,
    compared with it, and a job tells what happened. Exits with 1 when there is
    any difference.
    """
    if wants_lake:
        require_spark()
    lacking = missing(SPARK)

    port = next(free_ports())
    redis = Redis(port=port) if over_redis else None
    if redis_url is not None:
        redis = given_redis(redis_url, redis_password_path)

    async def main(reactor: Any) -> bool:
        with directory_of(directory) as where:
            site = Site(where, redis)
            site.write()
            own = over_redis and redis_url is None
            server = RedisServer(site.directory, port) if own else None
            streams = catalogue(load_master([site.config(MASTER)]))
            screen = open_screen()
            scenario = Scenario(reactor, site, streams, rows, screen, server)
            try:
                try:
                    outcome = await scenario.play()
                finally:
                    screen.close()
                if not as_json:
                    show(*report(outcome))
                lake = None
                if wants_lake or (wants_lake is None and not lacking):
                    screen.happened("landing the streams in a lake, with Spark")
                    lake = await play_lake(reactor, site.directory / "lake", site.dsn)
                elif wants_lake is None:
                    screen.happened(
                        "the lake is left out, for Spark is not installed (synrepl[spark])"
                    )
                if as_json:
                    told = {} if lake is None else {"lake": lake.to_json()}
                    print_json({**outcome.to_json(), **told})
                elif lake is not None:
                    show(*lake_report(lake))
                if keep:
                    click.echo(how_to_look(site), err=as_json)
                    await scenario.stay()
            finally:
                await scenario.end()
        return not outcome.problems and not (lake and lake.problems)

    if not run(main):
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
