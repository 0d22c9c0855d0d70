"""``synrepl writers``: shows and changes the writers of streams at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.text import Text

from synrepl.adapters.scheduler import TwistedScheduler
from synrepl.cli.configured_database import owned_database, stored_streams
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.running import run
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.core.names import writer_name
from synrepl.daemon.catalogue import catalogue
from synrepl.daemon.config.config import load
from synrepl.services.membership import Membership
from synrepl.storage.membership import Member, State
from synrepl.streams.definition import Stream

T = TypeVar("T")


@click.group("writers")
def command() -> None:
    """Show, add, drain and remove writers of streams, while the system runs.

    To remove a writer: drain it, stop its process or take the stream out of its
    stream_writers, then remove it.
    """


@command.command("list")
@config_option
@click.argument("stream", required=False)
@click.option("--all", "every", is_flag=True, help="Show removed writers as well.")
@json_option
def list_writers(config: tuple[Path, ...], stream: str | None, every: bool, as_json: bool) -> None:
    """Show the writers of STREAM, or of all streams.

    A writer is live (a process or SQL transaction writes under its name), idle (no
    process has the name), draining (it gets no new tokens, and some are still open),
    drained, or dead. The position is the recorded one, never ahead of the real one.
    """
    found = _with_membership(
        config, stream, lambda membership, streams: membership.members(streams)
    )
    shown = [member for member in found if every or member.state is not State.REMOVED]
    if as_json:
        print_json({"writers": [_to_json(member) for member in shown]})
    else:
        _print(shown)


@command.command("add")
@config_option
@click.argument("stream")
@click.argument("writer")
def add(config: tuple[Path, ...], stream: str, writer: str) -> None:
    """Let WRITER write to STREAM: a new, drained or removed writer.

    A process uses it by its instance_name and stream_writers; plain SQL by the
    third argument of synrepl.append().
    """
    name = writer_name(writer)
    added = _with_membership(
        config, stream, lambda membership, streams: membership.add(streams[0], name)
    )
    click.echo(f"{writer} {'may' if added else 'could already'} write to {stream}")


@command.command("drain")
@config_option
@click.argument("stream")
@click.argument("writer")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until all open tokens are settled.",
)
def drain(config: tuple[Path, ...], stream: str, writer: str, timeout: float) -> None:
    """Give WRITER no more tokens of STREAM, and wait until its open ones are settled.

    Appends by WRITER are refused from now on. At the timeout, what is still open is
    shown; the writer stays draining, and gets no new tokens.
    """
    name = writer_name(writer)
    _with_membership(
        config, stream, lambda membership, streams: membership.drain(streams[0], name, timeout)
    )
    click.echo(f"{writer} is drained: all its tokens of {stream} are settled")


@command.command("remove")
@config_option
@click.argument("stream")
@click.argument("writer")
def remove(config: tuple[Path, ...], stream: str, writer: str) -> None:
    """Remove WRITER as a writer of STREAM; its facts stay.

    The writer must be drained or dead, and the database must prove that no process
    has its name and none of its transactions can still commit.
    """
    name = writer_name(writer)
    _with_membership(
        config, stream, lambda membership, streams: membership.remove(streams[0], name)
    )
    click.echo(f"{writer} is removed from {stream}; its facts stay")


def _with_membership(
    config: tuple[Path, ...],
    stream: str | None,
    work: Callable[[Membership, Sequence[Stream]], Awaitable[T]],
) -> T:
    """Run ``work`` on the database of a configuration, for one stream or all stored streams."""
    loaded = load(config)
    streams = stored_streams(catalogue(loaded), () if stream is None else (stream,))

    async def main(reactor: Any) -> T:
        async with owned_database(reactor, loaded) as database:
            scheduler = TwistedScheduler(reactor)
            try:
                return await work(Membership(scheduler, database), streams)
            finally:
                scheduler.stop()

    return run(main)


def _to_json(member: Member) -> dict[str, Any]:
    return {
        "stream": member.stream,
        "writer": member.writer,
        "state": str(member.state),
        "position": member.position,
        "last_reserved": member.last_reserved,
        "holder": member.holder,
        "open": list(member.open),
    }


def _print(members: Sequence[Member]) -> None:
    table = plain_table("stream", "writer", "state", "position>", "last reserved>", "held by")
    for member in members:
        held = [] if member.holder is None else [member.holder]
        table.add_row(
            member.stream,
            member.writer,
            Text(member.state, _STYLES.get(member.state, "")),
            str(member.position),
            str(member.last_reserved),
            Text(printable("; ".join([*held, *member.open]))),
        )
    show(table)


_STYLES = {State.DEAD: "red", State.DRAINING: "yellow", State.IDLE: "dim", State.REMOVED: "dim"}
