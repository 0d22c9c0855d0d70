"""``synrepl master``: run a master in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from synrepl.cli.conventions import config_option
from synrepl.daemon.checked_config import checked_master
from synrepl.daemon.master import MasterProcess
from synrepl.daemon.service import run


@click.command("master")
@config_option
def command(config: tuple[Path, ...]) -> None:
    """Run a master until SIGTERM or SIGINT; it logs to stderr."""
    loaded = checked_master(config)
    run(loaded, lambda reactor: MasterProcess(reactor, loaded))
