"""``synrepl federation``: shows other servers, as this one sees them."""

from __future__ import annotations

import click

from synrepl.cli import CommandTable

_COMMANDS = {
    "destinations": (
        "synrepl.cli.federation.destinations",
        "List servers that fail, or for which something waits.",
    ),
}


@click.command("federation", cls=CommandTable, table=_COMMANDS)
def command() -> None:
    """Show other servers, as this one sees them."""
