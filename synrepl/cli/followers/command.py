"""``synrepl followers``: lists, resets and removes named followers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.text import Text

from synrepl.adapters.postgres.database import PostgresDatabase
from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.configured_database import owned_database
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.running import run
from synrepl.cli.terminal import cell, duration, plain_table, printable, show
from synrepl.core.errors import InputError, Refused
from synrepl.core.tokens import BadToken, Token, parse_token
from synrepl.daemon.config.config import load
from synrepl.services.following.follower_lease import HEARTBEAT_S
from synrepl.services.status.stream_progress import writer_label
from synrepl.storage.database import Isolation, Transaction
from synrepl.storage.followers import named_followers, repair
from synrepl.storage.followers.repair import MovedPosition
from synrepl.tools.doctor import own_snapshot
from synrepl.tools.doctor.own_snapshot import OwnSnapshot

T = TypeVar("T")

#: A follower without a heartbeat for this long, in seconds, is not running.
SILENT_S = HEARTBEAT_S + 2.0


class FollowerRuns(Refused):
    """follower {follower!r} runs, and would put its positions back on record; stop its process first"""


class BadTarget(InputError):
    """{value!r} is no place to go back to: give a token, 'earliest', or 'now'"""


@click.group("followers")
def command() -> None:
    """Show, reset and remove named followers.

    The database records each worker under its follower_name: a position per
    stream and writer, the positions of its handlers, and a lease.
    """


@command.command("list")
@config_option
@json_option
def list_followers(config: tuple[Path, ...], as_json: bool) -> None:
    """Show all named followers, and how far their recorded positions are behind."""
    seen = _in_database(
        config,
        lambda database: database.run(
            "followers",
            own_snapshot.take_snapshot,
            read_only=True,
            isolation=Isolation.REPEATABLE_READ,
        ),
    )
    lines = _lines(seen)
    if as_json:
        print_json({"followers": lines})
        return
    table = plain_table("follower", "behind>", "ahead>", "last sign>", "lease ends in>")
    for line in lines:
        table.add_row(
            Text(cell(line["name"])),
            Text(cell(line["behind"])),
            Text(cell(line["ahead"]), style="red" if line["ahead"] else ""),
            Text(duration(line["seen_s"])),
            Text(duration(line["lease_s"])),
        )
    show(table if lines else Text("no named followers"))


@command.command("reset")
@config_option
@click.argument("name")
@click.argument("stream", required=False)
@click.option(
    "--to",
    required=True,
    metavar="TOKEN|earliest|now",
    help="New position. A position never moves forward, nor stays beyond that of its writer.",
)
@json_option
def reset(config: tuple[Path, ...], name: str, stream: str | None, to: str, as_json: bool) -> None:
    """Move the follower NAME and its handlers back, in STREAM or in all streams.

    The follower receives the facts above TOKEN again, or with 'earliest' all facts
    that are not trimmed; transactional handlers apply them again, too. 'now' is for
    a follower that is ahead of the database: it continues with new facts, and does
    not get those it missed. Stop its process first; the command waits up to 12 s to
    make sure that it is not running.
    """
    target = _target(to)

    async def work(database: PostgresDatabase) -> list[MovedPosition]:
        await _check_stopped(database, name)
        return await database.run(
            "reset a follower", lambda txn: repair.reset(txn, name, stream, target)
        )

    moved = _in_database(config, work)
    if as_json:
        print_json({"moved": [position._asdict() for position in moved]})
        return
    for position in moved:
        handler = "" if position.handler is None else f" (handler {position.handler})"
        place = f"{position.stream} of {writer_label(position.writer)}{handler}"
        click.echo(printable(f"{place}: from {position.before} back to {position.after}"))
    if not moved:
        click.echo("nothing to move back")


@command.command("remove")
@config_option
@click.argument("name")
def remove(config: tuple[Path, ...], name: str) -> None:
    """Remove the follower NAME: its lease, its positions and those of its handlers.

    Trimming no longer waits for it. If it comes back, it starts as a new follower.
    """

    async def work(database: PostgresDatabase) -> None:
        await _check_stopped(database, name)
        await database.run("remove a follower", lambda txn: repair.remove(txn, name))

    _in_database(config, work)
    click.echo(printable(f"follower {name} is removed"))


def _target(to: str) -> Token | None:
    """The token that --to names; None for ``now``.

    :raises BadTarget:
    """
    if to == "now":
        return None
    if to == "earliest":
        return 0
    try:
        return parse_token(to)
    except BadToken:
        raise BadTarget(value=to[:40]) from None


async def _check_stopped(database: PostgresDatabase, name: str) -> None:
    """Check that a follower is not running.

    :raises FollowerRuns: it has renewed its lease since this was called
    """

    def seen(txn: Transaction) -> float | None:
        return next(
            (found.seen_s for found in named_followers.named(txn) if found.name == name), None
        )

    before = await database.run("last sign", seen, read_only=True)
    if before is None or before > SILENT_S:
        return
    click.echo(printable(f"waiting to see whether {name} runs"), err=True)
    from twisted.internet import reactor

    waited = SILENT_S - before
    await TwistedScheduler(reactor).sleep(waited)
    after = await database.run("last sign", seen, read_only=True)
    if after is not None and after < waited:
        raise FollowerRuns(follower=name)


def _lines(seen: OwnSnapshot) -> list[dict[str, Any]]:
    ahead = list(own_snapshot.ahead(seen))
    return [
        {
            "name": follower.name,
            "behind": max((lag.tokens for lag in seen.lags(follower)), default=0),
            "ahead": max(
                (
                    position.position - position.bound
                    for position in ahead
                    if position.follower == follower.name
                ),
                default=0,
            ),
            "seen_s": follower.seen_s,
            "lease_s": follower.lease_s,
        }
        for follower in seen.followers.values()
    ]


def _in_database(config: tuple[Path, ...], work: Callable[[PostgresDatabase], Awaitable[T]]) -> T:
    loaded = load(config)

    async def main(reactor: Any) -> T:
        async with owned_database(reactor, loaded) as database:
            return await work(database)

    return run(main)
