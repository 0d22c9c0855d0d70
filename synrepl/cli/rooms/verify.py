"""``synrepl rooms verify``: checks everything that is stored of rooms."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.terminal import counted, plain_table, printable, show
from synrepl.daemon.config.config import Config
from synrepl.daemon.exit_codes import EXIT_FAILED
from synrepl.services.rooms.maintenance.verification import RoomVerification
from synrepl.storage.database import Database
from synrepl.storage.rooms.maintenance.findings import RoomFinding, RoomProblem


@click.command("verify")
@config_option
@click.argument("room_ids", metavar="[ROOM]...", nargs=-1)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Stop after this number of findings.",
)
@json_option
def command(config: tuple[Path, ...], room_ids: tuple[str, ...], most: int, as_json: bool) -> None:
    """Check everything that is stored of rooms; without ROOM, of all.

    Every event is hashed again, and compared with its row; the digest of every state group is
    computed from its entries; lines are compared with groups, the current state with the
    resolution of the forward extremities, counts with tables, and every reference is followed.
    Signatures are not checked, no event is judged again, and nothing is said about who may see
    it, or about events that wait. Nothing is changed. The exit code is 1 if anything is wrong.
    """

    async def work(
        database: Database, _: Config, progress: ShownProgress
    ) -> tuple[int, list[RoomFinding], Mapping[str, int]]:
        verification = RoomVerification(database, progress.show)
        found: list[RoomFinding] = []
        count = 0
        for room_id in room_ids or await verification.room_ids():
            count += 1
            async for each in verification.findings(room_id):
                found.append(each)
                if len(found) == most:
                    return count, found, verification.checked
        return count, found, verification.checked

    rooms, findings, checked = with_database(config, work)
    if as_json:
        listed = [each.to_json() for each in findings]
        print_json({"rooms": rooms, "findings": listed, "checked": dict(checked)})
    elif findings:
        table = plain_table("room", "what is wrong", "where", "")
        for each in findings:
            cells = (each.room_id, each.problem.value, each.subject, each.detail)
            table.add_row(*map(printable, cells))
        show(table, f"{counted(len(findings), 'finding')} in {counted(rooms, 'room')}.")
        if any(each.problem is RoomProblem.WRONG_LINE for each in findings):
            show("Lines are derived: 'synrepl rooms rebuild ROOM' builds them again.")
    else:
        show(
            f"Nothing is wrong in {counted(rooms, 'room')}.",
            f"Looked at: {counted(checked['events'], 'event')},"
            f" {counted(checked['state groups'], 'state group')}, and what refers to them.",
            "Not looked at: signatures, verdicts, who may see an event, and events that wait.",
        )
    if findings:
        sys.exit(EXIT_FAILED)
