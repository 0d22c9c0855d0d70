"""``synrepl lake``: keeps streams in a lake; see ``docs/pipeline.md``."""

from __future__ import annotations

import click

from synrepl.cli import CommandTable
from synrepl.pipeline.session.requirements import require_spark

_COMMANDS = {
    "land": ("synrepl.cli.lake.land", "Land new facts in the lake."),
    "status": ("synrepl.cli.lake.status", "Show the contents of the lake."),
    "check": ("synrepl.cli.lake.check", "Prove that lake and database are equal."),
    "run": ("synrepl.cli.lake.run", "Run a job over the lake, or list the jobs."),
    "replay": ("synrepl.cli.lake.replay", "Write the lake's facts into another database."),
    "drop-lost": (
        "synrepl.cli.lake.drop_lost",
        "Drop rows that the database lost in a failover.",
    ),
    "repair": (
        "synrepl.cli.lake.repair",
        "Make lost and damaged files again from the database.",
    ),
    "sql": ("synrepl.cli.lake.sql", "Print SQL that registers the tables in a catalog."),
    "compact": ("synrepl.cli.lake.compact", "Join many small files into few large ones."),
}


class _NeedsSpark(CommandTable):
    """A group whose sub-commands can be imported only with the Spark extra."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one sub-command.

        :raises SparkMissing: Spark is not installed
        """
        if cmd_name in _COMMANDS:
            require_spark()
        return super().get_command(ctx, cmd_name)


@click.command("lake", cls=_NeedsSpark, table=_COMMANDS)
def command() -> None:
    """Land streams in a lake of Delta tables, exactly once, and query them.

    A lake is a folder, or a URL (s3://, gs://, abfss://). It belongs to one database:
    synrepl's own, or that of a real Synapse, which is only read.
    """
