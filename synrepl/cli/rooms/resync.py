"""``synrepl rooms resync``: shows how rooms that were joined with partial state become complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import RenderableType
from rich.text import Text

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.maintenance import ShownProgress, with_database
from synrepl.cli.rooms.reading import text
from synrepl.cli.terminal import duration, plain_table, show
from synrepl.daemon.config.config import Config
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.database import Database, Transaction
from synrepl.storage.rooms.partial.jobs import wake_jobs
from synrepl.storage.rooms.reading.partial_states import ResyncProgressRow, progress_json
from synrepl.storage.rooms.reading.resync_attempts import ServerAttempt
from synrepl.storage.rooms.reading.room_overview import MAX_PAGE
from synrepl.storage.rooms.tables.numbers import require_room

_Found = tuple[ResyncProgressRow, Sequence[ServerAttempt]]


@click.command("resync")
@config_option
@click.argument("room_id", metavar="[ROOM]", required=False)
@click.option("--ended", is_flag=True, help="Show also rooms that are complete by now.")
@click.option("--now", "wakes", is_flag=True, help="Try again now where it waits.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PAGE),
    default=100,
    show_default=True,
    help="Number of rooms.",
)
@json_option
def command(
    config: tuple[Path, ...],
    room_id: str | None,
    ended: bool,
    wakes: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show the rooms whose full state is not known yet, and how far it is, or ROOM with its servers.

    A room of another server is joined with part of its state. The rest is fetched in the background from the
    servers in the room, and the events that came meanwhile are judged again.
    """

    async def work(database: Database, _: Config, __: ShownProgress) -> list[_Found]:
        if wakes:
            await database.run("wake jobs", lambda txn: _wake(txn, room_id))
        store = RoomStore(database)
        if room_id is not None:
            progress, attempts = await store.resync(room_id)
            return [] if progress is None else [(progress, attempts)]
        found: list[_Found] = []
        for each in await store.resyncs(ended=ended, limit=limit):
            # Without a room, servers are listed only as JSON.
            tried = (await store.resync(each.room_id))[1] if as_json else ()
            found.append((each, tried))
        return found

    found = with_database(config, work)
    if as_json:
        print_json({"rooms": [progress_json(*each) for each in found]})
    elif room_id is not None and found:
        show(*_parts(*found[0]))
    elif room_id is not None:
        show(Text("this room was never joined with partial state"))
    elif not found:
        show(Text("all rooms have their full state", style="green"))
    else:
        show(_table([progress for progress, _ in found]))


def _wake(txn: Transaction, room_id: str | None) -> int:
    room_no = None if room_id is None else require_room(txn, room_id).room_no
    return wake_jobs(txn, room_no=room_no)


def _table(found: Sequence[ResyncProgressRow]) -> RenderableType:
    table = plain_table(
        "room", "what is done", "servers>", "to judge>", "since>", "ready in>", "worked on by"
    )
    for each in found:
        style = "red" if each.stands_still else "yellow" if each.reason is not None else ""
        table.add_row(
            text(each.room_id),
            Text(str(text(each.sentence)), style),
            f"{each.servers:,}",
            f"{each.left:,}",
            duration(each.age_s),
            duration(each.eta_s),
            text(each.owner),
        )
    return table


def _parts(progress: ResyncProgressRow, attempts: Sequence[ServerAttempt]) -> list[RenderableType]:
    rows: dict[str, object] = {
        "room": progress.room_id,
        "what is done": progress.sentence,
        "joined through": progress.joined_via,
        "since": duration(progress.age_s),
        "came forward": f"{duration(progress.idle_s)} ago",
        "ready in": duration(progress.eta_s),
        "next attempt in": duration(progress.wait_s) if progress.wait_s else None,
        "worked on by": progress.owner,
        "servers at the join": f"{progress.servers:,}",
        "events to judge again": f"{progress.left:,}",
    }
    facts = plain_table("", "")
    facts.show_header = False
    for name, value in rows.items():
        if value is not None:
            facts.add_row(name, text(value))
    if not attempts:
        return [facts]
    servers = plain_table("server", "outcome", "times>", "ago>", "reason")
    for each in attempts:
        servers.add_row(
            text(each.destination),
            Text(str(text(each.code)), "green" if each.code == "ok" else "yellow"),
            f"{each.attempts:,}",
            duration(each.seconds_ago),
            text(each.reason),
        )
    return [facts, Text(), servers]
