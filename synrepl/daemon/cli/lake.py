"""``synrepl lake``: streams in a lake; see ``docs/pipeline.md``."""

from __future__ import annotations

import click

from synrepl.daemon.cli import CommandTable
from synrepl.pipeline.session.requirements import require_spark

_COMMANDS = {
    "land": ("synrepl.daemon.cli.lake_land", "Bring what is new into the lake."),
    "status": ("synrepl.daemon.cli.lake_status", "Show what is in the lake."),
    "check": ("synrepl.daemon.cli.lake_check", "Prove that the lake has what the database has."),
    "run": ("synrepl.daemon.cli.lake_run", "Run a job over the lake, or show which there are."),
    "replay": ("synrepl.daemon.cli.lake_replay", "Write the lake's facts into another database."),
    "drop-lost": (
        "synrepl.daemon.cli.lake_drop_lost",
        "Drop rows that the database lost in a failover.",
    ),
    "compact": ("synrepl.daemon.cli.lake_compact", "Make few large files of many small ones."),
}


class _NeedsSpark(CommandTable):
    """Its sub-commands cannot even be imported without the extra."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one sub-command.

        :raises SparkMissing: Spark is not installed
        """
        if cmd_name in _COMMANDS:
            require_spark()
        return super().get_command(ctx, cmd_name)


@click.command("lake", cls=_NeedsSpark, table=_COMMANDS)
def command() -> None:
    """Land streams in a lake of Delta tables, exactly once, and use it.

    A lake is a folder. It belongs to one database, synrepl's own or a real
    Synapse's, which is only read.
    """
