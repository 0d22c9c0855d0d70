"""``synrepl rooms events``: lists the events of a room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson

from synrepl.cli.conventions import config_option, json_option, print_json
from synrepl.cli.rooms.reading import checked_user, flag_words, read_rooms, text
from synrepl.cli.terminal import plain_table, printable, show
from synrepl.rooms import EventOrdering, Viewer
from synrepl.services.rooms.answers import graph_json
from synrepl.services.rooms.store import RoomStore
from synrepl.storage.rooms.reading.event_access import EventIsOutlier
from synrepl.storage.rooms.reading.graph_slice import GraphEvent
from synrepl.storage.rooms.reading.messages import Messages
from synrepl.storage.rooms.visibility.pages import MAX_PAGE, PageRequest


@click.command("events")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.option("--until", metavar="EVENT", help="The newest event of the list.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_PAGE),
    default=50,
    show_default=True,
    help="Number of events.",
)
@click.option(
    "--viewer", metavar="USER", callback=checked_user, help="Only what this user may see."
)
@click.option("--peeking", is_flag=True, help="That user previews the room without joining it.")
@json_option
def command(
    config: tuple[Path, ...],
    room_id: str,
    until: str | None,
    limit: int,
    viewer: str | None,
    peeking: bool,
    as_json: bool,
) -> None:
    """List the newest events of ROOM in topological order, the oldest first.

    Rejected and soft-failed events are among them, unless a user is given.
    """
    if viewer is not None:
        user = Viewer(viewer, peeking)
        page = read_rooms(config, lambda store: _page(store, room_id, user, until, limit))
        _show_page(page, as_json)
        return
    if peeking:
        raise click.UsageError("--peeking needs --viewer")
    found = read_rooms(config, lambda store: store.graph(room_id, until, limit))
    if as_json:
        print_json({"events": [graph_json(each) for each in found]})
    else:
        _show_events(found)


def _show_events(found: list[GraphEvent]) -> None:
    table = plain_table("topological>", "stream>", "type", "state key", "sender", "event", "")
    for each in found:
        words = [flag_words(each.flags), "end" if each.is_end else ""]
        table.add_row(
            str(each.topological),
            str(each.stream_id),
            text(each.type),
            text(each.state_key),
            text(each.sender),
            text(each.event_id),
            ", ".join(filter(None, words)),
        )
    show(table)


async def _page(
    store: RoomStore, room_id: str, viewer: Viewer, until: str | None, limit: int
) -> Messages:
    upto = None
    if until is not None:
        copy = await store.event(until)
        if copy.topological is None or copy.stream_id is None:
            raise EventIsOutlier(event_id=until)
        upto = EventOrdering(copy.topological, copy.stream_id)
    return await store.messages(room_id, viewer, PageRequest(limit, upto=upto))


def _show_page(page: Messages, as_json: bool) -> None:
    rows = list(zip(page.events, page.json, strict=True))[::-1]
    if as_json:
        shown: list[dict[str, Any]] = [
            {
                "event_id": event.event_id,
                "topological": event.ordering.topological,
                "stream_id": event.ordering.stream,
                "membership": event.membership,
                "redacted": not event.is_whole,
                "json": orjson.Fragment(raw),
            }
            for event, raw in rows
        ]
        print_json({"events": shown, "gaps": list(page.gaps)})
        return
    table = plain_table("topological>", "stream>", "membership", "event", "", "JSON")
    for event, raw in rows:
        table.add_row(
            str(event.ordering.topological),
            str(event.ordering.stream),
            event.membership,
            text(event.event_id),
            "" if event.is_whole else "redacted",
            text(raw.decode()),
        )
    show(table)
    if page.gaps:
        click.echo(f"Missing here: {', '.join(map(printable, page.gaps))}", err=True)
