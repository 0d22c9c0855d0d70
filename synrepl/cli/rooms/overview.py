"""``synrepl rooms list``, ``show`` and ``heads``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.reading import flag_words, read_rooms, text
from synrepl.cli.rooms.writers import configured_writers
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.daemon.config.config import load
from synrepl.services.rooms.answers import event_json, room_json
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.event_access import EventCopy
from synrepl.storage.rooms.reading.partial_states import ResyncProgressRow
from synrepl.storage.rooms.reading.room_overview import MAX_PAGE, RoomEnds, RoomFigures


@click.command("list")
@config_option
@click.option("--after", metavar="ROOM", help="Begin after this room ID.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PAGE),
    default=100,
    show_default=True,
    help="Number of rooms.",
)
@json_option
def list_rooms(config: tuple[Path, ...], after: str | None, limit: int, as_json: bool) -> None:
    """List rooms with their figures, in the order of their IDs.

    The writer is the process that persists the events of the room.
    """
    loaded = load(config)

    async def work(store: RoomStore) -> tuple[list[RoomFigures], dict[str, str]]:
        found = await store.rooms(after, limit)
        if loaded.rooms is None:
            return found, {}
        placed = await configured_writers(store.database, loaded).place(
            [each.room_id for each in found]
        )
        return found, {each.room_id: placed.assignment.writer_of(each.room_id) for each in found}

    found, writers = read_rooms(config, work)
    if as_json:
        rooms = [{**each._asdict(), "writer": writers.get(each.room_id)} for each in found]
        print_json({"rooms": rooms})
        return
    table = plain_table(
        "room",
        "name",
        "version>",
        "events>",
        "outliers>",
        "state>",
        "joined>",
        "ends>",
        "waiting>",
        "full state",
        "writer",
    )
    for each in found:
        figures = (each.events, each.outliers, each.state, each.joined, each.extremities)
        table.add_row(
            text(each.room_id),
            text(each.name),
            each.version,
            *(f"{figure:,}" for figure in (*figures, each.waiting)),
            Text("not yet", "yellow") if each.is_partial else Text("yes"),
            text(writers.get(each.room_id)),
        )
    show(table)
    if len(found) == limit:
        click.echo(f"There may be more: --after '{printable(found[-1].room_id)}'", err=True)


@click.command("show")
@config_option
@click.argument("subject", metavar="ROOM|EVENT")
@click.option("--as-it-came", is_flag=True, help="Show a redacted event in full.")
@json_option
def show_subject(config: tuple[Path, ...], subject: str, as_it_came: bool, as_json: bool) -> None:
    """Show a room, or an event with its JSON.

    A redacted event is shown in its redacted form. Its ID is computed again before it is shown.
    """
    if subject.startswith("!"):
        figures, ends, progress = read_rooms(config, lambda store: _room(store, subject))
        if as_json:
            print_json(room_json(figures, ends))
        else:
            show(*_room_parts(figures, ends, progress))
        return
    copy = read_rooms(config, lambda store: store.event(subject, as_it_came=as_it_came))
    if as_json:
        print_json(event_json(copy))
    else:
        show(*_event_parts(copy))


@click.command("heads")
@config_option
@click.argument("room_id", metavar="ROOM")
@json_option
def heads(config: tuple[Path, ...], room_id: str, as_json: bool) -> None:
    """Show the ends of ROOM: forward and backward extremities, and missing events.

    New events follow the forward extremities. Backward extremities are events that others
    follow and that are not here; they can be had from other servers.
    """
    ends = read_rooms(config, lambda store: store.heads(room_id))
    if as_json:
        print_json({"room_id": room_id, **ends._asdict()})
        return
    table = plain_table("end", "event")
    for kind, event_ids in (
        ("forward", ends.forward),
        ("backward", ends.backward),
        ("waited for", ends.missing),
    ):
        for each in event_ids:
            table.add_row(kind, text(each))
    show(table)


async def _room(
    store: RoomStore, room_id: str
) -> tuple[RoomFigures, RoomEnds, ResyncProgressRow | None]:
    progress, _ = await store.resync(room_id)
    return await store.room(room_id), await store.heads(room_id), progress


def _room_parts(
    figures: RoomFigures, ends: RoomEnds, progress: ResyncProgressRow | None
) -> list[RenderableType]:
    full = "yes"
    if figures.is_partial and progress is not None:
        full = f"not yet: {progress.sentence}; 'synrepl rooms resync' shows more"
    rows: dict[str, Any] = {
        "room": figures.room_id,
        "name": figures.name,
        "version": figures.version,
        "events": f"{figures.events:,}",
        "outliers": f"{figures.outliers:,}",
        "full state": full,
        "with partial state": f"{figures.partial:,}",
        "waiting for others": f"{figures.waiting:,}",
        "state entries": f"{figures.state:,}",
        "joined users": f"{figures.joined:,}",
        "newest stream ID": figures.stream_id,
        "highest topological": figures.topological,
        "forward extremities": f"{figures.extremities:,}",
        "backward extremities": f"{len(ends.backward):,}",
    }
    return [_two_columns(rows)]


def _event_parts(copy: EventCopy) -> list[RenderableType]:
    rows: dict[str, Any] = {
        "event": copy.event_id,
        "room": copy.room_id,
        "type": copy.type,
        "state key": None if copy.state_key is None else repr(copy.state_key),
        "sender": copy.sender,
        "stream ID": copy.stream_id,
        "topological": copy.topological,
        "outcome": flag_words(copy.flags) or "accepted",
        "refused because": copy.refusal,
        "redacted by": copy.redacted_by,
        "JSON": copy.json.decode(),
    }
    return [_two_columns({name: value for name, value in rows.items() if value is not None})]


def _two_columns(rows: dict[str, Any]) -> RenderableType:
    table = plain_table("", "")
    table.show_header = False
    for name, value in rows.items():
        table.add_row(name, text(value))
    return table
