"""``synrepl schema rename-server``: records a new server name in the database."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.configured_database import run_in_database
from synrepl.cli.conventions import config_option
from synrepl.daemon.config.config import load
from synrepl.storage import migrations
from synrepl.storage.database import Transaction
from synrepl.storage.server_name import rename_server


@click.command("rename-server")
@config_option
@click.option(
    "--from",
    "before",
    required=True,
    metavar="NAME",
    help="The server name recorded in the database now.",
)
def command(config: tuple[Path, ...], before: str) -> None:
    """Record a new server_name in the database.

    A database belongs to one server, whose name was recorded by its first master;
    processes with another server_name are refused. To rename a server: stop all its
    processes, change server_name in all their configurations, and run this once.
    """
    loaded = load(config)

    def work(txn: Transaction) -> None:
        migrations.check(txn, migrations.load())
        rename_server(txn, before, loaded.server_name)

    run_in_database(loaded, "rename server", work, owned=False)
    click.echo(f"the database belongs to {loaded.server_name} now")
