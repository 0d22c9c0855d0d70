"""The ``synrepl`` command: a table of sub-commands, each loaded only when it is used.

Exit codes: :mod:`synrepl.daemon.exit_codes`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

import synrepl
from synrepl.core.errors import InputError, SynreplError
from synrepl.daemon.exit_codes import EXIT_FAILED, report

#: Each sub-command: the module that defines its ``command`` (or ``module:function``), and its line in
#: ``synrepl --help``.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("synrepl.cli.init", "Write the configuration of a master and a worker."),
    "master": ("synrepl.cli.master", "Run a master."),
    "worker": ("synrepl.cli.worker", "Run a worker."),
    "append": ("synrepl.cli.append.command", "Append facts from lines of JSON."),
    "tail": ("synrepl.cli.tail.command", "Show rows as they arrive."),
    "tap": ("synrepl.cli.tap.command", "Record, replay and judge replication traffic."),
    "status": ("synrepl.cli.status.command", "Show streams, writers, followers and lag."),
    "doctor": (
        "synrepl.cli.doctor.command",
        "Find problems in a database or a running process.",
    ),
    "writers": ("synrepl.cli.writers", "Show, add, drain and remove writers of streams."),
    "followers": (
        "synrepl.cli.followers.command",
        "Show, reset and remove named followers.",
    ),
    "dead-letters": (
        "synrepl.cli.followers.dead_letters",
        "Show, replay and discard facts that handlers could not process.",
    ),
    "schema": ("synrepl.cli.schema.command", "Show or upgrade the database schema."),
    "watch": (
        "synrepl.cli.watch.command",
        "Compare what a real server announces with its database.",
    ),
    "rooms": ("synrepl.cli.rooms.command", "Show, import, check and maintain stored rooms."),
    "join": ("synrepl.cli.join", "Have a user join a room, of this server or of others."),
    "federation": ("synrepl.cli.federation.command", "Show other servers, as this one sees them."),
    "lake": ("synrepl.cli.lake.command", "Land streams in a lake with Spark, and query it."),
    "demo": (
        "synrepl.cli.demo.command",
        "Run a master and workers through failures, and verify every fact.",
    ),
    "check-config": ("synrepl.cli.check_config", "Check a configuration and print it in full."),
}


class NotText(InputError):
    """argument {argument} is not UTF-8 text, and no file has that name"""


def check_text(arguments: Sequence[str]) -> None:
    """Check that arguments are text, which only the names of files need not be.

    :raises NotText: one of them is not
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            if not os.path.lexists(argument):
                shown = argument.encode("utf-8", "backslashreplace").decode()
                raise NotText(argument=shown) from None


class CommandTable(click.Group):
    """A group that imports a sub-command only to run it, and reports all errors of synrepl.

    :param table: like :data:`COMMANDS`
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The sub-commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a sub-command; None for an unknown name."""
        if cmd_name not in self._table:
            return None
        module, _, name = self._table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into ``--help`` without importing the sub-commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._table.items()])

    def main(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> Any:
        """Run; a :class:`.SynreplError` becomes one line on stderr and an exit code."""
        try:
            given = list(sys.argv[1:] if args is None else args)
            check_text(given)
            return super().main(given, *more, **kwargs)
        except SynreplError as error:
            sys.exit(report(error))
        except BrokenPipeError:
            # The reader has closed the pipe. Keep Python from failing again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(EXIT_FAILED)


@click.command(
    cls=CommandTable, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(synrepl.__version__, prog_name="synrepl")
def cli() -> None:
    """Replication for facts kept in Postgres: streams, workers, coherent caches."""


def main() -> None:
    """Entry point of the console script."""
    cli.main(prog_name="synrepl")
