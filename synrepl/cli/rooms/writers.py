"""``synrepl rooms writers`` and ``move``: show and change which process persists which room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.text import Text

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.rooms.reading import text
from synrepl.cli.rooms.writing import NoRoomsConfigured
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.core.names import writer_name
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.room_writers import RoomWriterList, RoomWriters
from synrepl.storage.database import Database
from synrepl.storage.membership import State


@click.command("writers")
@config_option
@click.option("--set", "names", metavar="WRITER,…", help="Assign rooms to these from now on.")
@click.option("--reset", is_flag=True, help="Assign rooms to 'rooms.writers' again.")
@json_option
def writers(config: tuple[Path, ...], names: str | None, reset: bool, as_json: bool) -> None:
    """Show the processes that rooms are assigned to, or change them while they run.

    With --set and --reset, only the rooms of processes that leave the list move, and those that the hashes of
    their IDs assign to processes that are new in it. These must run with 'rooms' in their configuration.
    """
    if names is not None and reset:
        raise click.UsageError("give either --set or --reset")
    chosen = None if names is None else list(map(writer_name, names.split(",")))

    async def work(database: Database, loaded: Config, _: ShownProgress) -> RoomWriterList:
        assigned = configured_writers(database, loaded)
        if chosen is not None:
            await assigned.set(chosen)
        elif reset:
            await assigned.reset()
        return await assigned.overview()

    found = with_database(config, work)
    if as_json:
        shown = [each._asdict() for each in found.writers]
        print_json({"writers": shown, "configured": found.is_configured})
        return
    table = plain_table("writer", "state", "rooms moved to it>")
    for each in found.writers:
        table.add_row(text(each.writer), _state(each.states), f"{each.moved:,}")
    show(table)


@click.command("move")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.argument("writer", required=False)
@json_option
def move(config: tuple[Path, ...], room_id: str, writer: str | None, as_json: bool) -> None:
    """Let WRITER persist the events of ROOM from the next request on.

    Other processes refuse its events from then on, and name WRITER. Without WRITER, the room goes to the process
    that the hash of its ID chooses.
    """
    name = None if writer is None else writer_name(writer)

    async def work(database: Database, loaded: Config, _: ShownProgress) -> Sequence[str]:
        assigned = configured_writers(database, loaded)
        before = await assigned.move(room_id, name)
        now = (await assigned.place([room_id])).assignment.writer_of(room_id)
        return before, now

    before, now = with_database(config, work)
    if as_json:
        print_json({"room_id": room_id, "writer": now, "before": before})
    elif before == now:
        click.echo(f"{printable(room_id)} stays with {now}")
    else:
        click.echo(f"{printable(room_id)} is moved from {before} to {now}")


def configured_writers(database: Database, config: Config) -> RoomWriters:
    """The assignment of rooms to processes.

    :raises NoRoomsConfigured:
    """
    if config.rooms is None:
        raise NoRoomsConfigured()
    return RoomWriters(database, config.rooms.writers)


def _state(states: Mapping[str, str]) -> Text:
    """One state, if it is that of a writer of all streams; else each."""
    if len(set(states.values())) == 1:
        shown = next(iter(states.values()))
    else:
        shown = ", ".join(f"{stream}: {state}" for stream, state in states.items())
    return Text(shown, "" if shown == State.LIVE else "red")
