"""``synrepl rooms rebuild``: builds what is derived from a room's state groups again."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.terminal import counted, show
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Database
from synrepl.storage.rooms.maintenance.line_rebuild import RebuiltLines


@click.command("rebuild")
@config_option
@click.argument("room_id", metavar="ROOM")
@json_option
def command(config: tuple[Path, ...], room_id: str, as_json: bool) -> None:
    """Build the state lines of ROOM again from its state groups.

    State lines are where single entries of states are looked up; where events are along them is
    found again, too. Run it when 'synrepl rooms verify' names a line that differs. It is one
    transaction; nothing is persisted to the room meanwhile.
    """

    async def work(database: Database, _: Config, progress: ShownProgress) -> RebuiltLines:
        return await RoomMaintenance(database).rebuild_lines(room_id)

    done = with_database(config, work)
    if as_json:
        print_json({"room_id": room_id, **done._asdict(), "held_ms": round(done.held_ms, 1)})
        return
    show(
        f"{counted(done.groups, 'state group')} {'is' if done.groups == 1 else 'are'} on"
        f" {counted(done.lines, 'line')} now. The room was locked for {done.held_ms:,.1f} ms."
    )
