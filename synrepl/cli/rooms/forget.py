"""``synrepl rooms forget``: removes a room with all its rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.terminal import printable, show
from synrepl.daemon.config.config import Config
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.services.rooms.maintenance.maintenance import RoomMaintenance
from synrepl.storage.database import Database


@click.command("forget")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.option("--force", is_flag=True, help="Remove it even if users of this server are in it.")
@json_option
def command(config: tuple[Path, ...], room_id: str, force: bool, as_json: bool) -> None:
    """Remove ROOM with all its rows, in short transactions.

    It is unknown from the first moment on. A removal that was interrupted is gone on with by the
    same command.
    """

    async def work(
        database: Database, loaded: Config, progress: ShownProgress
    ) -> Mapping[str, int]:
        return await RoomMaintenance(database).forget(
            room_id, loaded.server_name, force=force, progress=progress.show
        )

    left = with_database(config, work)
    if as_json:
        print_json({"room_id": room_id, "leftovers": dict(left)})
    elif any(left.values()):
        show(f"Left over of {printable(room_id)}: {dict(left)}")
    else:
        show(f"Nothing is left of {printable(room_id)}.")
    if any(left.values()):
        sys.exit(EXIT_FAILED)
