"""``synrepl rooms compact``: stores the states of a room in fewer rows."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import (
    ShownProgress,
    size,
    with_database,
    without_index_check_option,
)
from synrepl.cli.terminal import plain_table, show
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.maintenance.maintenance import RoomCompactionReport, RoomMaintenance
from synrepl.storage.database import Database


@click.command("compact")
@config_option
@click.argument("room_id", metavar="ROOM")
@without_index_check_option
@json_option
def command(config: tuple[Path, ...], room_id: str, index_check: bool, as_json: bool) -> None:
    """Store the states of ROOM in fewer rows and fewer entries.

    State groups that nothing refers to are removed, equal ones are merged, and large ones become
    deltas. That every state stays what it is, is proven by its digest in each transaction.
    """

    async def work(database: Database, _: Config, progress: ShownProgress) -> RoomCompactionReport:
        maintenance = RoomMaintenance(database)
        return await maintenance.compact(room_id, index_check=index_check, progress=progress.show)

    report = with_database(config, work)
    before, after = report.before, report.after
    if as_json:
        print_json(
            {
                "room_id": report.room_id,
                "before": before._asdict(),
                "after": after._asdict(),
                "lock": report.locks.to_json(),
            }
        )
        return
    table = plain_table("", "state groups>", "entries>", "size>")
    for name, totals in (("before", before), ("after", after)):
        table.add_row(name, f"{totals.groups:,}", f"{totals.entries:,}", size(totals.bytes))
    show(table, report.locks.sentence())
