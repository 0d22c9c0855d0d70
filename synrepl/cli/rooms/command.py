"""``synrepl rooms``: shows, imports, checks and maintains stored rooms."""

from __future__ import annotations

import click

from synrepl.cli import CommandTable

_COMMANDS = {
    "list": ("synrepl.cli.rooms.overview:list_rooms", "List rooms with their figures."),
    "show": ("synrepl.cli.rooms.overview:show_subject", "Show a room, or an event."),
    "events": ("synrepl.cli.rooms.events", "List the events of a room."),
    "state": ("synrepl.cli.rooms.states:state", "Show a state: the current one, or at an event."),
    "diff": ("synrepl.cli.rooms.states:diff", "Show what differs between two states."),
    "resync": ("synrepl.cli.rooms.resync", "Show how partial rooms become complete."),
    "heads": ("synrepl.cli.rooms.overview:heads", "Show the extremities of a room."),
    "explain": ("synrepl.cli.rooms.explain", "Say why a state or a verdict is what it is."),
    "graph": ("synrepl.cli.rooms.graph", "Draw the event graph of a room."),
    "import": ("synrepl.cli.rooms.import_rooms", "Import a Synapse's rooms, or a file."),
    "export": ("synrepl.cli.rooms.export", "Write the events of a room as lines of JSON."),
    "verify": ("synrepl.cli.rooms.verify", "Check everything that is stored of rooms."),
    "rebuild": ("synrepl.cli.rooms.rebuild", "Build a room's look-up tables of states again."),
    "compact": ("synrepl.cli.rooms.compact", "Store the states of a room in fewer rows."),
    "purge": ("synrepl.cli.rooms.purge", "Remove the history of a room before a point."),
    "erase": ("synrepl.cli.rooms.erase", "Replace what users sent by its redacted form."),
    "writers": ("synrepl.cli.rooms.writers:writers", "Show or set who persists rooms."),
    "move": ("synrepl.cli.rooms.writers:move", "Let another process persist a room."),
    "rotate-key": ("synrepl.cli.rooms.rotate_key", "Replace the key that signs events."),
    "forget": ("synrepl.cli.rooms.forget", "Remove a room with all its rows."),
}


@click.command("rooms", cls=CommandTable, table=_COMMANDS)
def command() -> None:
    """Show, import, check and maintain the rooms in the database.

    All of these may run while other processes persist and read.
    """
