"""``synrepl rooms``: maintains and checks stored rooms."""

from __future__ import annotations

import click

from synrepl.cli import CommandTable

_COMMANDS = {
    "verify": ("synrepl.cli.rooms.verify", "Check everything that is stored of rooms."),
    "compact": ("synrepl.cli.rooms.compact", "Store the states of a room in fewer rows."),
    "purge": ("synrepl.cli.rooms.purge", "Remove the history of a room before a point."),
    "erase": ("synrepl.cli.rooms.erase", "Replace what users sent by its redacted form."),
    "forget": ("synrepl.cli.rooms.forget", "Remove a room with all its rows."),
}


@click.command("rooms", cls=CommandTable, table=_COMMANDS)
def command() -> None:
    """Maintain and check the rooms in the database.

    All of these may run while other processes persist and read.
    """
