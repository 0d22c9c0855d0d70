"""``synrepl doctor rooms``: examines the stored rooms, and forecasts their size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import rich.console
from rich.text import Text

from synrepl.cli.configured_database import owned_database
from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, size, with_database
from synrepl.cli.terminal import counted, plain_table, printable, show
from synrepl.core.errors import SynreplError
from synrepl.daemon.config.config import Config
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.services.rooms.examination import MAX_FINDINGS, RoomsExamined, examine_rooms
from synrepl.storage.database import Database


@click.command("rooms")
@config_option
@click.argument("room_ids", metavar="[ROOM]...", nargs=-1)
@json_option
def command(config: tuple[Path, ...], room_ids: tuple[str, ...], as_json: bool) -> None:
    """Find problems in stored rooms, and forecast their size; without ROOM, of all.

    Finds references to nothing, state groups without rows or of other rooms, lines that
    differ from their groups, digests that do not fit (of the newest groups), wrong counts,
    and rooms with too many forward extremities. 'rooms verify' checks everything.

    Exits with 0 if nothing is wrong, and with 1 if something is.
    """

    async def work(database: Database, _: Config, progress: ShownProgress) -> RoomsExamined:
        return await examine_rooms(database, room_ids, progress.show)

    found = with_database(config, work)
    if as_json:
        print_json({**found.to_json(), "healthy": not found.findings})
    else:
        show(*parts(found))
    if found.findings:
        raise click.exceptions.Exit(EXIT_FAILED)


async def examine_configured(reactor: Any, config: Config) -> RoomsExamined | SynreplError | None:
    """Examine the rooms of a configuration; None if it has none, an error if they cannot be examined."""
    if config.rooms is None or not config.has_database:
        return None
    try:
        async with owned_database(reactor, config) as database:
            return await examine_rooms(database)
    except SynreplError as error:
        return error


def parts(found: RoomsExamined) -> list[rich.console.RenderableType]:
    """The report for the console: findings, then the largest rooms."""
    parts: list[rich.console.RenderableType] = []
    if found.findings:
        table = plain_table("room", "what is wrong", "where", "")
        for each in found.findings:
            cells = (each.room_id, each.problem.value, each.subject, each.detail)
            table.add_row(*(Text(printable(cell)) for cell in cells))
        least = "at least " if len(found.findings) == MAX_FINDINGS else ""
        number = counted(len(found.findings), "finding")
        text = f"{least}{number} in {counted(found.rooms, 'room')}"
        parts += [table, Text(text, style="red")]
        parts.append(Text("  cure: see all of it with 'synrepl rooms verify'"))
    else:
        parts.append(Text(f"nothing is wrong in {counted(found.rooms, 'room')}", style="green"))
        parts.append(
            Text(
                "looked at: references, counts, forward extremities, and the newest state groups and lines;"
                " 'synrepl rooms verify' looks at every event and every state"
            )
        )
    if found.forecasts:
        table = plain_table("room", "events>", "size>", "events a day>", "size in a year>")
        for room in found.forecasts:
            table.add_row(
                Text(printable(room.room_id)),
                f"{room.events:,}",
                size(room.bytes),
                f"{room.events_a_day:,.1f}",
                size(room.bytes_in_a_year),
            )
        parts += [Text(), table]
    return parts
