"""``synrepl federation destinations``: servers that fail, or for which something waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.text import Text

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.rooms.reading import text
from synrepl.cli.terminal import duration, plain_table, printable, show
from synrepl.daemon.config.config import Config
from synrepl.storage.database import Database
from synrepl.storage.federation.destination_overview import (
    DestinationOverview,
    list_destinations,
    reset_destinations,
)


@click.command("destinations")
@config_option
@click.argument("action", type=click.Choice(["list", "reset"]), default="list")
@click.argument("names", nargs=-1, metavar="[SERVER]…")
@click.option("--limit", default=100, show_default=True, help="Maximum number of servers.")
@json_option
def command(
    config: tuple[Path, ...], action: str, names: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """List servers that fail or for which something waits, or have them asked again at once.

    With 'reset', the named servers are asked again within a minute, although they have failed. A server that sends
    a request is asked again at once without that.
    """
    if action == "reset":
        _reset(config, names, as_json)
        return
    if names:
        raise click.UsageError("only 'reset' takes names of servers")

    async def work(
        database: Database, loaded: Config, _: ShownProgress
    ) -> Sequence[DestinationOverview]:
        return await database.run(
            "list destinations", lambda txn: list_destinations(txn, limit), read_only=True
        )

    found = with_database(config, work)
    if as_json:
        print_json({"destinations": [each._asdict() for each in found]})
        return
    table = plain_table(
        *("server", "failing since", "failures>", "asked again in", "messages>", "devices>"),
        *("sent by", "reason"),
    )
    now = time.time()
    for each in found:
        table.add_row(
            text(each.destination),
            text(_time(each.failing_since_ms)),
            f"{each.failures:,}",
            text(_in(each.retry_at_ms, now)),
            f"{each.messages:,}",
            f"{each.device_lists:,}",
            Text(printable(each.sender)) if each.sender else Text("nobody", "red"),
            text(each.reason or ("" if each.position is None else "it is behind")),
        )
    show(table)


def _reset(config: tuple[Path, ...], names: Sequence[str], as_json: bool) -> None:
    if not names:
        raise click.UsageError("name the servers that are to be asked again")

    async def work(database: Database, loaded: Config, _: ShownProgress) -> Sequence[str]:
        return await database.run("reset servers", lambda txn: reset_destinations(txn, names))

    found = with_database(config, work)
    if as_json:
        print_json({"reset": list(found)})
        return
    for name in found:
        click.echo(f"{printable(name)} is asked again within a minute")
    for name in names:
        if name not in found:
            click.echo(f"{printable(name)} has not failed")


def _time(ms: int | None) -> str:
    return "-" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _in(ms: int | None, now: float) -> str:
    return "-" if ms is None else duration(max(0.0, ms / 1000 - now))
