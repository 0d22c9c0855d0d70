"""``synrepl rooms erase``: replaces what users sent by its redacted form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Database


@click.command("erase")
@config_option
@click.argument("users", metavar="[USER]...", nargs=-1)
@json_option
def command(config: tuple[Path, ...], users: tuple[str, ...], as_json: bool) -> None:
    """Replace the JSON of all events that USERs sent by its redacted form.

    Without USER: of all users that were given to synrepl.erase(). From the first moment on,
    others see only the redacted form of what USERs sent, also of events that come later. Event
    IDs, states and verdicts stay what they are. What was sent cannot be restored, except from
    other servers.
    """

    async def work(database: Database, _: Config, progress: ShownProgress) -> Mapping[str, int]:
        maintenance = RoomMaintenance(database)
        wanted = users or await maintenance.users_to_erase()
        await maintenance.record_erased(wanted)
        return {user: await maintenance.erase_user(user, progress.show) for user in wanted}

    erased = with_database(config, work)
    if as_json:
        print_json({"events": dict(erased)})
        return
    table = plain_table("user", "events erased now>")
    for user, count in erased.items():
        table.add_row(printable(user), f"{count:,}")
    show(table)
