"""The ``synrepl`` command: a table of sub-commands, each loaded only when it is used.

Exit codes: 0 done, 1 failed, 2 wrong usage (arguments or configuration); of what examines, 3
when nothing is wrong and not everything could be looked at.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import click

import synrepl
from synrepl.core.errors import ConfigError, SynreplError, each_of
from synrepl.core.names import BadName

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INCOMPLETE = 3

#: Sub-command -> the module whose ``command`` it is, and its line in ``synrepl --help``.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("synrepl.daemon.cli.init", "Write the configuration of a master and a worker."),
    "master": ("synrepl.daemon.cli.master", "Run a master."),
    "worker": ("synrepl.daemon.cli.worker", "Run a worker."),
    "append": ("synrepl.daemon.cli.append", "Append facts from lines of JSON."),
    "tail": ("synrepl.daemon.cli.tail", "Show rows as they come."),
    "tap": ("synrepl.daemon.cli.tap", "Record traffic, play it again, judge it."),
    "status": ("synrepl.daemon.cli.status", "Show streams, writers, followers and lag."),
    "doctor": (
        "synrepl.daemon.cli.doctor",
        "Look for what is wrong in a running process, or in a database.",
    ),
    "writers": ("synrepl.daemon.cli.writers", "Show, add, drain and remove writers of streams."),
    "followers": (
        "synrepl.daemon.cli.followers",
        "Show named followers, move them back, and remove them.",
    ),
    "dead-letters": (
        "synrepl.daemon.cli.dead_letters",
        "Show, replay and discard facts that handlers could not take.",
    ),
    "schema": ("synrepl.daemon.cli.schema", "Show or upgrade what is in the database."),
    "watch": (
        "synrepl.daemon.cli.watch",
        "Hold what a real server announces against its database.",
    ),
    "lake": ("synrepl.daemon.cli.lake", "Land streams in a lake through Spark, and use it."),
    "demo": (
        "synrepl.daemon.cli.demo",
        "Run a master and workers through failures, and verify every fact.",
    ),
    "check-config": ("synrepl.daemon.cli.check_config", "Show what a configuration amounts to."),
}


def report(error: SynreplError) -> int:
    """Print an error on stderr, one line for each that it stands for; the exit code.

    Names are checked where they are given: on the command line, or in a configuration.
    """
    for each in each_of(error):
        click.echo(f"synrepl: error: {each}", err=True)
    return EXIT_USAGE if isinstance(error, (ConfigError, BadName)) else EXIT_FAILED


class CommandTable(click.Group):
    """A group whose ``--help`` imports none of its sub-commands, and the one place errors end.

    :param table: like :data:`COMMANDS`
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The sub-commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one sub-command; None when there is none of that name."""
        if cmd_name not in self._table:
            return None
        command: click.Command = importlib.import_module(self._table[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into ``--help`` without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run; errors of this project become one line on stderr and an exit code."""
        try:
            return super().main(*args, **kwargs)
        except SynreplError as error:
            sys.exit(report(error))
        except BrokenPipeError:
            # The reader went away; Python would complain once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_FAILED)


@click.command(
    cls=CommandTable, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(synrepl.__version__, prog_name="synrepl")
def cli() -> None:
    """Replication for facts kept in Postgres: streams, workers, coherent caches."""


def main() -> None:
    """The console script."""
    cli.main(prog_name="synrepl")
