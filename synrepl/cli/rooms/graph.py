"""``synrepl rooms graph``: draws the event graph of a room."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.conventions import config_option, print_json
from synrepl.cli.rooms.export import output_option, written
from synrepl.cli.rooms.graph_drawing import dot, svg
from synrepl.cli.rooms.reading import read_rooms
from synrepl.services.rooms.answers import graph_json
from synrepl.storage.rooms.reading.graph_slice import MAX_SLICE


@click.command("graph")
@config_option
@click.argument("room_id", metavar="ROOM")
@click.option("--until", metavar="EVENT", help="The newest event of the picture.")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_SLICE),
    default=100,
    show_default=True,
    help="Number of events.",
)
@click.option("--dot", "form", flag_value="dot", default="dot", help="For Graphviz; the default.")
@click.option("--svg", "form", flag_value="svg", help="A picture, for a browser.")
@click.option("--json", "form", flag_value="json", help="Print JSON.")
@output_option
def command(
    config: tuple[Path, ...],
    room_id: str,
    until: str | None,
    limit: int,
    form: str,
    output: Path | None,
) -> None:
    """Draw the newest events of ROOM, each with the events that it follows.

    In the SVG, the oldest event is at the top, and each branch has a lane. Blue events change
    the state, red ones were rejected or soft-failed, hollow ones are forward extremities. Dotted
    edges lead to events that are not in the picture.
    """
    found = read_rooms(config, lambda store: store.graph(room_id, until, limit))
    if form == "json":
        print_json({"events": [graph_json(each) for each in found]})
        return
    with written(output) as write:
        write(dot(found) if form == "dot" else svg(found))
