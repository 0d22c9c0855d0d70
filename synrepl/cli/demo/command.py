"""``synrepl demo``: the product's main job in one command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.core import ParameterSource

from synrepl.cli.conventions import json_option, print_json
from synrepl.cli.demo.deployment import MASTER, Deployment, free_ports
from synrepl.cli.demo.lake import lake_report, run_lake
from synrepl.cli.demo.progress import ProgressDisplay
from synrepl.cli.demo.report import closing, report
from synrepl.cli.demo.rooms.run import DEFAULT_MEMBERS, run_rooms
from synrepl.cli.demo.scenario import Scenario
from synrepl.cli.demo.traffic import ORDERS
from synrepl.cli.redis_url import password_option, redis_from_options
from synrepl.cli.running import run
from synrepl.cli.terminal import show
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import LOOPBACK, load_master
from synrepl.daemon.config.redis import RedisConfig
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.pipeline.session.requirements import SPARK, missing, require_spark
from synrepl.storage.launch.redis import RedisProcess

DEFAULT_ROWS = 100_000


@click.command("demo")
@click.option(
    "--rows",
    type=click.IntRange(2_000, 5_000_000),
    default=DEFAULT_ROWS,
    show_default=True,
    help="Number of rows to append.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every stream.")
@click.option(
    "--redis",
    "over_redis",
    is_flag=True,
    help="Follow over Redis, with a worker that also writes, and kill Redis meanwhile.",
)
@click.option("--redis-url", help="Follow over an existing Redis, which is not killed.")
@password_option
@click.option(
    "--lake/--no-lake",
    "wants_lake",
    default=None,
    help="Land the streams in a lake at the end, and check it. Default: if Spark is installed.",
)
@click.option(
    "--rooms",
    is_flag=True,
    help="Join a large room of another server instead, with a kill in the middle of its resync.",
)
@click.option(
    "--members",
    type=click.IntRange(10, 100_000),
    default=DEFAULT_MEMBERS,
    show_default=True,
    help="With --rooms, number of members of the room.",
)
@click.option("--keep", is_flag=True, help="Keep everything running afterwards, until Ctrl-C.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Empty directory for data, configurations and logs, which is kept. Default: a temporary one.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    rows: int,
    show_all: bool,
    over_redis: bool,
    redis_url: str | None,
    redis_password_path: Path | None,
    wants_lake: bool | None,
    rooms: bool,
    members: int,
    keep: bool,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Run PostgreSQL, a master and three workers, and verify that no fact is lost.

    Recorded traffic of a real Synapse is appended over HTTP. Meanwhile, one
    worker is killed and started again, one is slow, one speaks the legacy
    dialect, and the master is restarted with its database. Afterwards, every
    acknowledged fact is compared with what is stored and with what each
    worker applied. With Spark installed, the streams are then landed in a lake
    and compared with it, and a job reads them. Exits with 1 on any difference.

    With --rooms, two Matrix servers run instead. A user of one joins a large room of the other with
    a part of its state, and both talk at once. The server is killed while it fetches the rest, and
    started again. In the end both servers' states, verdicts and timelines are compared.
    """
    _check_options(ctx, rooms)
    if rooms:

        async def of_rooms(reactor: Any) -> bool:
            with _directory(directory) as path:
                return await run_rooms(reactor, path, members, as_json=as_json, keep=keep)

        if not run(of_rooms):
            sys.exit(EXIT_FAILED)
        return
    if wants_lake:
        require_spark()
    no_lake = "--no-lake was given" if wants_lake is False else ""
    if wants_lake is None and missing(SPARK):
        no_lake = "Spark is not installed (pip install 'synrepl[spark]')"

    port = next(free_ports())
    redis = RedisConfig(port=port) if over_redis else None
    if redis_url is not None:
        redis = redis_from_options(redis_url, redis_password_path)

    async def main(reactor: Any) -> bool:
        with _directory(directory) as path:
            deployment = Deployment(path, redis)
            deployment.write()
            starts_redis = over_redis and redis_url is None
            server = RedisProcess(path, port) if starts_redis else None
            streams = catalogue(load_master([deployment.config(MASTER)]))
            display = ProgressDisplay()
            scenario = Scenario(reactor, deployment, streams, rows, display, server)
            try:
                try:
                    result = await scenario.run()
                finally:
                    display.close()
                if not as_json:
                    show(*report(result, show_all))
                lake = None
                if not no_lake:
                    display.log("landing the streams in a lake, with Spark")
                    lake = await run_lake(reactor, path / "lake", deployment.dsn)
                elif as_json:
                    display.log(f"no lake: {no_lake}")
                if as_json:
                    lake_json = {} if lake is None else {"lake": lake.to_json()}
                    print_json({**result.to_json(), **lake_json})
                else:
                    if lake is not None:
                        show(*lake_report(lake, show_all))
                    show(*closing(result, lake, no_lake))
                if keep:
                    click.echo(instructions(deployment), err=as_json)
                    await scenario.keep_running()
            finally:
                await scenario.stop()
        return not result.problems and not (lake and lake.problems)

    if not run(main):
        sys.exit(EXIT_FAILED)


def _check_options(ctx: click.Context, rooms: bool) -> None:
    """Refuse options that the demo which is chosen would ignore.

    :raises UsageError:
    """
    others = ("rows", "show_all", "over_redis", "redis_url", "redis_password_path", "wants_lake")
    for param in ctx.command.params:
        name = param.name or ""
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            if rooms and name in others:
                raise click.UsageError(f"{param.opts[0]} does not go with --rooms", ctx)
            if not rooms and name == "members":
                raise click.UsageError("--members is for --rooms", ctx)


def instructions(deployment: Deployment) -> str:
    """Commands with which to inspect the running processes from another terminal."""
    address = f"{LOOPBACK} {deployment.port}"
    master = deployment.config(MASTER)
    return f"""
All processes keep running, in {deployment.directory}. In another terminal,
watch rows arrive, with netcat (legacy dialect, then modern) or without:

  printf 'REPLICATE events NOW\\n' | nc {address}
  printf 'REPLICATE\\n' | nc {address}
  synrepl tail -c {deployment.config(deployment.slow.name)}

append a row, and show the status, here or in a browser at {deployment.url}/:

  echo '["o1", "anvil", 1, null]' | synrepl append -c {master} {ORDERS}
  synrepl status -c {master}

Ctrl-C stops everything."""


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    """The directory of the demo; a temporary one is deleted afterwards."""
    if wanted is not None:
        yield wanted.absolute()
        return
    with TemporaryDirectory(prefix="synrepl-demo-") as path:
        yield Path(path)
